"""Every container that deploy/ starts has a memory limit, with room above what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of all workloads; what has no image is a patch of one that has."""
    for path in sorted({*DEPLOY.rglob("*.yaml")} - {*(DEPLOY / "chart").rglob("*")}):  # templates are no YAML
        for document in yaml.safe_load_all(path.read_text()):
            template = ((document or {}).get("spec") or {}).get("template") or {}
            pod = template.get("spec") or {}
            for each in (*pod.get("initContainers", ()), *pod.get("containers", ())):
                if "image" in each:
                    yield f"{path.relative_to(DEPLOY)}:{each['name']}", each


CONTAINERS = dict(containers())


def size(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


def test_all_workloads_are_looked_at() -> None:
    assert len(CONTAINERS) >= 10


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_has_a_memory_limit_of_twice_what_it_asks_for(name: str) -> None:
    resources = CONTAINERS[name]["resources"]
    assert size(resources["limits"]["memory"]) >= 2 * size(resources["requests"]["memory"])
    assert "cpu" not in resources["limits"], "a processor that is held back answers late, with nothing gained"
