"""`make conformance` publishes a report if everything that it claims passed, and keeps the published one otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from meshes.gateway_conformance import PROFILES, PUBLISHED, objections, publish

PASSED = {"MeshBasic": "PASS"}


def report(*names: str, core: str = "success", extended: str = "success") -> dict[str, Any]:
    profiles = [{"name": name, "core": {"result": core}, "extended": {"result": extended}} for name in names]
    return {"profiles": profiles}


def each(sentence: str, *names: str) -> list[str]:
    """The same said of several profiles."""
    return [f"{name}: {sentence}" for name in names]


@pytest.mark.parametrize(
    ("found", "tests", "why"),
    [
        (report(*PROFILES), PASSED, []),
        ({"profiles": None}, PASSED, each("the report has no such profile", *PROFILES)),
        (report("MESH-HTTP"), PASSED, each("the report has no such profile", "MESH-GRPC")),
        (report(*PROFILES, core="failure"), PASSED, each("core: failure", *PROFILES)),
        (report(*PROFILES, extended="partial"), PASSED, each("extended: partial", *PROFILES)),
        ({"profiles": [{"name": name} for name in PROFILES]}, PASSED, each("no core test was run", *PROFILES)),
        (report(*PROFILES), {**PASSED, "MeshPorts": "FAIL"}, ["MeshPorts: FAIL"]),
        (report(*PROFILES), {}, ["no test was run"]),
    ],
)
def test_a_report_is_published_only_if_all_that_it_claims_passed(
    found: dict[str, Any], tests: dict[str, str], why: list[str], tmp_path: Path
) -> None:
    published = tmp_path / "report.yaml"
    published.write_text("before")

    assert publish(found, tests, to=published) == why
    assert yaml.safe_load(published.read_text()) == ("before" if why else found)
    assert list(tmp_path.iterdir()) == [published]


def test_the_published_report_is_one_to_publish() -> None:
    assert objections(yaml.safe_load(PUBLISHED.read_text()), PASSED) == []
