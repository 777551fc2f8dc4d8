"""Flux and kpt wait for policies and drains by their status, as kstatus reads it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from machine import programs
from msgspec.structs import replace
from rows.balancing_world import make
from rows.statuses import OWN, statuses

from isthmus.model.drains import Drain, Draining, DrainRequest
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.policies import Policy

pytestmark = [pytest.mark.kube, pytest.mark.needs("kstatus")]
POLICY = Policy(name=ServiceName("demo/policy"), target=ServiceName("demo/echo"), generation=2)
CALLERS = ExportPolicy(name=ServiceName("demo/callers"), generation=2)
REASON = "Drain isthmus-system/c1"
REQUEST = DrainRequest(
    name=ServiceName("isthmus-system/c1"), drain=Drain(kind="Cluster", target="c1", reason=REASON), generation=2
)


def judged(row: Object, *, generation: int) -> str:
    """Return what kstatus makes of an object in a generation, with a status."""
    metadata = {"name": "it", "namespace": "demo", "generation": generation}
    whole = {"apiVersion": "isthmus.io/v1alpha1", "kind": row.kind, "metadata": metadata}
    text = json.dumps([{**whole, "status": json.loads(row.status)}])
    done = subprocess.run([programs.path("kstatus")], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ((make.imported(clusters=("c1",)), make.derived(), POLICY), "Current"),
        ((POLICY,), "InProgress"),
        ((REQUEST, Draining(by=OWN, drain=REQUEST.drain, left=0)), "Current"),
        ((REQUEST, Draining(by=OWN, drain=REQUEST.drain, left=40)), "InProgress"),
        ((REQUEST,), "Current"),
        ((CALLERS,), "Current"),
        ((replace(CALLERS, target="none"),), "InProgress"),
    ],
    ids=[
        "policy",
        "policy for nothing",
        "drained",
        "draining",
        "ended drain",
        "policy of callers",
        "policy of callers of nothing",
    ],
)
def test_what_is_not_in_effect_yet_is_waited_for(rows: tuple[Any, ...], status: str) -> None:
    [row] = statuses(*rows)
    assert judged(row, generation=2) == status


def test_a_status_of_an_earlier_generation_is_not_believed() -> None:
    [row] = statuses(make.imported(clusters=("c1",)), make.derived(), POLICY)
    assert judged(row, generation=3) == "InProgress"
