"""Probes of ``deploy/`` wait for a process on a busy node, and end one that hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def probed() -> dict[str, dict[str, Any]]:
    """Containers of ours with a liveness probe, by file and name."""
    found = {}
    for path in sorted(DEPLOY.glob("*/*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            spec = (each or {}).get("spec") or {}
            template = spec.get("template") if isinstance(spec, dict) else None
            for container in ((template or {}).get("spec") or {}).get("containers") or ():
                if "livenessProbe" in container and container.get("image") in ("isthmus", "isthmus-envoy"):
                    found[f"{path.parent.name}/{container['name']}"] = container
    return found


CONTAINERS = probed()


def test_the_processes_that_a_hang_would_stop_have_a_liveness_probe() -> None:
    assert {name.split("/")[1] for name in CONTAINERS} >= {
        "agent",
        "dns",
        "dns-second",
        "gateway",
        "keys",
        "mirror",
        "operator",
    }


@pytest.mark.parametrize("name", CONTAINERS)
def test_none_is_ended_before_it_has_begun(name: str) -> None:
    """At a load of 20 an agent's first line came after 40 s, and its liveness probe had ended it after 15."""
    startup = CONTAINERS[name]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300
    assert startup["httpGet"] == CONTAINERS[name]["livenessProbe"]["httpGet"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_an_answer_may_take_seconds(name: str) -> None:
    """The kubelet's default is one second, in which a busy node may not give a process its turn."""
    assert {probe: CONTAINERS[name][probe].get("timeoutSeconds", 1) for probe in PROBES} == dict.fromkeys(PROBES, 5)
