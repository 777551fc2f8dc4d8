"""The table of what is drained now follows objects, nodes, peers and the time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Drain, DrainRequest
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Node, Port
from isthmus.processes.draining import DrainClock, sentences
from isthmus.statedb import Database
from isthmus.times import timestamp

C1, C2 = ClusterName("c1"), ClusterName("c2")
NOW = datetime(2026, 11, 22, 7, 0, tzinfo=UTC)


class World:
    def __init__(self, *, cordoned: bool = False) -> None:
        self.now = NOW
        self.db = Database(tables.DRAINS, tables.DRAINING, tables.CLUSTERS, tables.NODES, tables.ENDPOINT_SETS)
        self.drains = self.db.initializer(tables.DRAINS, "kubernetes")
        self.peer = self.db.initializer(tables.CLUSTERS, "clusterset/c2")
        self.clock = DrainClock(self.db, C1, cordoned=cordoned, now=lambda: self.now)

    def put(self, *rows: Cluster | Node | DrainRequest | EndpointSet) -> None:
        of = {Cluster: tables.CLUSTERS, Node: tables.NODES, DrainRequest: tables.DRAINS}
        with self.db.write() as txn:
            for row in rows:
                txn.put(of.get(type(row), tables.ENDPOINT_SETS), row)  # type: ignore[arg-type]

    def drained(self) -> dict[tuple[str, str], int]:
        self.clock.step()
        return {(row.by, row.drain.target): row.left for row in self.db.snapshot().all(tables.DRAINING)}


def request(target: str, **fields: object) -> DrainRequest:
    drain = Drain(kind="Cluster", target=target, reason=f"Drain a/{target}", started=timestamp(NOW), **fields)  # type: ignore[arg-type]
    return DrainRequest(name=ServiceName(f"a/{target}"), drain=drain)


def test_own_drains_and_those_of_peers_are_in_force() -> None:
    world = World()
    world.put(request("c1"), Cluster(name=C2, drains=(Drain(kind="Cluster", target="c2"),)))
    assert world.drained() == {("c1", "c1"): 0, ("c2", "c2"): 0}
    assert sentences(world.db.snapshot())[0] == "cluster c1 is drained since 2026-11-22T07:00:00Z (Drain a/c1 in c1)"
    with world.db.write() as txn:
        txn.delete(tables.DRAINS, ServiceName("a/c1"))
        txn.put(tables.CLUSTERS, Cluster(name=C2))
    assert world.drained() == {}


def test_a_drain_that_is_invalid_is_not() -> None:
    world = World()
    world.put(DrainRequest(name=ServiceName("a/b"), drain=Drain(), invalid="spec.ramp: …"))
    assert world.drained() == {}


def test_a_ramp_goes_on_by_time_alone_and_says_when() -> None:
    world = World()
    world.put(request("c1", ramp=100))
    assert world.clock.step() == NOW + timedelta(seconds=10)
    assert world.drained() == {("c1", "c1"): 95}
    world.now = NOW + timedelta(seconds=95)
    assert world.drained() == {("c1", "c1"): 5}
    world.now = NOW + timedelta(seconds=100)
    assert world.drained() == {("c1", "c1"): 0}
    assert world.clock.step() is None


def test_nobody_takes_the_table_for_complete_before_the_first_list_of_drains() -> None:
    world = World()
    world.clock.step()
    assert not world.db.snapshot().initialized(tables.DRAINING)
    with world.db.write() as txn:
        world.peer.complete(txn)
    world.clock.step()
    assert not world.db.snapshot().initialized(tables.DRAINING)
    with world.db.write() as txn:
        world.drains.complete(txn)
    world.clock.step()
    assert world.db.snapshot().initialized(tables.DRAINING)


def test_the_table_is_complete_with_the_drains_of_the_peers_descriptions() -> None:
    world = World()
    with world.db.write() as txn:
        world.drains.complete(txn)
        txn.put(tables.CLUSTERS, Cluster(name=C2))  # as an earlier process kept it
    world.clock.step()
    assert not world.db.snapshot().initialized(tables.DRAINING)
    with world.db.write() as txn:
        txn.put(tables.CLUSTERS, Cluster(name=C2, drains=(Drain(kind="Cluster", target="c2"),)))
        world.peer.complete(txn)
    assert world.drained() == {("c2", "c2"): 0}
    assert world.db.snapshot().initialized(tables.DRAINING)


async def test_a_deleted_node_is_drained_while_endpoints_name_it() -> None:
    world = World()
    ports = (Port("http", 80),)
    ends = tuple(Endpoint(f"10.1.0.{n}", ports, node=f"n{n}") for n in (1, 2))
    world.put(EndpointSet(service=ServiceName("demo/echo"), cluster=C1, source="kubernetes", part="a", endpoints=ends))
    world.put(Node("n1"), Node("n2"), Node("n3"))
    task = asyncio.create_task(world.clock.run())
    await asyncio.sleep(0)
    with world.db.write() as txn:
        txn.delete(tables.NODES, "n1")
        txn.delete(tables.NODES, "n3")  # nothing runs there
    found = await world.db.until(lambda now: now.count(tables.DRAINING) > 0)
    assert [row.drain.target for row in found.all(tables.DRAINING)] == ["n1"]
    world.put(Node("n1"))
    await world.db.until(lambda now: now.count(tables.DRAINING) == 0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_cordon_drains_where_that_is_configured() -> None:
    for cordoned in (False, True):
        world = World(cordoned=cordoned)
        world.put(Node("n1", cordoned=True))
        assert bool(world.drained()) is cordoned
