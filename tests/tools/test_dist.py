"""`make dist`: what a release consists of, built twice the same, and installable without a compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".cache/dist/bin/python"
OBJECT = "isthmus/datapath/isthmus.bpf.o"

pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("dist")]


def built(folder: Path, *, umask: int, zone: str) -> Path:
    """A release of the commit that is checked out, from a clone below this folder."""
    clone, to = folder / "a clone", folder / "dist"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    (clone / "src/isthmus/leftover.py").write_text("raise RuntimeError\n")
    command = [str(PYTHON), "tools/dist.py", str(to)]
    subprocess.run(command, cwd=clone, umask=umask, env={**os.environ, "TZ": zone}, capture_output=True, check=True)
    return to


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("first"), umask=0o022, zone="UTC")


def test_a_release_that_is_built_again_elsewhere_has_the_same_digests(release: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "elsewhere", umask=0o077, zone="Asia/Tokyo")
    assert (again / "SHA256SUMS").read_text() == (release / "SHA256SUMS").read_text()
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=release, check=True)
    listed = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert {each.name for each in release.iterdir()} == listed | {"SHA256SUMS"}


def test_the_wheel_has_the_compiled_programs_and_what_is_applied_and_nothing_uncommitted(release: Path) -> None:
    [wheel] = release.glob("isthmus-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {OBJECT, "isthmus/deploy/kustomization.yaml"} <= names
    assert "isthmus/leftover.py" not in names
    assert not [each for each in names if each.startswith("isthmus/deploy/chart/")]


def test_the_source_archive_builds_the_same_wheel_without_a_compiler(release: Path, tmp_path: Path) -> None:
    [archive] = (each for each in release.glob("isthmus-*.tar.gz") if each.name.count("-") == 1)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    (source / "tools/build_bpf.py").write_text("raise SystemExit('it compiles')\n")
    command = [str(PYTHON), "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    [made], [published] = (tmp_path / "out").iterdir(), release.glob("isthmus-*.whl")
    first, second = zipfile.ZipFile(made), zipfile.ZipFile(published)
    assert sorted(first.namelist()) == sorted(second.namelist())
    assert first.read(OBJECT) == second.read(OBJECT)


def test_the_bill_of_materials_has_each_package_of_the_image_with_its_hashes(release: Path) -> None:
    [file] = release.glob("*.cdx.json")
    bom = json.loads(file.read_text())
    locked = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements/run.lock").read_text(), re.MULTILINE)
    assert {(each["name"], each["version"]) for each in bom["components"]} == set(locked)
    assert all(each["externalReferences"][0]["hashes"] for each in bom["components"])
    assert bom["metadata"]["component"]["name"] == "isthmus"


def test_each_command_has_a_manual_page_and_each_shell_its_completion(release: Path, tmp_path: Path) -> None:
    [archive] = release.glob("*-share.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    manuals = tmp_path / "share/man/man1"
    assert {"isthmus.1", "isthmus-connect.1", "isthmus-clusters-join.1"} <= {each.name for each in manuals.iterdir()}
    assert not list(manuals.glob("isthmus-lab*"))
    text = (manuals / "isthmus-connect.1").read_text()
    assert ".SH NAME\nisthmus\\-connect \\- Connect clusters" in text
    assert "\\-\\-endpoint CLUSTER=URL" in text
    for shell in (
        "bash-completion/completions/isthmus",
        "fish/vendor_completions.d/isthmus.fish",
        "zsh/site-functions/_isthmus",
    ):
        assert "_ISTHMUS_COMPLETE" in (tmp_path / "share" / shell).read_text()


def test_krews_manifest_has_the_digest_of_a_plugin_that_runs(release: Path, tmp_path: Path) -> None:
    [manifest], [archive] = release.glob("*.krew.yaml"), release.glob("*-krew.tar.gz")
    [platform] = yaml.safe_load(manifest.read_text())["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].endswith(f"/{archive.name}")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "a folder", filter="data")
    (tmp_path / "kubectl-isthmus").symlink_to(tmp_path / "a folder" / platform["bin"])  # as krew links it
    for first in (True, False):
        done = subprocess.run([tmp_path / "kubectl-isthmus", "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("isthmus ")
        assert ("setting up" in done.stderr) is first
