"""What the own cluster publishes, in a real etcd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from peers.etcd_server import EtcdServer

from isthmus.clusterset.publishing import targets as publishing
from isthmus.clusterset.publishing.publisher import TIMINGS, Publisher, PublisherTimings
from isthmus.clusterset.records import keys
from isthmus.clusterset.records.signing import NONE, Signing
from isthmus.config import ClusterSection
from isthmus.etcd import KeyValue, Lease, Listing, Session
from isthmus.mcs import exports, records
from isthmus.model import tables
from isthmus.model.drains import Drain, Draining
from isthmus.model.mcs import Merged, Record
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, EndpointSet, ExportMark, Namespace, Port, Service
from isthmus.reflector import Transient
from isthmus.statedb import Database, Derivations, Initializer

OWN = ClusterSection(name="c1", id=1, network="blue", region="eu", zone="eu-1")
NAME = ServiceName("demo/echo")
HTTP = Port("http", 80)
CREATED = "2026-01-01T00:00:00Z"
SYNCED = "cilium/synced/c1/cilium/state/"
AT_ONCE = PublisherTimings(after_a_foreign_write=0.05)


@pytest.fixture
def shared_etcd(each_shared_etcd: EtcdServer) -> EtcdServer:
    """Everything here is asked of every etcd of this machine."""
    return each_shared_etcd


class Cluster:
    """The own cluster's tables, filled as its sources would."""

    def __init__(self) -> None:
        self.db = Database(
            tables.SERVICES,
            tables.ENDPOINT_SETS,
            tables.EXPORT_MARKS,
            tables.NAMESPACES,
            tables.OWN_EXPORTS,
            tables.MERGED,
            tables.RECORDS,
            tables.REFUSALS,
            tables.DRAINING,
        )
        self.source: Initializer = self.db.initializer(tables.SERVICES, "kubernetes")

    def put(self, *rows: tuple[Any, Any]) -> None:
        with self.db.write() as txn:
            for table, row in rows:
                txn.put(table, row)

    def export(self, name: str = NAME, *addresses: str) -> None:
        service = ServiceName(name)
        endpoints = tuple(Endpoint(address, (Port("http", 8080),)) for address in addresses)
        self.put(
            (tables.NAMESPACES, Namespace(name.split("/")[0])),
            (tables.SERVICES, Service(name=service, source="kubernetes", ports=(HTTP,), cluster_ips=("10.96.0.7",))),
            (tables.EXPORT_MARKS, ExportMark(name=service, created=CREATED)),
            (tables.MERGED, Merged(name=service, type="ClusterSetIP", ports=(HTTP,), clusters=(ClusterName("c1"),))),
            (
                tables.ENDPOINT_SETS,
                EndpointSet(
                    service=service, cluster=ClusterName("c1"), source="kubernetes", part="a", endpoints=endpoints
                ),
            ),
        )

    def unexport(self, name: str = NAME) -> None:
        with self.db.write() as txn:
            txn.delete(tables.EXPORT_MARKS, ServiceName(name))

    def complete(self) -> None:
        with self.db.write() as txn:
            self.source.complete(txn)


@asynccontextmanager
async def publishing_cluster(
    session: Session,
    cluster: Cluster,
    *,
    timings: PublisherTimings = TIMINGS,
    signing: Callable[[], Signing] | None = None,
) -> AsyncIterator[Publisher]:
    publisher = Publisher(cluster.db, session, OWN, timings=timings, signing=signing)
    own = exports.derived(ClusterName("c1"), default_global=True)
    derivations = Derivations(cluster.db, own, records.derived(ClusterName("c1"), 1))
    tasks = [asyncio.create_task(derivations.run()), asyncio.create_task(publisher.run())]
    try:
        yield publisher
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks), [task.exception() for task in tasks if not task.cancelled()]


async def appears(session: Session, key: str) -> KeyValue:
    async with asyncio.timeout(60):
        while True:
            try:
                if (kv := await session.get(key)) is not None:
                    return kv
            except Transient:
                pass
            await asyncio.sleep(0.02)


async def vanishes(session: Session, key: str) -> None:
    async with asyncio.timeout(60):
        while await session.get(key) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def service_key(name: str = NAME, cluster: str = "c1") -> str:
    return f"cilium/state/services/v1/{cluster}/{derived(ServiceName(name))}"


def export_key(name: str = NAME) -> str:
    return f"cilium/state/serviceexports/v1/c1/{name}"


