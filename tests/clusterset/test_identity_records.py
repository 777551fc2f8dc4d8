"""Numbers of callers' accounts as records in Cilium's layout: published, copied, followed, and refused one by one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.clusterset_peers import OWN, Following, Peers, announce, following
from peers.mirroring import mirroring

from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.clusterset.records import identities, keys
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.identities import Identity, numbers
from isthmus.model.mcs import Record
from isthmus.model.names import ClusterName, ServiceName
from isthmus.statedb import Database

C2 = ClusterName("c2")
FRONT = Identity(cluster=C2, number=2 << 16 | 300, namespace="demo", service_account="front")
LABELS = (
    "k8s:io.cilium.k8s.policy.cluster=c2;k8s:io.cilium.k8s.policy.serviceaccount=front;"
    "k8s:io.kubernetes.pod.namespace=demo;"
)
CILIUMS = (
    "k8s:app=web;k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=demo;" + LABELS + "k8s:tier=a=b;any:x=;"
)


def decode(value: str | bytes, *, number: str = "131372", cluster_id: int = 2, most: Any = 255) -> Identity | None:
    encoded = value if isinstance(value, bytes) else value.encode()
    return identities.decode(encoded, cluster=C2, cluster_id=cluster_id, number=number, most=most)


# values


def test_a_record_has_ciliums_three_labels_in_order_with_a_semicolon_after_each() -> None:
    assert identities.encode(FRONT) == LABELS.encode()


def test_what_is_written_is_read() -> None:
    assert decode(LABELS) == FRONT


def test_of_ciliums_own_identities_the_account_is_read_and_every_other_label_ignored() -> None:
    assert decode(CILIUMS) == FRONT


@pytest.mark.parametrize("value", ["", "reserved:host;", "k8s:io.kubernetes.pod.namespace=demo;", ";;;", "any=thing"])
def test_a_number_without_an_account_is_no_row(value: str) -> None:
    assert decode(value) is None


@pytest.mark.parametrize(
    ("number", "cluster_id", "most"),
    [
        ("131072", 2, 255),  # Cilium's reserved numbers of the cluster's range
        ("131327", 2, 255),
        ("196608", 2, 255),  # the next cluster's
        ("65836", 2, 255),  # the cluster's before
        ("300", 2, 255),  # of no cluster
        ("131372", 2, 511),  # the range of a cluster of 511 ends before it
        ("16777216", 255, 255),
        ("0", 2, 255), ("-131372", 2, 255), ("0131372", 2, 255), ("+131372", 2, 255), ("1_31372", 2, 255),
        ("١٣١٣٧٢", 2, 255), ("", 2, 255), ("131372/x", 2, 255), ("9" * 5000, 2, 255),
    ],
)  # fmt: skip
def test_a_number_outside_its_clusters_range_is_refused(number: str, cluster_id: int, most: int) -> None:
    with pytest.raises(RecordError):
        decode(LABELS, number=number, cluster_id=cluster_id, most=most)


@pytest.mark.parametrize(
    "value",
    [
        LABELS.replace("=c2", "=c3"),
        LABELS.replace("k8s:io.cilium.k8s.policy.cluster=c2;", ""),
        LABELS + "k8s:io.kubernetes.pod.namespace=kube-system;",
        LABELS.replace("=demo", "="),
        LABELS.replace("=demo", "=Demo"),
        LABELS.replace("=demo", "=" + "a" * 64),
        LABELS.replace("=front", "=../admin"),
        LABELS.replace("=front", "=front\n"),
        LABELS.replace("=front", "=" + "a" * 254),
        LABELS + "x" * identities.LIMIT,
        LABELS.encode() + b"\xff",
    ],
)
def test_a_hostile_value_is_refused_with_its_reason(value: str | bytes) -> None:
    with pytest.raises((RecordError, OutOfBounds)) as refused:
        decode(value)
    assert str(refused.value)


@given(st.binary(max_size=200), st.text(max_size=12))
def test_no_bytes_and_no_key_do_anything_but_refuse_or_result_in_a_row(value: bytes, number: str) -> None:
    try:
        row = decode(value, number=number)
    except (RecordError, OutOfBounds):
        return
    assert row is None or row.cluster == C2


def test_ranges_of_clusters_are_ciliums_and_leave_out_its_reserved_numbers() -> None:
    assert (numbers(1, 255)[0], numbers(1, 255)[-1]) == (65_536 + 256, 131_071)
    assert (numbers(511, 511)[0], numbers(511, 511)[-1]) == ((511 << 15) + 256, 2**24 - 1)
    ranges = [numbers(each, 511) for each in range(1, 512)]
    assert all(before[-1] < after[0] for before, after in itertools.pairwise(ranges))


def test_keys_are_ciliums_in_the_own_etcd_and_in_copies() -> None:
    assert keys.record("identities", C2, ServiceName("131372")) == "cilium/state/identities/v1/id/131372"
    assert keys.copy("identities", C2, ServiceName("131372")) == "cilium/cache/identities/v1/c2/id/131372"
    assert keys.canary("identities", C2) == "cilium/synced/c2/cilium/state/identities/v1"


# followed


class Seen(Following):
    def accounts(self) -> dict[int, str]:
        rows = self.db.snapshot().all(tables.IDENTITIES)
        return {row.number: f"{row.cluster}:{row.namespace}/{row.service_account}" for row in rows}


@asynccontextmanager
async def seeing(peers: Peers, **more: Any) -> AsyncIterator[Seen]:
    db = Database(
        tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS, tables.FAULTS, tables.REFUSED_RECORDS, tables.IDENTITIES
    )
    async with following(peers, kinds=("services", "identities"), db=db, **more) as found:
        yield Seen(found.db, found._follower)


async def identity(etcd: Session, number: int, account: str = "demo/front", cluster: str = "c2") -> None:
    namespace, name = account.split("/")
    row = Identity(cluster=ClusterName(cluster), number=number, namespace=namespace, service_account=name)
    await etcd.put(f"cilium/state/identities/v1/id/{number}", identities.encode(row))


async def complete(etcd: Session, *, cached: bool = False, cluster: str = "c2") -> None:
    await etcd.put(keys.canary("identities", ClusterName(cluster), cached=cached), b"2026-11-21T00:00:00Z")


async def test_a_peers_numbers_become_rows_change_and_go(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await identity(etcd, 131_372)
    await identity(etcd, 131_373)
    await announce(etcd, "c2", 2)
    await complete(etcd)
    async with seeing(peers) as seen:
        await seen.until(lambda s: len(seen.accounts()) == 2)
        assert seen.accounts() == {131_372: "c2:demo/front", 131_373: "c2:demo/front"}, "several are one account"
        await identity(etcd, 131_373, "demo/back")
        await etcd.delete("cilium/state/identities/v1/id/131372")
        await seen.until(lambda s: seen.accounts() == {131_373: "c2:demo/back"})
        assert seen.db.snapshot().initialized(tables.IDENTITIES)


async def test_a_hostile_record_costs_itself_and_nothing_else(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await identity(etcd, 131_372)
    await identity(etcd, 65_836, cluster="c1")  # ours: a number of another cluster
    await etcd.put("cilium/state/identities/v1/id/131380", b"\xff\x00")
    await etcd.put("cilium/state/identities/v1/id/../../etc", LABELS.encode())
    await announce(etcd, "c2", 2)
    await complete(etcd)
    async with seeing(peers) as seen:
        await seen.until(lambda s: seen.accounts() and seen.cluster("c2").dropped == 3)
        assert seen.accounts() == {131_372: "c2:demo/front"}
        await seen.until(lambda s: seen.cluster("c2").state == "ready")
        await etcd.delete("cilium/state/identities/v1/id/../../etc")
        await seen.until(lambda s: seen.cluster("c2").dropped == 2)


async def test_a_peer_has_no_more_numbers_than_its_quota(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    for number in range(131_400, 131_410):
        await identity(etcd, number)
    await announce(etcd, "c2", 2)
    await complete(etcd)
    async with seeing(peers, max_identities=4) as seen:
        await seen.until(lambda s: seen.cluster("c2").dropped == 6)
        assert len(seen.accounts()) == 4
        assert "clusterset.max_identities" in seen.cluster("c2").dropped_example


async def test_numbers_are_known_after_a_restart_without_the_peer(etcd: Session, peers: Peers, tmp_path: Path) -> None:
    peers.add("c2")
    await identity(etcd, 131_372)
    await announce(etcd, "c2", 2)
    await complete(etcd)
    async with seeing(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: seen.accounts())
    peers.add("c2", endpoint="http://127.0.0.1:1")
    async with seeing(peers, state=tmp_path / "state") as seen:
        await seen.until(lambda s: seen.accounts() == {131_372: "c2:demo/front"})


async def test_a_peer_whose_identities_nobody_completes_is_ready_all_the_same(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await identity(etcd, 131_372)
    await announce(etcd, "c2", 2)
    async with seeing(peers) as seen:
        await seen.state("c2", "ready")
        assert seen.accounts() == {}
        assert seen.db.snapshot().initialized(tables.ENDPOINT_SETS, tables.REFUSED_RECORDS)
        await complete(etcd)
        await seen.until(lambda s: seen.accounts())


async def test_numbers_of_a_peer_that_leaves_are_no_rows(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await identity(etcd, 131_372)
    await announce(etcd, "c2", 2)
    await complete(etcd)
    async with seeing(peers) as seen:
        await seen.until(lambda s: seen.accounts())
        peers.remove("c2")
        await seen.until(lambda s: seen.accounts() == {})


async def test_a_mirror_copies_numbers_in_the_shape_of_ciliums_mirror(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    peers.add("c2")
    local.add("c2")
    await identity(peer_session, 131_372)
    await announce(peer_session, "c2", 2)
    await complete(peer_session)
    async with mirroring(own_session, peers, identities=True), seeing(local) as agent:
        await agent.until(lambda s: agent.accounts() == {131_372: "c2:demo/front"})
        copy = await own_session.get("cilium/cache/identities/v1/c2/id/131372")
        assert copy is not None
        assert copy.value == LABELS.encode()
        assert await own_session.get("cilium/synced/c2/cilium/cache/identities/v1") is not None
        peers.remove("c2")
        await agent.until(lambda s: agent.accounts() == {})
    assert await own_session.get("cilium/synced/c2/cilium/cache/identities/v1") is None


# published


@asynccontextmanager
async def publishing(etcd: Session, identities: bool, *rows: Record) -> AsyncIterator[None]:
    db = Database(tables.RECORDS, tables.REFUSALS, tables.DRAINING)
    with db.write() as txn:
        for row in rows:
            txn.put(tables.RECORDS, row)
    publisher = Publisher(db, etcd, OWN, identities=identities)
    task = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(60):
            while not publisher.published:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def numbers_in(etcd: Session) -> list[str]:
    return [kv.key.rpartition("/")[2] for kv in (await etcd.list("cilium/state/identities/")).kvs]


async def test_the_canary_of_identities_is_right_with_and_without_them(etcd: Session) -> None:
    rows = Record("identities", ServiceName("65836"), LABELS.encode()), Record("ip", ServiceName("10.2.0.7"), b"{}")
    async with publishing(etcd, True, *rows):
        assert await numbers_in(etcd) == ["65836"]
        assert await etcd.get("cilium/state/ip/v1/default/10.2.0.7") is not None
        assert await etcd.get(keys.canary("identities", ClusterName("c1"))) is not None
    async with publishing(etcd, False):
        assert await numbers_in(etcd) == [], "what an earlier configuration published is withdrawn"
        assert await etcd.get("cilium/state/ip/v1/default/10.2.0.7") is None
        assert await etcd.get(keys.canary("identities", ClusterName("c1"))) is not None
