"""Drain objects as rows, and the definition that bounds them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from isthmus.kube.objects import drains as wire
from isthmus.model.drains import DrainRequest
from isthmus.sources import drains

ROOT = Path(__file__).parents[2]
OURS = "isthmus-system"


def row(kind: str = "Cluster", name: str = "c2", *, namespace: str = OURS, **spec: Any) -> DrainRequest:
    meta = {
        "name": "d",
        "namespace": namespace,
        "creationTimestamp": "2026-11-22T07:00:00Z",
        "uid": "u",
        "generation": 3,
    }
    body = {"metadata": meta, "spec": {"targetRef": {"kind": kind, "name": name}, **spec}}
    return drains.request(OURS)(msgspec.convert(body, wire.Drain))


@pytest.mark.parametrize(
    ("spec", "ends"),
    [
        ({}, "2026-11-22T08:10:00Z"),
        ({"endTime": "2026-11-22T09:00:00Z"}, "2026-11-22T08:10:00Z"),
        ({"endTime": "2026-11-22T08:05:00Z", "endRampSeconds": 240}, "2026-11-22T08:10:00Z"),
        ({"endTime": "2026-11-22T08:05:00Z", "endRampSeconds": 600}, None),
        ({"endTime": "2026-11-22T08:00:00Z"}, None),
        ({"endTime": "soon"}, "2026-11-22T08:10:00Z"),
    ],
)
def test_a_drain_that_has_ended_or_gives_calls_back_already_is_not_begun_anew_by_an_end(
    spec: dict[str, Any], ends: str | None
) -> None:
    """The share would fall again if the command that ends it were repeated."""
    body = {"metadata": {"name": "d", "namespace": OURS}, "spec": {"targetRef": {"kind": "Node", "name": "n"}, **spec}}
    found = drains.ending(msgspec.convert(body, wire.Drain), datetime(2026, 11, 22, 8, tzinfo=UTC), 600)
    assert (found and found["endTime"]) == ends


def test_a_drain_begins_when_its_object_is_made_and_leaves_connections_alone() -> None:
    found = row().drain
    assert (found.kind, found.target, found.started, found.ramp, found.deadline) == (
        "Cluster", "c2", "2026-11-22T07:00:00Z", 0, None,
    )  # fmt: skip
    assert found.reason == "Drain isthmus-system/d"


def test_a_command_that_is_repeated_says_when_it_begins_anew() -> None:
    assert row(startTime="2026-11-22T09:00:00+01:00").drain.started == "2026-11-22T08:00:00Z"


def test_connections_are_closed_at_the_deadline_or_as_soon_as_no_new_call_is_made() -> None:
    assert row(deadlineSeconds=600).drain.deadline == 600
    assert row(existing="Close").drain.deadline == 0
    assert row(existing="Close", rampSeconds=60).drain.deadline == 60


def test_a_service_is_drained_from_its_own_namespace_and_clusters_and_nodes_from_ours() -> None:
    assert row("Service", "echo", namespace="demo").drain.target == "demo/echo"
    assert row("Node", "n1").invalid == ""
    for kind in ("Cluster", "Node"):
        assert row(kind, "c2", namespace="demo").invalid.endswith("is drained from namespace isthmus-system only")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"kind": "Rack"}, "spec.targetRef.kind"),
        ({"name": ""}, "spec.targetRef.name"),
        ({"name": "Not_A_Cluster"}, "spec.targetRef.name"),
        ({"rampSeconds": -1}, "spec.rampSeconds"),
        ({"deadlineSeconds": 10**9}, "spec.deadlineSeconds"),
        ({"existing": "Shout"}, "spec.existing"),
        ({"existing": "Close", "deadlineSeconds": 5}, "spec.deadlineSeconds"),
        ({"rampSeconds": 60, "deadlineSeconds": 5}, "spec.deadlineSeconds"),
        ({"endTime": "tomorrow"}, "spec.endTime"),
        ({"endRampSeconds": 60}, "spec.endRampSeconds"),
    ],
)
def test_what_is_wrong_is_named_and_drains_nothing(fields: dict[str, Any], names: str) -> None:
    found = row(**fields)
    assert found.invalid.startswith(names)
    assert (found.drain.kind, found.drain.target) == ("", "")


def test_the_definition_has_the_fields_and_bounds_of_the_conversion() -> None:
    [version] = yaml.safe_load((ROOT / "deploy" / "crds" / "drains.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(spec) == {field.encode_name for field in msgspec.structs.fields(wire.DrainSpec)}
    assert spec["targetRef"]["properties"]["kind"]["enum"] == list(drains.KINDS)
    assert {spec[each]["maximum"] for each in ("rampSeconds", "deadlineSeconds")} == {drains.MAX_SECONDS}
