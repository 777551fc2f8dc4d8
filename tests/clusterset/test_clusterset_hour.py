"""The operator is down for an hour, by the clock of everything here. Nothing of it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from peers.clusterset_peers import Following, Peers, following
from peers.etcd_server import EtcdServer

from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.clusterset.records import endpoints, exports
from isthmus.clusterset.records.keys import HEARTBEAT
from isthmus.config import ClusterSection
from isthmus.etcd import Lease, Session
from isthmus.model import tables
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, Export, Port
from isthmus.statedb import Database

C2, HOUR = ClusterName("c2"), 3600.0
STAYS, GOES, COMES = (ServiceName(f"demo/{name}") for name in ("stays", "goes", "comes"))


STEP = 5.0


class Clock:
    """The time of this process, which a test can let pass: of its loop, its files' age, its leases, its log."""

    def __init__(self) -> None:
        self.ahead = 0.0

    async def passes(self, seconds: float) -> None:
        """Let so much time pass in steps, and everything that is due meanwhile happen."""
        until = self.ahead + seconds
        while self.ahead < until:
            self.ahead += STEP
            await asyncio.sleep(0.002)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved, of_day, monotonic = Clock(), time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: of_day() + moved.ahead)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + moved.ahead)
    return moved


@pytest.fixture
async def etcd(each_shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([each_shared_etcd.endpoint]) as session:
        await each_shared_etcd.ready(session)
        await session.delete_prefix("")
        yield session


@pytest.fixture
def peers(tmp_path: Path, each_shared_etcd: EtcdServer) -> Peers:
    peers = Peers(tmp_path / "clusters", each_shared_etcd.endpoint)
    peers.add("c2")
    return peers


@asynccontextmanager
async def operator(session: Session, *services: ServiceName) -> AsyncIterator[None]:
    """Cluster c2's operator, which publishes these services."""
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    with db.write() as txn:
        for name in services:
            published = [Endpoint("10.2.1.1", (Port("http", 8080),))]
            value = endpoints.encode(name, cluster=C2, cluster_id=2, endpoints=published, frontends={})
            export = Export(cluster=C2, name=name, created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
            txn.put(tables.RECORDS, Record("services", name, value))
            txn.put(tables.RECORDS, Record("serviceexports", name, exports.encode(export)))
    publisher = Publisher(db, session, ClusterSection(name="c2", id=2))
    task = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(60):
            while not publisher.outcome.startswith("published") or await session.get(HEARTBEAT) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def leases_end(session: Session) -> None:
    """As they do by the clock of etcd, which is its own."""
    leases = {kv.lease for kv in (await session.list("")).kvs if kv.lease}
    assert leases, "the heartbeat is leased"
    for lease in leases:
        await Lease(session._transport, lease=lease, ttl=1).revoke()


def names(seen: Following) -> set[str]:
    return set(seen.services())


async def test_its_records_stay_for_readers_that_followed_it_and_for_new_ones(
    etcd: Session, peers: Peers, clock: Clock, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    both = {f"c2:{STAYS}", f"c2:{GOES}"}
    async with following(peers, state=state) as seen:
        async with operator(etcd, STAYS, GOES):
            await seen.state("c2", "ready")
            await seen.until(lambda s: names(seen) == both)
        removed = seen.db.changes(tables.ENDPOINT_SETS)
        removed.next()
        await clock.passes(900)
        await leases_end(etcd)
        await clock.passes(HOUR - 900)
        await etcd.put("noise", b"")
        await seen.state("c2", "silent")
        assert names(seen) == both
        assert not removed.next()[1]
    async with following(peers, state=state) as late:
        await late.state("c2", "ready")
        assert names(late) == both
        assert late.exports() == sorted(both)
        async with operator(etcd, STAYS, COMES):
            await late.until(lambda s: names(late) == {f"c2:{STAYS}", f"c2:{COMES}"})
            await late.until(lambda s: late.exports() == [f"c2:{COMES}", f"c2:{STAYS}"])
            assert await etcd.get("cilium/.heartbeat") is not None
