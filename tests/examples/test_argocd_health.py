"""The health of our objects in Argo CD, by the Lua that docs/policies.md has for its ConfigMap.

Argo CD runs a script in gopher-lua, which is Lua 5.1, with the object as the global ``obj`` and without the libraries
but those for tables and the operating system (util/lua/lua.go). It shows no health of a kind without a script.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from lupa import lua51
from rows.balancing_world import make
from rows.mcs_world import World
from rows.statuses import OWN, statuses

from isthmus.clusterset import links
from isthmus.clusterset.errors import LinkError
from isthmus.clusterset.links.plan import Kept, Outcome
from isthmus.model.drains import Drain, Draining, DrainRequest
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.links import Link
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.policies import Policy
from isthmus.processes.links import conditions_of, encoded

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
KEY: Final = "resource.customizations.health."
WITHHELD: Final = ("coroutine", "debug", "io", "math", "require", "string")
"""Globals of Lua 5.1 that a script does not have in Argo CD."""
SERVED: Final = (make.imported(clusters=("c1",)), make.derived())
POLICY: Final = Policy(
    name=ServiceName("demo/policy"), target=ServiceName("demo/echo"), generation=2, created="2026-01-01T00:00:00Z"
)
SECOND: Final = msgspec.structs.replace(POLICY, name=ServiceName("demo/second"), created="2026-02-01T00:00:00Z")
CALLERS: Final = ExportPolicy(name=ServiceName("demo/callers"), generation=2)
REASON: Final = "Drain isthmus-system/c1"
DRAIN: Final = DrainRequest(
    name=ServiceName("isthmus-system/c1"), drain=Drain(kind="Cluster", target="c1", reason=REASON), generation=2
)
LINK: Final = Link(name=ClusterName("c2"), request="R", certificate="C", generation=2)


def scripts() -> dict[str, str]:
    """The script of each kind, by ``group/kind``."""
    section = PAGE.read_text().partition("\n## Argo CD\n")[2].partition("\n## ")[0]
    data: dict[str, str] = yaml.safe_load(section.partition("```yaml\n")[2].partition("```")[0])["data"]
    return {key.removeprefix(KEY).replace("_", "/"): text for key, text in data.items()}


def health(obj: dict[str, Any]) -> tuple[str, str]:
    """Status and message that Argo CD displays for an object."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    for each in WITHHELD:
        runtime.globals()[each] = None
    runtime.globals().obj = runtime.table_from(obj, recursive=True)
    result = runtime.execute(scripts()[f"{obj['apiVersion'].partition('/')[0]}/{obj['kind']}"])
    return str(result.status), str(result.message)


def whole(kind: str, status: dict[str, Any], *, generation: int, group: str = "isthmus.io") -> dict[str, Any]:
    """An object of a kind with a status, in a generation."""
    metadata = {"name": "it", "namespace": "demo", "generation": generation}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "status": status}


def written(row: Object, *, generation: int = 2, group: str = "isthmus.io") -> dict[str, Any]:
    """The object once the operator has written the status of a row."""
    return whole(row.kind, json.loads(row.status), generation=generation, group=group)


def link(look: links.Look | None, *, generation: int = 2, **outcome: Any) -> dict[str, Any]:
    """A ClusterLink with the status that follows from a pass over it."""
    made = Outcome(kept=Kept(key=b""), certificate="signed", files={"c2.yaml": b""}, **outcome)
    status = {"conditions": [encoded(each) for each in conditions_of(LINK, made, look)]}
    return whole("ClusterLink", status, generation=generation)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((*SERVED, POLICY), "Healthy"),
        ((POLICY,), "Progressing"),
        ((*SERVED, msgspec.structs.replace(POLICY, invalid="spec.tiers: 17 of them")), "Degraded"),
        ((DRAIN, Draining(by=OWN, drain=DRAIN.drain, left=0)), "Healthy"),
        ((DRAIN, Draining(by=OWN, drain=DRAIN.drain, left=40)), "Progressing"),
        ((DRAIN,), "Healthy"),
        ((msgspec.structs.replace(DRAIN, invalid="spec.target: no such kind"),), "Degraded"),
        ((CALLERS,), "Healthy"),
        ((msgspec.structs.replace(CALLERS, target="none"),), "Progressing"),
        ((msgspec.structs.replace(CALLERS, invalid="spec.allow: 99 of them"),), "Degraded"),
    ],
    ids=[
        "policy",
        "policy for nothing",
        "refused policy",
        "drained",
        "draining",
        "ended drain",
        "refused drain",
        "policy of callers",
        "policy of callers of nothing",
        "refused policy of callers",
    ],
)
def test_policies_and_drains_are_degraded_once_refused_and_healthy_once_in_effect(
    rows: tuple[Any, ...], expected: str
) -> None:
    [row] = statuses(*rows)
    assert health(written(row))[0] == expected


def test_a_policy_that_waits_for_another_one_is_degraded_with_its_name() -> None:
    found = [health(written(row)) for row in statuses(*SERVED, POLICY, SECOND)]
    assert sorted(status for status, _ in found) == ["Degraded", "Healthy"]
    [message] = [message for status, message in found if status == "Degraded"]
    assert "demo/policy" in message


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (link(links.Look()), ("Healthy", "its etcd is read, and its request is signed")),
        (link(links.Look(reason="Unreachable", message="no route")), ("Progressing", "no route")),
        (link(None), ("Progressing", "its etcd was not read yet")),
        (link(None, refusal=LinkError("IdTaken", "spec.id: 2 is taken")), ("Degraded", "spec.id: 2 is taken")),
    ],
    ids=["connected", "unreachable", "new", "refused"],
)
def test_a_link_is_degraded_once_refused_and_healthy_once_connected(
    obj: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert health(obj) == expected


def test_an_export_is_degraded_if_its_service_cannot_be_exported_and_waits_for_one_that_is_missing() -> None:
    group = "multicluster.x-k8s.io"
    world = World()
    world.mark()
    seen = [health(written(world.row("ServiceExport"), generation=1, group=group))[0]]
    world.service(type="ExternalName", ports=(), cluster_ips=())
    seen.append(health(written(world.row("ServiceExport"), generation=1, group=group))[0])
    world.service()
    seen.append(health(written(world.row("ServiceExport"), generation=1, group=group))[0])
    assert seen == ["Progressing", "Degraded", "Healthy"]


@pytest.mark.parametrize("kind", sorted(scripts()))
def test_an_object_without_a_status_of_its_generation_waits_for_it(kind: str) -> None:
    group, _, name = kind.partition("/")
    [row] = statuses(*SERVED, POLICY)
    stale = whole(name, json.loads(row.status), generation=3, group=group)
    new = whole(name, {}, generation=1, group=group)
    del new["status"]
    unread = ("Progressing", "Isthmus has not observed it yet")
    assert [health(each) for each in (stale, new)] == [unread, unread]
