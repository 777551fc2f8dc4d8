"""The report of a node: which routes it names when the node's Envoy refuses a resource, and how much it holds."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from meshes.envoy_world import envoy_world
from meshes.route_world import NODE, RouteWorld, route
from msgspec.structs import replace

from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.routes import (
    MAX_REFUSAL,
    MAX_REFUSALS,
    Attachment,
    NodeRefusals,
    PortRoutes,
    RouteRefusal,
)
from isthmus.model.services import Node, Port, Service
from isthmus.model.sources import PROXY
from isthmus.model.xds import RefusedResource, Resource, ResourceType
from isthmus.processes.proxying import REPORTED, follow_refusals
from isthmus.proxy import refusals
from isthmus.statedb import Database

TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo}]\nrules: [{}]"


def world() -> RouteWorld:
    """A Service echo of two ports, and v2; a route for all of echo, one for its port 81, one of another namespace."""
    made = RouteWorld()
    echo = Service(
        name=ServiceName("demo/echo"),
        source="kubernetes",
        ports=(Port("c", 80, "UDP"), Port("http-a", 80), Port("http-b", 81)),
        cluster_ips=(made.cluster_ip(),),
    )
    made.put(tables.SERVICES, echo).service("demo/v2", "10.1.1.9:80")
    return made.routes(
        route(TO_ECHO, name="demo/every"),
        route(
            "parentRefs: [{group: '', kind: Service, name: echo, port: 81}]\n"
            "rules: [{backendRefs: [{name: v2, port: 80}]}]",
            name="demo/on-81",
        ),
        route(
            "parentRefs: [{group: '', kind: Service, name: echo, namespace: demo}]\nrules: [{}]", name="shop/consumer"
        ),
    )


def refuse(made: RouteWorld, type_: ResourceType, name: str, error: str = "no") -> None:
    made.put(tables.XDS_REFUSED, RefusedResource(type=type_, name=name, version="1", owner="", error=error))


def reported(made: RouteWorld) -> list[str]:
    found = refusals.compute(made.db.snapshot(), NODE)
    return [f"{each.name} for {each.service}" for each in found.routes] if found is not None else []


def test_nothing_is_reported_while_nothing_is_refused() -> None:
    assert refusals.compute(world().db.snapshot(), NODE) is None


def test_refused_routes_of_a_port_name_each_route_that_they_hold() -> None:
    made = world()
    refuse(made, "routes", "demo/echo:80", "no argument for\nrepetition operator\n")
    assert reported(made) == ["demo/every for demo/echo"]
    refuse(made, "routes", "demo/echo:81")
    assert reported(made) == ["demo/every for demo/echo", "demo/on-81 for demo/echo"]
    found = refusals.compute(made.db.snapshot(), NODE)
    assert found is not None
    assert found.routes[0].message == "routes demo/echo:80: no argument for repetition operator"


def test_of_refused_routes_those_are_named_that_changed_where_that_is_known() -> None:
    made = world()
    row = RefusedResource(
        type="routes", name="demo/echo:81", version="1", owner="", error="no", changed=("HTTPRoute demo/on-81",)
    )
    made.put(tables.XDS_REFUSED, row)
    assert reported(made) == ["demo/on-81 for demo/echo"]
    made.put(tables.XDS_REFUSED, replace(row, changed=("HTTPRoute demo/gone",)))
    assert reported(made) == ["demo/every for demo/echo", "demo/on-81 for demo/echo"]


def test_refused_routes_of_callers_of_a_namespace_name_its_routes_alone() -> None:
    made = world()
    refuse(made, "routes", "demo/echo:80/shop")
    assert reported(made) == ["shop/consumer for demo/echo"]


def test_a_refused_listener_names_the_routes_of_its_port_and_callers() -> None:
    made = world()
    refuse(made, "listener", "demo/echo:80")
    assert reported(made) == ["demo/every for demo/echo"]
    refuse(made, "listener", "demo/echo:81/shop")
    assert reported(made) == ["demo/every for demo/echo", "shop/consumer for demo/echo"]


def test_a_refused_cluster_names_the_routes_that_lead_there() -> None:
    made = world()
    refuse(made, "cluster", "demo/v2:80")
    assert reported(made) == ["demo/on-81 for demo/echo"]
    made.routes(
        route(
            "parentRefs: [{group: '', kind: Service, name: v2}]\n"
            "rules: [{backendRefs: [{group: isthmus.io, kind: Cluster, name: c1}]}]",
            name="demo/to-a-cluster",
        )
    )
    assert reported(made) == ["demo/on-81 for demo/echo", "demo/to-a-cluster for demo/v2"]


def test_what_is_no_longer_sent_is_reported_no_more() -> None:
    made = world()
    refuse(made, "routes", "demo/echo:80")
    made.delete(tables.ROUTES, *made.rows(tables.ROUTES))
    assert reported(made) == []


def test_a_report_names_its_node_and_is_bounded() -> None:
    made = world().put(tables.NODES, Node(NODE, uid="u1"))
    made.routes(*(route(TO_ECHO, name=f"demo/r{number:03}") for number in range(MAX_REFUSALS + 10)))
    refuse(made, "routes", "demo/echo:80", "x" * 10_000)
    found = refusals.compute(made.db.snapshot(), NODE)
    assert found is not None
    assert (found.name, found.uid, len(found.routes)) == (NODE, "u1", MAX_REFUSALS)
    assert {len(each.message) for each in found.routes} == {MAX_REFUSAL}


def test_a_report_goes_with_its_node_where_that_is_known() -> None:
    refused = RouteRefusal("HTTPRoute", ServiceName("demo/r"), ServiceName("demo/echo"), "no")
    assert "ownerReferences" not in refusals.body(NodeRefusals(name=NODE, routes=(refused,)))["metadata"]
    made = refusals.body(NodeRefusals(name=NODE, uid="u1", routes=(refused,)))
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u1"}]
    assert made["routes"] == [
        {
            "kind": "HTTPRoute",
            "namespace": "demo",
            "name": "r",
            "service": "demo/echo",
            "message": "no",
            "reason": "RefusedByEnvoy",
        }
    ]


@pytest.mark.looptime
async def test_a_listener_that_is_tried_again_and_refused_again_is_no_change_of_the_report() -> None:
    db = Database(
        *(tables.ROUTES, tables.NODES, tables.ATTACHMENTS, tables.PROXY_LISTENERS, tables.ROUTE_PARTS, tables.XDS),
        *(tables.XDS_REFUSED, tables.XDS_SERVED, *REPORTED),
    )
    refused = RefusedResource(
        type="listener", name="demo/echo:80", version="1", owner="", error="cannot bind: Address already in use"
    )
    with db.write() as txn:
        refusing = route(TO_ECHO)
        txn.put(tables.ROUTES, refusing)
        ports = (PortRoutes(80, "", (refusing.key,), refusing.owner, refusing.created, refusing.size),)
        txn.put(tables.ATTACHMENTS, Attachment(ServiceName("demo/echo"), ports))
        txn.put(tables.XDS, Resource(type="listener", name=refused.name, version="1", body=b"", unit=refused.name))
        txn.put(tables.XDS_REFUSED, refused)
    task = asyncio.create_task(follow_refusals(db, NODE, db.initializer(tables.ROUTE_REFUSALS, PROXY)))
    await asyncio.sleep(60)
    assert db.snapshot().initialized(tables.ROUTE_REFUSALS)
    [row] = db.snapshot().all(tables.ROUTE_REFUSALS)
    assert row.routes[0].message == "listener demo/echo:80: cannot bind: Address already in use"
    written = db.snapshot().revision(tables.ROUTE_REFUSALS)
    for _ in range(5):
        with db.write() as txn:
            txn.delete(tables.XDS_REFUSED, ("listener", refused.name))
        await asyncio.sleep(0.5)
        with db.write() as txn:
            txn.put(tables.XDS_REFUSED, refused)
        await asyncio.sleep(30)
    assert db.snapshot().revision(tables.ROUTE_REFUSALS) == written
    with db.write() as txn:
        txn.delete(tables.XDS_REFUSED, ("listener", refused.name))
    await asyncio.sleep(30)
    assert list(db.snapshot().all(tables.ROUTE_REFUSALS)) == []
    task.cancel()


@pytest.mark.needs("envoy")
async def test_what_the_real_envoy_refuses_of_a_route_is_reported_until_it_takes_it(tmp_path: Path) -> None:
    rows = RouteWorld().service("demo/echo", "127.0.0.1:9").routes(route(TO_ECHO))
    [address] = rows.addresses
    with socket.create_server((address, rows.listener_port("demo/echo"))):
        async with envoy_world(tmp_path / "envoy", db=rows.db), asyncio.timeout(120):
            now = await rows.db.until(lambda now: refusals.compute(now, NODE) is not None)
            found = refusals.compute(now, NODE)
            assert found is not None
            [refused] = found.routes
            assert (refused.kind, refused.name, refused.service) == ("HTTPRoute", "demo/route", "demo/echo")
            assert refused.message.startswith("listener demo/echo:80: ")
            assert "Address already in use" in refused.message
            del now
    async with envoy_world(tmp_path / "envoy", db=rows.db), asyncio.timeout(120):
        await rows.db.until(lambda now: bool(now.all(tables.XDS_SERVED)) and refusals.compute(now, NODE) is None)
