"""The version stands in several files, which name one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import isthmus

ROOT = Path(__file__).resolve().parents[2]


def projects() -> list[str]:
    files = [tomllib.loads((ROOT / name).read_text())["project"] for name in ("pyproject.toml", "lab/pyproject.toml")]
    needed = [each.removeprefix("isthmus==") for each in files[1]["dependencies"] if each.startswith("isthmus==")]
    return [*(project["version"] for project in files), *needed]


def test_projects_images_and_chart_have_the_version_of_the_code() -> None:
    kustomization = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    examples = [path.read_text() for path in (ROOT / "examples").rglob("*.yaml")]
    found = [
        *projects(),
        *(image["newTag"] for image in kustomization["images"]),
        *(chart[name] for name in ("version", "appVersion")),
        *(version for text in examples for version in re.findall(r"image: isthmus:(\S+)", text)),
    ]
    assert len(found) >= 9
    assert {*found} == {isthmus.__version__}
