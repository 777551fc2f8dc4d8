"""Manifests of this release start the previous one, and the other way round: settings, arguments, commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import previous_release

from isthmus import config
from isthmus.installation import rendering, shipped
from isthmus_lab.layout import Lab
from isthmus_lab.supervisor import configs

pytestmark = pytest.mark.upgrade

OLD = previous_release.previous().python
LOAD = """
import json, os, sys, tempfile
from pathlib import Path
import click
from isthmus.cli import root
from isthmus.config import ConfigError, load
found = []
for process in json.load(sys.stdin):
    file = Path(tempfile.mkdtemp()) / "config.toml"
    file.write_text(process["file"])
    words = process["args"]
    command = root.get_command(click.Context(root), words[0])
    try:
        command.make_context(words[0], [str(file) if "/" in word else word for word in words[1:]])
        load(file, environment=process["environment"], flags=())
        found.append("")
    except (ConfigError, click.ClickException) as error:
        found.append(f"{words}: {error}")
print(json.dumps(found))
"""


def previous_manifests() -> Path:
    """Folder deploy/ of the previous release."""
    where = subprocess.run(
        [OLD, "-c", "import isthmus, os; print(os.path.dirname(isthmus.__file__))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return Path(where) / "deploy"


def processes(folder: Path) -> Iterator[dict[str, Any]]:
    """Each container of ours with arguments, file and environment, of all components that the previous release has.

    One that it does not have is taken out before going back (docs/upgrade.md).
    """
    parts = (*rendering.default_components(folder), "routes", "islands")
    chosen = tuple(dict.fromkeys((*parts, *sorted(rendering.components(previous_manifests())))))
    objects = rendering.render(folder, rendering.Options(components=chosen))
    maps = {each["metadata"]["name"]: each["data"] for each in objects if each["kind"] == "ConfigMap"}
    for item in objects:
        pod = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            config = next((word for word in container.get("args", ()) if word.endswith(".toml")), "")
            if not config:
                continue
            named = {each["name"]: each.get("value", "1") for each in container.get("env", ())}
            referred = (each.get("configMapRef", {}).get("name", "") for each in container.get("envFrom", ()))
            variables = {name: value for each in referred for name, value in maps.get(each, {}).items()}
            file = next(data[Path(config).name] for data in maps.values() if Path(config).name in data)
            environment = {name: value for name, value in (variables | named).items() if name.startswith("ISTHMUS_")}
            yield {"args": container["args"], "file": file, "environment": environment}


def processes_of_a_lab() -> Iterator[dict[str, Any]]:
    """Processes of a lab of two islands without options, in which test_mixed_versions runs the previous release."""
    cluster = Lab("demo", 2, networks=("island",)).clusters[0]
    node = cluster.nodes[0]
    of_processes = {
        "operator": configs.operator(cluster, envoy="/envoy"),
        "agent": configs.agent(node, envoy="/envoy"),
        "dns": configs.dns(node, "dns"),
        "gateway": configs.gateway(node, envoy="/envoy"),
    }
    for name, each in of_processes.items():
        yield {"args": [name, "--config", "/file.toml"], "file": config.to_toml(each), "environment": {}}


def refused(python: str | Path, given: list[dict[str, Any]]) -> list[str]:
    done = subprocess.run([python, "-c", LOAD], input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in json.loads(done.stdout) if each]


def test_the_previous_release_takes_every_setting_of_todays_manifests() -> None:
    given = list(processes(shipped.directory("deploy")))
    assert len(given) > 6
    assert refused(OLD, given) == []


def test_the_previous_release_takes_every_setting_of_a_lab() -> None:
    assert refused(OLD, list(processes_of_a_lab())) == []


def test_this_release_takes_every_setting_of_the_previous_ones_manifests() -> None:
    given = list(processes(previous_manifests()))
    assert len(given) > 6
    assert refused(sys.executable, given) == []