async def test_an_export_is_published_with_its_endpoints_under_the_derived_name(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1", "10.1.1.2")
    async with publishing_cluster(etcd, cluster):
        record = json.loads((await appears(etcd, service_key())).value)
        assert record["backends"] == {a: {"http": {"Protocol": "TCP", "Port": 8080}} for a in ("10.1.1.1", "10.1.1.2")}
        assert (record["cluster"], record["clusterID"], record["name"]) == ("c1", 1, derived(NAME).split("/")[1])
        export = json.loads((await appears(etcd, export_key())).value)
        assert (export["name"], export["namespace"], export["exportCreationTimestamp"]) == ("echo", "demo", CREATED)


async def test_the_configuration_has_what_readers_need(etcd: Session) -> None:
    async with publishing_cluster(etcd, Cluster()):
        config = json.loads((await appears(etcd, "cilium/cluster-config/c1")).value)
        capabilities = {"syncedCanaries": True, "maxConnectedClusters": 255, "serviceExportsEnabled": True}
        assert config == {"id": 1, "capabilities": capabilities}
        description = json.loads((await appears(etcd, "isthmus/clusters/v1/c1")).value)
        assert (description["network"], description["region"], description["zone"]) == ("blue", "eu", "eu-1")


class LateAnswer(Session):
    """The first answer for one key comes when ``released`` is set."""

    late = ""
    asked = False
    released: asyncio.Event

    async def get(self, key: str) -> KeyValue | None:
        found = await super().get(key)
        if key == self.late and not self.asked:
            self.asked = True
            await self.released.wait()
        return found


async def test_a_drain_that_begins_while_the_description_is_written_stays_published(shared_etcd: EtcdServer) -> None:
    key = "isthmus/clusters/v1/c1"
    async with LateAnswer([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.put(key, b"{}")
        session.late, session.released = key, asyncio.Event()
        cluster = Cluster()
        async with publishing_cluster(session, cluster):
            async with asyncio.timeout(60):
                while not session.asked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            drain = Drain(kind="Cluster", target="c1", started=CREATED)
            cluster.put((tables.DRAINING, Draining(by=ClusterName("c1"), drain=drain)))
            await asyncio.sleep(0.2)  # the second writer would write in the meantime
            session.released.set()
            await asyncio.sleep(0.2)
            assert json.loads((await appears(session, key)).value)["drains"][0]["target"] == "c1"


async def test_a_key_of_signatures_is_published_with_the_description_and_so_is_the_next_one(etcd: Session) -> None:
    key, current = keys.description(ClusterName("c1")), [NONE]
    timings = PublisherTimings(signing_every=0.05)
    cluster = Cluster()
    cluster.complete()
    async with publishing_cluster(etcd, cluster, timings=timings, signing=lambda: current[0]):
        assert "signing" not in json.loads((await appears(etcd, key)).value)
        for current[0] in (Signing("first", True), Signing("second", True)):
            async with asyncio.timeout(60):
                while current[0].key.encode() not in (await appears(etcd, key)).value:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        described = json.loads((await appears(etcd, key)).value)
        assert described["signing"] == {"key": "second", "verifies": True}
        assert described["region"] == "eu"


async def test_no_canary_before_the_sources_are_complete_and_the_data_is_there(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, service_key())
        assert await etcd.get(f"{SYNCED}services/v1") is None
        cluster.export("demo/late", "10.1.1.9")
        cluster.complete()
        canary = await appears(etcd, f"{SYNCED}services/v1")
        late = await etcd.get(service_key("demo/late"))
        assert late is not None
        assert late.create_revision < canary.create_revision


async def test_canaries_are_there_for_kinds_that_only_others_publish(etcd: Session) -> None:
    cluster = Cluster()
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, f"{SYNCED}endpointslices/v1")
        kinds = {kv.key.removeprefix(SYNCED) for kv in (await etcd.list(SYNCED)).kvs}
        assert {"services/v1", "serviceexports/v1", "nodes/v1", "identities/v1", "ip/v1"} <= kinds


async def test_stale_keys_of_an_earlier_process_are_gone_when_the_canary_comes(etcd: Session) -> None:
    unwanted = [service_key("demo/old"), export_key("demo/old")]
    foreign = [service_key("demo/old", cluster="c11"), service_key("demo/old", cluster="c2")]
    for key in (*unwanted, *foreign):
        await etcd.put(key, b"{}")
    cluster = Cluster()
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, f"{SYNCED}services/v1")
        assert [await etcd.get(key) for key in unwanted] == [None, None]
        assert None not in [await etcd.get(key) for key in foreign]


async def test_no_canary_comes_before_stale_keys_are_deleted_however_late_that_is(
    etcd: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune, released = publishing.KeyTarget.prune, asyncio.Event()

    async def late(self: publishing.KeyTarget[Record], rows: Iterable[Record]) -> str:
        await released.wait()
        return await prune(self, rows)

    monkeypatch.setattr(publishing.KeyTarget, "prune", late)
    start = await etcd.put(service_key("demo/old"), b"{}")
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, service_key())
        await asyncio.sleep(0.3)  # what does not wait for the deletion has written its canaries by now
        released.set()
        assert await order(etcd, start, service_key("demo/old"), f"{SYNCED}services/v1") == [
            service_key("demo/old"),
            f"{SYNCED}services/v1",
        ]


async def test_what_another_client_deletes_while_a_publisher_begins_is_there_before_the_canary(
    etcd: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between what it compared with the store and the revision from which on it watches for such changes."""
    read, config = Session.read, keys.config(ClusterName("c1"))

    async def disturbed(self: Session, key: str) -> Listing:
        if key == config:
            await etcd.delete(service_key())
        return await read(self, key)

    monkeypatch.setattr(Session, "read", disturbed)
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        canary = await appears(etcd, f"{SYNCED}services/v1")
        record = await etcd.get(service_key())
    assert record is not None
    assert record.create_revision < canary.create_revision


async def order(etcd: Session, after: int, *wanted: str) -> list[str]:
    """The keys in the order in which they change for the first time after a revision."""
    seen: list[str] = []
    async with asyncio.timeout(60), aclosing(etcd.watch("cilium/", after + 1)) as batches:
        async for batch in batches:
            seen += [event.key for event in batch.events if event.key in wanted and event.key not in seen]
            if len(seen) == len(wanted):
                break
    return seen


async def test_stale_keys_stay_while_a_source_has_not_answered(etcd: Session) -> None:
    await etcd.put(service_key("demo/old"), b"{}")
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, service_key())
        assert await etcd.get(service_key("demo/old")) is not None


async def test_a_second_process_writes_no_record_that_has_not_changed(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, f"{SYNCED}ip/v1")
    before = await etcd.list("cilium/state/")
    config = await etcd.get("cilium/cluster-config/c1")
    await etcd.delete_prefix("cilium/synced/")
    restarted = Cluster()
    restarted.export(NAME, "10.1.1.1")
    restarted.complete()
    async with publishing_cluster(etcd, restarted):
        await appears(etcd, f"{SYNCED}ip/v1")
    assert (await etcd.list("cilium/state/")).kvs == before.kvs
    assert await etcd.get("cilium/cluster-config/c1") == config


async def test_an_unexport_withdraws_both_records(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    async with publishing_cluster(etcd, cluster):
        await appears(etcd, service_key())
        await appears(etcd, export_key())
        cluster.unexport()
        await vanishes(etcd, service_key())
        await vanishes(etcd, export_key())


async def test_only_the_heartbeat_has_a_lease(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster):
        assert (await appears(etcd, "cilium/.heartbeat")).lease
        await appears(etcd, f"{SYNCED}ip/v1")
        leased = [kv.key for kv in (await etcd.list("")).kvs if kv.lease]
        assert leased == ["cilium/.heartbeat"]


async def test_a_deleted_configuration_is_written_again(etcd: Session) -> None:
    cluster = Cluster()
    cluster.complete()
    async with publishing_cluster(etcd, cluster, timings=AT_ONCE):
        await appears(etcd, f"{SYNCED}endpointslices/v1")
        await etcd.delete("cilium/cluster-config/c1")
        await appears(etcd, "cilium/cluster-config/c1")


@pytest.mark.parametrize("lost", ["cilium/state/", "cilium/synced/", "isthmus/", "cilium/"])
async def test_a_deleted_key_of_ours_is_written_again_at_once(etcd: Session, lost: str) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster, timings=AT_ONCE):
        await appears(etcd, f"{SYNCED}endpointslices/v1")
        before = [kv.key for kv in (await etcd.list("")).kvs if not kv.lease]
        for _ in range(2):
            await etcd.delete_prefix(lost)
            for key in before:
                await appears(etcd, key)


async def test_a_foreign_key_below_our_name_is_deleted_at_once(etcd: Session) -> None:
    cluster = Cluster()
    cluster.export(NAME, "10.1.1.1")
    cluster.complete()
    async with publishing_cluster(etcd, cluster, timings=AT_ONCE):
        await appears(etcd, f"{SYNCED}endpointslices/v1")
        true = await appears(etcd, service_key())
        await etcd.put("cilium/state/services/v1/c1/demo/forged", b"{}")
        await etcd.put(service_key(), b"{}")
        async with asyncio.timeout(60):
            while (stored := await etcd.get(service_key())) is None or stored.value != true.value:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while await etcd.get("cilium/state/services/v1/c1/demo/forged") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_our_own_writes_are_not_taken_for_foreign_ones(etcd: Session) -> None:
    cluster = Cluster()
    cluster.complete()
    async with publishing_cluster(etcd, cluster) as publisher:
        await appears(etcd, f"{SYNCED}endpointslices/v1")
        canary = await appears(etcd, f"{SYNCED}services/v1")
        for n in range(1, 50):
            cluster.export(NAME, f"10.1.1.{n}")
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            while (stored := await etcd.get(service_key())) is None or b"10.1.1.49" not in stored.value:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert publisher.outcome.startswith("published")
        assert await appears(etcd, f"{SYNCED}services/v1") == canary


async def test_a_store_that_lost_everything_gets_everything_again_and_the_canary_last(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        cluster = Cluster()
        cluster.export(NAME, "10.1.1.1")
        cluster.complete()
        async with publishing_cluster(session, cluster):
            await appears(session, f"{SYNCED}endpointslices/v1")
            own_etcd.stop()
            own_etcd.wipe()
            own_etcd.start()
            canary = await appears(session, f"{SYNCED}services/v1")
            record = await session.get(service_key())
            assert record is not None
            assert record.create_revision < canary.create_revision


async def test_while_the_etcd_is_down_nothing_counts_as_published(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        cluster = Cluster()
        cluster.complete()
        async with publishing_cluster(session, cluster) as publisher, asyncio.timeout(60):
            for published, then in ((True, own_etcd.stop), (False, own_etcd.start), (True, lambda: None)):
                while publisher.published is not published:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                then()


async def test_an_etcd_that_starts_late_gets_everything(own_etcd: EtcdServer) -> None:
    own_etcd.stop()
    async with Session([own_etcd.endpoint]) as session:
        cluster = Cluster()
        cluster.export(NAME, "10.1.1.1")
        cluster.complete()
        async with publishing_cluster(session, cluster) as publisher:
            async with asyncio.timeout(60):
                while "cannot publish" not in publisher.outcome:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            own_etcd.start()
            await appears(session, f"{SYNCED}services/v1")
            assert await session.get(service_key()) is not None


async def test_a_record_the_store_will_never_take_keeps_no_other_from_being_whole(etcd: Session) -> None:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    target = publishing.records_target(etcd, ClusterName("c1"))
    rows = [Record("services", ServiceName(f"demo/s{n}"), b"x") for n in range(5)]
    large = Record("services", ServiceName("demo/large"), b"x" * 3_000_000)
    assert db.tables
    assert await target.update([*rows[:2], large, *rows[2:]]) == {}
    assert len((await etcd.list("cilium/state/services/v1/c1/")).kvs) == 5
    assert list(target.owned.refused) == ["cilium/state/services/v1/c1/demo/large"]


async def test_a_thousand_records_go_in_few_transactions(etcd: Session) -> None:
    target = publishing.records_target(etcd, ClusterName("c1"))
    rows = [Record("services", ServiceName(f"demo/s{n}"), b"x" * 2_000) for n in range(1_000)]
    before = (await etcd.status()).revision
    assert await target.update(rows) == {}
    assert (await etcd.status()).revision - before == 10
    assert await target.update(rows) == {}
    assert (await etcd.status()).revision - before == 10
    assert await target.delete(rows) == {}
    assert (await etcd.list("cilium/state/")).kvs == []


@pytest.mark.slow
async def test_a_publisher_that_dies_is_known_to_be_gone_within_its_lease(etcd: Session) -> None:
    timings = PublisherTimings(heartbeat_ttl=6, renew_every=0.5)
    async with publishing_cluster(etcd, Cluster(), timings=timings):
        first = await appears(etcd, "cilium/.heartbeat")
        await asyncio.sleep(7)
        kept = await etcd.get("cilium/.heartbeat")
        assert kept is not None, "the lease is renewed without a write"
        assert kept.mod_revision == first.mod_revision
    async with asyncio.timeout(60):
        while await etcd.get("cilium/.heartbeat") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def test_a_heartbeat_whose_lease_was_lost_beats_again(etcd: Session) -> None:
    async with publishing_cluster(etcd, Cluster(), timings=PublisherTimings(heartbeat_every=0.05)):
        first = await appears(etcd, "cilium/.heartbeat")
        revoke = Lease(etcd._transport, lease=first.lease, ttl=1).revoke
        await revoke()
        second = await appears(etcd, "cilium/.heartbeat")
        assert second.lease not in (0, first.lease)
