"""From an API server into tables, over real sockets: what is whole when, what goes with what, what is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clusters.fake_apiserver import FakeApiServer, Reply, running

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus.model import tables as model
from isthmus.model.names import ClusterName
from isthmus.reflector import Reflector
from isthmus.sources import kubernetes
from isthmus.statedb import Database, Snapshot, Table

SERVICES = "/api/v1/namespaces/demo/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"
MCS = "/apis/multicluster.x-k8s.io"
ALL = ("services", "endpoint_sets", "export_marks", "imports", "namespaces", "nodes", "pods")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


@asynccontextmanager
async def following(
    server: FakeApiServer, tables: Collection[str], **options: Any
) -> AsyncIterator[tuple[Database, list[Reflector[Any]]]]:
    declared = [value for value in vars(model).values() if isinstance(value, Table)]
    db = Database(*declared)
    async with kube.Client(Transport(Access(server=server.url))) as client:
        reflectors = kubernetes.reflectors(db, client, tables=tables, cluster=ClusterName("c1"), **options)
        tasks = [asyncio.create_task(each.run()) for each in reflectors]
        try:
            yield db, reflectors
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def names(db: Database, *wanted: str) -> Snapshot:
    """Wait until the services are these."""
    async with asyncio.timeout(60):
        return await db.until(lambda now: {row.name for row in now.all(model.SERVICES)} == set(wanted))


def faults(db: Database) -> set[tuple[str, str]]:
    return {(row.part, row.name) for row in db.snapshot().all(model.FAULTS)}


async def whole(db: Database, *tables: Table[Any, Any]) -> Snapshot:
    async with asyncio.timeout(60):
        return await db.until(lambda now: now.initialized(*tables))


async def test_a_table_is_pending_until_its_first_list_is_whole(server: FakeApiServer) -> None:
    server.page_limit = 1
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/b")
    async with following(server, ["services"]) as (db, _):
        assert db.snapshot().pending(model.SERVICES) == {"kubernetes"}
        snapshot = await whole(db, model.SERVICES)
        assert snapshot.count(model.SERVICES) == 2, "complete and full are one commit"


async def test_every_table_is_filled(server: FakeApiServer) -> None:
    server.put("/api/v1/namespaces/demo")
    server.put("/api/v1/nodes/n1", metadata={"namespace": ""})
    server.put(f"{SERVICES}/echo", spec={"clusterIP": "10.96.0.9"})
    server.put(f"{SLICES}/echo-x1", metadata={"labels": {"kubernetes.io/service-name": "echo"}})
    server.put("/api/v1/namespaces/demo/pods/echo-1", spec={"nodeName": "n1"})
    for resource in ("serviceexports", "serviceimports"):
        server.put(f"{MCS}/v1beta1/namespaces/demo/{resource}/echo")
    server.served = {
        f"{MCS}/v1beta1": ["serviceexports", "serviceimports"],
        "/apis/discovery.k8s.io/v1": ["endpointslices"],
    }
    async with following(server, ALL, node="n1") as (db, _):
        snapshot = await whole(db, *(db.tables[name] for name in ALL))
        assert {name: snapshot.count(db.tables[name]) for name in ALL} == dict.fromkeys(ALL, 1)
    pods = next(request for request in server.asked if request.path == "/api/v1/pods")
    assert pods.query["fieldSelector"] == "spec.nodeName=n1"


async def test_changes_and_deletions_are_followed(server: FakeApiServer) -> None:
    async with following(server, ["services"]) as (db, _):
        await whole(db, model.SERVICES)
        server.put(f"{SERVICES}/a")
        server.put(f"{SERVICES}/b")
        await names(db, "demo/a", "demo/b")
        server.remove(f"{SERVICES}/a")
        await names(db, "demo/b")


async def test_what_vanished_while_nobody_looked_goes(server: FakeApiServer) -> None:
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/b")
    async with following(server, ["services"]) as (db, _):
        stream = await server.watcher()
        server.streams.clear()
        server.remove(f"{SERVICES}/a")
        server.expire()
        stream.end()
        await names(db, "demo/b")


async def test_a_slice_that_changes_its_service_leaves_nothing_behind(server: FakeApiServer) -> None:
    endpoints = [{"addresses": ["10.1.1.5"]}]
    server.put(f"{SLICES}/x", metadata={"labels": {"kubernetes.io/service-name": "a"}}, endpoints=endpoints)
    async with following(server, ["endpoint_sets"]) as (db, _):
        await whole(db, model.ENDPOINT_SETS)
        server.put(f"{SLICES}/x", metadata={"labels": {"kubernetes.io/service-name": "b"}}, endpoints=endpoints)
        async with asyncio.timeout(60):
            await db.until(lambda now: [row.service for row in now.all(model.ENDPOINT_SETS)] == ["demo/b"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"clusterIP": "10.96.0.999"}, "spec.clusterIPs: '10.96.0.999' is not an IP address"),
        ({"clusterIP": 7}, "$.spec.clusterIP"),
    ],
    ids=["a value that cannot be", "a type that cannot be"],
)
async def test_a_bad_object_keeps_its_last_row_and_costs_itself_only(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], said: str
) -> None:
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/bad", spec=spec)
    server.put(f"{SERVICES}/b")
    async with following(server, ["services"]) as (db, _):
        snapshot = await whole(db, model.SERVICES)
        assert snapshot.count(model.SERVICES) == 2
        await server.watcher()
        server.put(f"{SERVICES}/a", spec=spec)
        server.put(f"{SERVICES}/c")
        await names(db, "demo/a", "demo/b", "demo/c")
        assert faults(db) == {("services", "demo/a"), ("services", "demo/bad")}
        server.put(f"{SERVICES}/a", spec={})
        server.put(f"{SERVICES}/bad", spec={})
        await names(db, "demo/a", "demo/b", "demo/bad", "demo/c")
        assert faults(db) == set()
    lines = [line for line in capsys.readouterr().err.splitlines() if said in line]
    assert [("demo/bad" in line, "demo/a" in line) for line in lines] == [(True, False), (False, True)]


async def test_an_object_that_is_nested_deeper_than_any_decoder_goes_costs_no_other(server: FakeApiServer) -> None:
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000

    def nested(name: str) -> bytes:
        return b'{"metadata": {"namespace": "demo", "name": "%s"}, "x": %s}' % (name.encode(), deep)

    items = nested("a") + b', {"metadata": {"namespace": "demo", "name": "b"}}'
    listing = Reply(200, b'{"metadata": {"resourceVersion": "100"}, "items": [' + items + b"]}")
    server.fail(listing, on=lambda request: request.path.endswith("/services"))
    async with following(server, ["services"]) as (db, _):
        await whole(db, model.SERVICES)
        await names(db, "demo/a", "demo/b")
        stream = await server.watcher()
        stream.send(b'{"type": "ADDED", "object": ' + nested("c") + b"}\n")
        server.put(f"{SERVICES}/d")
        await names(db, "demo/a", "demo/b", "demo/c", "demo/d")


async def test_what_is_wrong_with_an_object_is_said_once(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {"clusterIP": "10.96.0.999"}
    server.put(f"{SERVICES}/bad", spec=bad)
    async with following(server, ["services"]) as (db, _):
        await whole(db, model.SERVICES)
        await server.watcher()
        for label in ("one", "two"):
            server.put(f"{SERVICES}/bad", spec=bad, metadata={"labels": {"a": label}})
        server.put(f"{SERVICES}/mark")
        await names(db, "demo/mark")
        assert capsys.readouterr().err.count("object ignored") == 1
        server.put(f"{SERVICES}/bad", spec={})
        server.put(f"{SERVICES}/bad", spec=bad)
        server.put(f"{SERVICES}/mark2")
        await names(db, "demo/bad", "demo/mark", "demo/mark2")
        assert capsys.readouterr().err.count("object ignored") == 1


async def test_a_kind_that_is_not_served_stays_pending_and_is_said(server: FakeApiServer) -> None:
    server.served = {"/apis/discovery.k8s.io/v1": []}
    async with following(server, ["services", "imports"]) as (db, [services, imports]):
        await whole(db, model.SERVICES)
        async with asyncio.timeout(60):
            while imports.state.failures < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert services.state.failures == 0
        assert "not served in v1beta1, v1alpha1" in imports.state.last_failure
        assert db.snapshot().pending(model.IMPORTS) == {"kubernetes"}
        server.served[f"{MCS}/v1alpha1"] = ["serviceimports"]
        server.put(f"{MCS}/v1alpha1/namespaces/demo/serviceimports/echo")
        snapshot = await whole(db, model.IMPORTS)
        assert [row.name for row in snapshot.all(model.IMPORTS)] == ["demo/echo"]


async def test_an_equal_list_changes_nothing(server: FakeApiServer) -> None:
    server.put(f"{SERVICES}/a")
    async with following(server, ["services"]) as (db, [reflector]):
        await whole(db, model.SERVICES)
        revision = db.snapshot().revision(model.SERVICES)
        stream = await server.watcher()
        server.expire()
        stream.end()
        async with asyncio.timeout(60):
            while reflector.state.lists < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert db.snapshot().revision(model.SERVICES) == revision


async def test_a_traffic_policy_that_cannot_be_decoded_is_a_fault_of_its_name_and_field(server: FakeApiServer) -> None:
    server.served["/apis/isthmus.io/v1alpha1"] = ["trafficpolicies"]
    path = "/apis/isthmus.io/v1alpha1/namespaces/demo/trafficpolicies"
    target = {"kind": "Service", "name": "echo"}
    server.put(f"{path}/good", spec={"targetRef": target})
    server.put(f"{path}/bad", spec={"targetRef": target, "tiers": "nonsense"}, metadata={"uid": "u7"})
    async with following(server, ["policies", "observed"]) as (db, _):
        async with asyncio.timeout(60):
            await db.until(lambda now: now.count(model.POLICIES) == 1 and now.count(model.FAULTS) == 2)
        found = {(row.part, row.kind, row.name, row.cause, row.uid) for row in db.snapshot().all(model.FAULTS)}
        kind = "trafficpolicies.isthmus.io"
        assert found == {(part, kind, "demo/bad", "unreadable", "u7") for part in ("policies", "observed")}
        assert all("$.spec.tiers" in row.error for row in db.snapshot().all(model.FAULTS))
        await server.watcher()
        server.put(f"{path}/bad", spec={"targetRef": target})
        async with asyncio.timeout(60):
            await db.until(lambda now: now.count(model.POLICIES) == 2 and now.count(model.FAULTS) == 0)
