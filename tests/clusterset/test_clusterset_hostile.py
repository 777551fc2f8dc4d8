"""A hostile peer: counted, named, bounded; other peers are not affected."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from peers.clusterset_peers import Peers, announce, following, service
from peers.etcd_server import EtcdServer, running

from isthmus.clusterset.peers.sinks import RECORD_LIMITS
from isthmus.etcd import Put, Session, binary

NUMBER = 2


@pytest.fixture
def large_etcd(tmp_path: Path) -> Any:
    with running(binary.find(), tmp_path / "etcd", "--max-request-bytes", str(40 * 1024 * 1024)) as server:
        yield server


@pytest.fixture
async def etcd(large_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([large_etcd.endpoint], timeout=60.0) as session:
        await large_etcd.ready(session)
        yield session


@pytest.fixture
def peers(tmp_path: Path, large_etcd: EtcdServer) -> Peers:
    return Peers(tmp_path / "clusters", large_etcd.endpoint)


async def flood(etcd: Session, count: int, *, size: int = 10, start: int = 0) -> None:
    """Many valid records of cluster c2, as fast as etcd takes them."""
    for first in range(start, start + count, 100):
        await etcd.txn((), [Put(*record(n, size)) for n in range(first, min(first + 100, start + count))])


def record(n: int, size: int) -> tuple[str, bytes]:
    fields = {
        "cluster": "c2",
        "namespace": "demo",
        "name": f"s{n}",
        "shared": True,
        "clusterID": NUMBER,
        "x": "y" * size,
    }
    return f"cilium/state/services/v1/c2/demo/s{n}", json.dumps(fields).encode()


async def test_a_value_of_ten_megabytes_is_dropped_whenever_it_comes(etcd: Session, peers: Peers) -> None:
    peers.add("c2", "c3")
    huge = b'{"cluster":"c2","namespace":"demo","name":"huge","labels":{"a":"' + b"x" * 10_000_000 + b'"}}'
    for n in range(5):
        await etcd.put(f"cilium/state/services/v1/c2/demo/huge{n}", huge)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await service(etcd, "c3", "demo/echo", "10.3.1.1", number=3)
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers, kinds=("services",)) as seen:
        await seen.state("c2", "ready")
        await seen.state("c3", "ready")
        await seen.until(lambda s: seen.cluster("c2").dropped == 5)
        await etcd.put("cilium/state/services/v1/c2/demo/later", huge)
        await seen.until(lambda s: seen.cluster("c2").dropped == 6)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"], "c3:demo/echo": ["10.3.1.1"]}


async def test_a_namespace_of_endless_keys_costs_no_other_namespace_of_its_cluster(etcd: Session, peers: Peers) -> None:
    limits = RECORD_LIMITS._replace(keys=50)
    peers.add("c2")
    await flood(etcd, 200)
    await service(etcd, "c2", "other/echo", "10.2.1.1", number=2)
    await service(etcd, "c2", "zzz/echo", "10.2.1.2", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",), limits=limits) as seen:
        row = await seen.state("c2", "ready")
        assert {"c2:other/echo", "c2:zzz/echo"} <= set(seen.services())
        assert len(seen.services()) == 50
        await seen.until(lambda s: seen.cluster("c2").dropped == 152)
        row = seen.cluster("c2")
        assert row.dropped_example == "services demo: more records of this namespace than are read"


async def test_a_flood_of_keys_is_taken_up_to_the_bound(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",), max_endpoints=50) as seen:
        await seen.state("c2", "ready")
        await flood(etcd, 80)
        await seen.until(lambda s: seen.cluster("c2").dropped == 40)
        assert len(seen.services()) == 40
        await etcd.delete_prefix("cilium/state/services/v1/c2/")
        await seen.until(lambda s: seen.cluster("c2").dropped == 0 and not seen.services())
        await flood(etcd, 10)
        await seen.until(lambda s: len(seen.services()) == 10)


async def test_records_are_bounded_in_bytes_too(etcd: Session, peers: Peers) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",), max_endpoints=500) as seen:  # of 256 bytes each
        await seen.state("c2", "ready")
        await flood(etcd, 20, size=9_900)
        await seen.until(lambda s: seen.cluster("c2").dropped == 10)
        assert len(seen.services()) == 10


async def test_a_record_that_is_replaced_takes_its_room_once_and_one_that_goes_gives_it_back(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers, kinds=("services",), max_endpoints=500) as seen:
        await seen.state("c2", "ready")
        await flood(etcd, 6, size=9_900)
        await flood(etcd, 6, size=9_900)
        await flood(etcd, 10, size=9_900)
        await seen.until(lambda s: len(seen.services()) == 10)
        for _ in range(2):
            await etcd.delete_prefix("cilium/state/services/v1/c2/demo/")
            await seen.until(lambda s: not seen.services())
            await flood(etcd, 10, size=9_900)
            await seen.until(lambda s: len(seen.services()) == 10)
        assert seen.cluster("c2").dropped == 0


async def test_endless_configurations_of_similar_names_hide_no_other_cluster(etcd: Session, peers: Peers) -> None:
    peers.add("c2", "c3")
    for first in range(0, 1_500, 100):
        await etcd.txn((), [Put(f"cilium/cluster-config/c2{n}", b"x") for n in range(first, first + 100)])
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3)
    async with following(peers) as seen:
        await seen.state("c3", "ready")
        await seen.state("c2", "ready")
