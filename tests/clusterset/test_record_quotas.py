"""How the namespaces of one peer share what is taken of its records: live, in lists, and over restarts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from peers.clusterset_peers import QUICK, Peers, announce, export, following, service

from isthmus.clusterset.peers import gate
from isthmus.clusterset.peers.sinks import RecordSink
from isthmus.clusterset.records import quotas
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS
from isthmus.clusterset.records.quotas import Quota, Size
from isthmus.clusterset.records.refusals import RefusedRecords
from isthmus.config import ClustersetSection
from isthmus.etcd import KeyValue, Session
from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import
from isthmus.reflector import Event
from isthmus.statedb import Database

C2 = ClusterName("c2")
FIVE = structs.replace(QUICK, save_after=0.01)

namespaces = st.sampled_from(["app", "demo", "team"])
records = st.dictionaries(
    st.tuples(namespaces, st.integers(0, 20)).map(lambda each: f"{each[0]}/s{each[1]}"),
    st.builds(Size, st.integers(1, 30), st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"])),
    max_size=40,
)
rooms = st.integers(0, 300)
HOSTILE = {f"aaa/s{number}": Size(7) for number in range(1_000)}


def quota(room: int, *, divisible: bool = True) -> Quota:
    return Quota(room, unit="endpoints", option="clusterset.max_endpoints", listed=1, divisible=divisible)


def taken(quota: Quota, sizes: dict[str, Size], imported: frozenset[str] = frozenset()) -> dict[str, int]:
    """What a list of these records takes; it is held afterwards."""
    divided = quota.divided(sizes, imported)
    quota.retain(divided)
    for key, units in divided.items():
        quota.hold(key, units)
    assert quota.used <= max(quota.room, 0)
    return divided


@settings(deadline=None)
@given(records, rooms, st.booleans())
def test_records_of_a_hostile_namespace_take_nothing_of_what_other_records_have(
    sizes: dict[str, Size], room: int, divisible: bool
) -> None:
    of_peer = quota(room, divisible=divisible)
    before = taken(of_peer, sizes)
    after = taken(of_peer, HOSTILE | sizes)
    assert {key: units for key, units in after.items() if key in before} == before


@settings(deadline=None)
@given(records, st.integers(40, 300))
def test_records_of_a_hostile_namespace_take_no_more_than_its_share_in_a_first_list(
    sizes: dict[str, Size], room: int
) -> None:
    got: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for key, units in taken(quota(room), HOSTILE | sizes).items():
        got[key.partition("/")[0]] += units
    for key, size in sizes.items():
        wanted[key.partition("/")[0]] += size.units
    for namespace, units in wanted.items():
        assert got[namespace] == units or got["aaa"] <= got[namespace] + max(1, room // 256)


@settings(deadline=None)
@given(records, rooms)
def test_a_restarted_process_takes_the_records_that_the_imports_show(sizes: dict[str, Size], room: int) -> None:
    before = taken(quota(room, divisible=False), sizes)
    after = taken(quota(room, divisible=False), HOSTILE | sizes, frozenset(before))
    assert {key: units for key, units in after.items() if key in before} == before


@settings(deadline=None)
@given(records, rooms, st.randoms())
@pytest.mark.slow
def test_the_order_of_a_list_does_not_matter(sizes: dict[str, Size], room: int, random: object) -> None:
    shuffled = [*(HOSTILE | sizes).items()]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert taken(quota(room), HOSTILE | sizes) == taken(quota(room), dict(shuffled))


def test_of_one_namespace_the_oldest_exports_are_taken() -> None:
    sizes = {f"demo/s{n}": Size(1, f"2026-01-{30 - n:02}T00:00:00Z") for n in range(20)}
    assert set(taken(quota(10, divisible=False), sizes)) == {f"demo/s{n}" for n in range(12, 20)}


async def test_a_namespace_that_exports_thousands_displaces_no_export_of_another_live_or_at_a_restart(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    await export(etcd, "c2", "demo/db")
    await announce(etcd, "c2", 2)
    async with following(peers, max_imports=10) as seen:
        await seen.state("c2", "ready")
        for number in range(30):
            await export(etcd, "c2", f"aaa/e{number:02}", exportCreationTimestamp="2020-01-01T00:00:00Z")
        await seen.until(lambda s: seen.cluster("c2").dropped == 23)
        assert "c2:demo/db" in seen.exports()
    async with following(peers, max_imports=10) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped)
        assert "c2:demo/db" in seen.exports()
        assert len(seen.exports()) == 8


async def test_a_peer_with_another_id_is_taken_in_as_one_that_is_new(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    there = [f"10.2.{n // 200}.{n % 200 + 1}" for n in range(60)]

    async def publish(number: int, *names: str) -> None:
        for name in names:
            await service(etcd, "c2", name, *there, number=number)
        await announce(etcd, "c2", number)

    await publish(2, "aaa/db")
    async with following(peers, kinds=("services",), max_endpoints=60) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.services())
        first = seen.services()
        await publish(4, "aaa/db", "demo/db", "team/db")
        await seen.until(lambda s: seen.cluster("c2").id == 4 and len(seen.services()) == 3)
        async with following(peers, kinds=("services",), max_endpoints=60) as fresh:
            await fresh.until(lambda s: len(fresh.services()) == 3)
            assert seen.services() == fresh.services()
    assert len(first["c2:aaa/db"]) > len(fresh.services()["c2:aaa/db"])


async def test_what_an_earlier_process_had_taken_is_taken_first(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    peers.add("c2")
    for number in range(6):
        await export(etcd, "c2", f"demo/e{number}", exportCreationTimestamp="2026-02-01T00:00:00Z")
    await announce(etcd, "c2", 2)
    async with following(peers, max_imports=10, state=tmp_path / "state", timings=FIVE) as seen:
        await seen.state("c2", "ready")
        await seen.until_true((tmp_path / "state" / "serviceexports" / "c2.json").exists)
    for number in range(30):
        await export(etcd, "c2", f"aaa/e{number:02}")
    async with following(peers, max_imports=10, state=tmp_path / "state") as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped)
        assert {f"c2:demo/e{number}" for number in range(6)} <= set(seen.exports())


async def test_a_service_that_outgrows_its_share_is_taken_in_part_with_the_endpoints_that_it_has_now(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/db", *(f"10.2.0.{n}" for n in range(20)), number=2)
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",), max_endpoints=50) as seen:
        await seen.state("c2", "ready")
        assert len(seen.addresses("c2")) == 20
        await service(etcd, "c2", "demo/db", *(f"10.2.1.{n}" for n in range(60)), number=2)
        await seen.until(lambda s: len(seen.addresses("c2")) == 40)
        assert all(address.startswith("10.2.1.") for address in seen.addresses("c2"))
        assert seen.cluster("c2").dropped_example == (
            "services demo/db: 40 of its 60 endpoints are taken: namespace demo has its share of the 50 endpoints of a "
            "cluster (clusterset.max_endpoints)"
        )
        await service(etcd, "c2", "demo/db", "10.2.1.1", number=2)
        await seen.until(lambda s: seen.addresses("c2") == {"10.2.1.1"} and not seen.cluster("c2").dropped)


async def test_a_record_that_was_refused_for_want_of_room_is_taken_when_there_is_some(
    etcd: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LIST_AGAIN", 0.0)
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, max_imports=10) as seen:
        await seen.state("c2", "ready")
        for number in range(9):
            await export(etcd, "c2", f"demo/e{number}")
        await seen.until(lambda s: seen.cluster("c2").dropped == 1)
        assert "c2:demo/e8" not in seen.exports()
        await etcd.delete("cilium/state/serviceexports/v1/c2/demo/e0")
        await seen.until(lambda s: "c2:demo/e8" in seen.exports() and not seen.cluster("c2").dropped)


class Sink:
    """A sink of service records of c2 over a database with the imports of the own cluster."""

    def __init__(self, room: int) -> None:
        self.db = Database(tables.ENDPOINT_SETS, tables.IMPORTS, tables.FAULTS)
        self.refused = RefusedRecords()
        self.quota = quotas.of_kind("services", ClustersetSection(max_endpoints=room))
        self.sink = RecordSink(
            self.db,
            ROWS["services"],
            cluster_id=2,
            admission=Admission(cluster=C2),
            quota=self.quota,
            listed=lambda txn: None,
            received=self._received,
        )

    def _received(self, refused: RefusedRecords) -> None:
        self.refused = refused

    def services(self) -> dict[str, int]:
        return {row.service: len(row.endpoints) for row in self.db.snapshot().all(tables.ENDPOINT_SETS)}


def record(name: str, endpoints: int, **fields: object) -> KeyValue:
    namespace, short = name.split("/")
    backends = {f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}": {"": {"Port": 80}} for n in range(endpoints)}
    value = {"cluster": "c2", "namespace": namespace, "name": short, "clusterID": 2, "shared": True}
    return KeyValue(name, json.dumps(value | {"backends": backends} | fields).encode())


async def test_of_a_list_beyond_the_quota_the_services_that_imports_show_are_taken_first() -> None:
    made = Sink(1_000)
    with made.db.write() as txn:
        imported = Import(name=ServiceName("demo/db"), clusters=(C2,))
        txn.put(tables.IMPORTS, imported)
    records = {f"aaa/s{n}": record(f"aaa/s{n}", 100) for n in range(100)}
    records[imported.derived_service] = record(imported.derived_service, 700)
    await made.sink.replace(records, partial=False)
    assert made.services()[imported.derived_service] == 700
    assert sum(made.services().values()) <= 1_000
    assert made.refused.named["aaa/s50"].reason == "QuotaExceeded"


async def test_one_endpoint_with_a_megabyte_of_ports_counts_for_thousands() -> None:
    made = Sink(1_000)
    ports = {f"port-{n}": {"Port": n + 1} for n in range(20_000)}
    made.sink.apply([Event("aaa/s", record("aaa/s", 1, backends={"10.0.0.1": ports}))])
    made.sink.apply([Event("demo/db", record("demo/db", 200))])
    assert made.services() == {"demo/db": 200}


async def test_a_large_record_in_part_is_decoded_whole_again_when_there_is_room() -> None:
    made = Sink(1_000)
    made.sink.apply([Event("demo/db", record("demo/db", 2_000))])
    assert made.services() == {"demo/db": 800}
    made.sink.apply([Event("demo/db", record("demo/db", 700))])
    assert made.services() == {"demo/db": 700}
    made.sink.apply([Event("demo/db", record("demo/db", 701))])
    assert made.services() == {"demo/db": 701}
    made.sink.apply([Event("demo/db", None)])
    assert made.services() == {}
    assert made.quota.used == 0


async def test_a_record_that_shrinks_or_goes_leaves_the_room_of_its_former_size() -> None:
    made = Sink(1_000)
    made.sink.apply([Event("demo/db", record("demo/db", 800))])
    made.sink.apply([Event("demo/db", record("demo/db", 100))])
    assert made.quota.used == 100
    made.sink.apply([Event("demo/other", record("demo/other", 700))])
    assert made.services() == {"demo/db": 100, "demo/other": 700}
    made.sink.apply([Event("demo/other", None), Event("demo/third", record("demo/third", 700))])
    assert made.services() == {"demo/db": 100, "demo/third": 700}


async def test_what_a_drained_peer_held_is_free_when_it_is_followed_again() -> None:
    made = Sink(1_000)
    made.sink.apply([Event("demo/db", record("demo/db", 600))])
    made.quota.clear()
    assert made.quota.used == 0
    made.sink.apply([Event("demo/db", record("demo/db", 600)), Event("demo/web", record("demo/web", 200))])
    assert made.services() == {"demo/db": 600, "demo/web": 200}


async def test_a_list_counts_each_record_at_the_size_that_it_has_now() -> None:
    made = Sink(1_000)
    await made.sink.replace({"demo/db": record("demo/db", 800)}, partial=False)
    await made.sink.replace({"demo/db": record("demo/db", 100), "demo/other": record("demo/other", 700)}, partial=False)
    assert made.services() == {"demo/db": 100, "demo/other": 700}
    assert made.quota.used == 800
