"""The Gateway API's conformance suite gives the report that docs/ publishes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from meshes import gateway_conformance as conformance

pytestmark = [
    pytest.mark.kube,
    pytest.mark.lab,
    pytest.mark.timeout(conformance.SECONDS + 300),
    pytest.mark.needs("kube-controller-manager", "envoy", *conformance.PROGRAMS),
]


def test_a_service_import_is_a_backend_of_a_route(tmp_path: Path) -> None:
    """A test in the suite's style, which has none of ServiceImports (gateway-api#4789)."""
    with conformance.lab() as lab:
        output = conformance.run_imports(lab, tmp_path)
    assert conformance.results(output) == {"MeshServiceImport": "PASS"}, conformance.failures(output)


def test_the_mesh_profiles_hold_as_published(tmp_path: Path) -> None:
    with conformance.lab() as lab:
        report, output = conformance.run(lab, tmp_path)
    published = yaml.safe_load(conformance.PUBLISHED.read_text())
    for of_a_day in (report, published):
        del of_a_day["date"], of_a_day["implementation"]
        of_a_day["profiles"].sort(key=lambda profile: profile["name"])  # the suite reports them in any order
    assert conformance.results(output) == conformance.published(), conformance.failures(output)
    assert report == published
