"""Rows of many fields are made with keywords. Where positions save a measured tenth of the time, their order is here.

Four fields of one type may be neighbours: a field inserted between them would move values to others, and no type
checker notices.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.loadbalancer.frontends import Claim
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend
from isthmus.model.services import Import, Service

MANY = 10
"""Positional arguments from which a constructor needs its order here."""
ORDERS: dict[type[Any], str] = {
    Service: "name source type ports cluster_ips external_ips load_balancer_ips headless families selector affinity"
    " affinity_timeout internal_policy external_policy distribution publish_not_ready labels annotations created"
    " import_of uid",
    Import: "name type ports ips affinity affinity_timeout families internal_policy distribution clusters derived"
    " labels annotations uid conditions",
    ResolvedService: "name import_of multicluster ports headless exporters affinity affinity_timeout internal_policy"
    " external_policy distribution preference consistent",
    Backend: "key port_names condition source hostname node zone for_zones pod healthy lapsed import_of",
    Claim: "key type service import_of port source created managed other_proxy scope",
}


@pytest.mark.parametrize("row", ORDERS, ids=lambda row: str(row.__name__))
def test_a_row_made_by_position_has_its_fields_in_that_order(row: type[Any]) -> None:
    fields = ORDERS[row].split()
    found = list(getattr(row, "__struct_fields__", None) or row._fields)[: len(fields)]
    assert found == fields, f"a field of {row.__name__} moved: look at each place that makes one by position"


def test_no_other_row_of_many_fields_is_made_by_position() -> None:
    counts = {row.__name__: len(fields.split()) for row, fields in ORDERS.items()}
    found: dict[str, set[int]] = {}
    for path in Path(isthmus.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) >= MANY:
                found.setdefault(call.func.id, set()).add(len(call.args))
    assert found == {name: {count} for name, count in counts.items()}
