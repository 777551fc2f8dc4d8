"""tools/chart.py: what it cannot express and what is stale is refused by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the tool reads."""
    for name in ("deploy", "tools/helm"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "tools/chart.py", tmp_path / "tools")
    return tmp_path


def checked(checkout: Path) -> str:
    """The error of the tool's comparison."""
    command = [sys.executable, str(checkout / "tools/chart.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert bool(done.returncode) is bool(done.stderr)
    return done.stderr


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.slow
def test_a_change_of_the_bases_that_the_chart_lacks_is_named(checkout: Path) -> None:
    edit(checkout / "deploy/mirror/mirror.yaml", "replicas: 2", "replicas: 3")
    edit(checkout / "deploy/crds/drains.yaml", "scope: ", "scope:  ")
    (checkout / "deploy/chart/templates/extra.yaml").write_text("")
    assert "chart: templates/extra.yaml, templates/isthmus-mirror.yaml: differs" in checked(checkout)


@pytest.mark.slow
def test_a_component_that_changes_a_value_of_another_changes_the_template_of_both(checkout: Path) -> None:
    edit(checkout / "deploy/routes/agent.yaml", "    spec:\n", "    spec:\n      terminationGracePeriodSeconds: 7\n")
    assert "deploy/chart: templates/isthmus-agent.yaml: differs" in checked(checkout)


@pytest.mark.slow
def test_a_component_that_makes_a_map_of_anothers_value_is_refused_with_the_field(checkout: Path) -> None:
    edit(checkout / "deploy/routes/agent.yaml", "    spec:\n", "    spec:\n      dnsPolicy: {x: y}\n")
    field = "DaemonSet isthmus-agent.spec.template.spec.dnsPolicy"
    assert f"deploy/chart: {field}: differs between sets of components" in checked(checkout)


def test_a_variable_that_no_value_sets_is_refused_by_name(checkout: Path) -> None:
    with (checkout / "deploy/cluster.env").open("a") as file:
        file.write("ISTHMUS_CLUSTER_PLANET=\n")
    assert "ISTHMUS_CLUSTER_PLANET has no value in the chart" in checked(checkout)


def test_a_component_that_the_chart_does_not_have_is_refused_by_name(checkout: Path) -> None:
    folder = checkout / "deploy/metering"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text("kind: Component\n")
    assert "COMPONENTS and deploy/ differ: metering" in checked(checkout)
