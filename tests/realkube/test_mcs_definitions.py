"""Our definitions of the Multi-Cluster Services API are upstream's, but for what is listed here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from machine import programs

OURS = Path(__file__).resolve().parents[2] / "deploy/crds"
UPSTREAM = programs.BUILT / "mcs-crds"
PROPOSED = ".status.properties.clusters."
"""Of kubernetes/enhancements#6329, which upstream does not have yet."""
PORT = ".spec.properties.ports.items.properties.port"
STRICTER = {f"{PORT}.minimum": 1, f"{PORT}.maximum": 65535}
"""No port has another number, and a port of an import is one of a Service here."""

pytestmark = [pytest.mark.kube, pytest.mark.needs("coredns")]


def schemas(path: Path) -> dict[str, dict[str, Any]]:
    """Return the schema of each version of a definition."""
    versions = yaml.safe_load(path.read_text())["spec"]["versions"]
    return {each["name"]: each["schema"]["openAPIV3Schema"]["properties"] for each in versions}


def rules(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a schema demands, by path: neither descriptions, nor list types that are the default."""
    if not isinstance(node, dict):
        yield path, sorted(node) if isinstance(node, list) else node
        return
    for key, value in node.items():
        if not (key == "description" and isinstance(value, str)) and (key, value) != (
            "x-kubernetes-list-type",
            "atomic",
        ):
            yield from rules(value, f"{path}.{key}")


@pytest.mark.parametrize(("kind", "stricter"), [("serviceexports", {}), ("serviceimports", STRICTER)])
def test_every_version_has_upstreams_fields_and_rules(kind: str, stricter: dict[str, Any]) -> None:
    ours, upstream = schemas(OURS / f"{kind}.yaml"), schemas(UPSTREAM / f"multicluster.x-k8s.io_{kind}.yaml")
    for version, schema in upstream.items():
        found = {path: rule for path, rule in rules(ours[version]) if (kind, PROPOSED) != ("serviceexports", path[:28])}
        assert found == dict(rules(schema)) | stricter
