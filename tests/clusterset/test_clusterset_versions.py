"""Clusters of several versions in one clusterset, on every etcd of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from peers.clusterset_peers import Peers, announce, configure, export, following, service
from peers.etcd_server import EtcdServer

from isthmus.etcd import Session


@pytest.fixture
async def etcd(each_shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([each_shared_etcd.endpoint]) as session:
        await each_shared_etcd.ready(session)
        await session.delete_prefix("")
        yield session


@pytest.fixture
def peers(tmp_path: Path, each_shared_etcd: EtcdServer) -> Peers:
    return Peers(tmp_path / "clusters", each_shared_etcd.endpoint)


async def say(etcd: Session, name: str, number: int) -> None:
    await service(etcd, name, "demo/echo", f"10.{number % 256}.1.1", number=number)
    await export(etcd, name, "demo/echo")


async def test_old_and_new_peers_are_followed_side_by_side(etcd: Session, peers: Peers) -> None:
    """In this order: one of today, one that knows services only, one without canaries, one of tomorrow."""
    peers.add("c2", "c3", "c4", "c5")
    for number in range(2, 6):
        await say(etcd, f"c{number}", number)
    await announce(etcd, "c2", 2)
    await announce(etcd, "c3", 3, serviceExportsEnabled=None, maxConnectedClusters=None)
    await configure(etcd, "c4", 4, syncedCanaries=None)
    mode = "services-and-endpointslices"
    await announce(etcd, "c5", 5, endpointSlicesExportMode=mode, teleportation=True, later={"nested": [1, None]})
    async with following(peers) as seen:
        for number in range(2, 6):
            await seen.state(f"c{number}", "ready")
        assert seen.services() == {f"c{n}:demo/echo": [f"10.{n}.1.1"] for n in range(2, 6)}
        assert seen.exports() == [f"c{n}:demo/echo" for n in (2, 4, 5)]
        assert seen.cluster("c3").exports_enabled is None


async def test_a_peer_that_learns_exports_is_read_anew_and_one_that_forgets_them_drained(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    await say(etcd, "c2", 2)
    await announce(etcd, "c2", 2, serviceExportsEnabled=None)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        assert seen.exports() == []
        await configure(etcd, "c2", 2, serviceExportsEnabled=False)
        await seen.until(lambda s: seen.exports() == ["c2:demo/echo"])
        await configure(etcd, "c2", 2, serviceExportsEnabled=None)
        await seen.until(lambda s: seen.exports() == [])
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_of_equal_ids_the_first_stays_and_the_second_is_refused_until_it_gets_one_of_its_own(
    etcd: Session, peers: Peers
) -> None:
    peers.add("c2")
    for name in ("c2", "c3"):
        await say(etcd, name, 2)
        await announce(etcd, name, 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c3")
        assert (await seen.state("c3", "refused")).reason == "its cluster id 2 is that of cluster c2"
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
        await say(etcd, "c3", 3)
        await configure(etcd, "c3", 3)
        await seen.state("c3", "ready")
        assert set(seen.services()) == {"c2:demo/echo", "c3:demo/echo"}
        assert seen.cluster("c2").state == "ready"


@pytest.mark.parametrize(
    ("own_limit", "number", "peer_limit", "state", "reason"),
    [
        (255, 2, 511, "ready", "its maxConnectedClusters is 511, ours 255"),
        (255, 300, 511, "refused", "its cluster id is 300: want 1 to 255"),
        (511, 2, 255, "refused", "its maxConnectedClusters is 255, ours 511: ids of one could not be told apart"),
        (511, 2, None, "refused", "its maxConnectedClusters is not set, ours 511: ids of one could not be told apart"),
        (511, 300, 511, "ready", ""),
        (511, 512, 511, "refused", "its cluster id is 512: want 1 to 511"),
    ],
)
async def test_255_clusters_and_511_are_distinguished(
    etcd: Session, peers: Peers, own_limit: Any, number: int, peer_limit: int | None, state: str, reason: str
) -> None:
    peers.add("c2", "c3")
    await say(etcd, "c2", number)
    await announce(etcd, "c2", number, maxConnectedClusters=peer_limit)
    await say(etcd, "c3", 3)
    await announce(etcd, "c3", 3, maxConnectedClusters=own_limit)
    async with following(peers, most=own_limit) as seen:
        assert (await seen.state("c2", state)).reason == reason
        await seen.state("c3", "ready")
        assert ("c2:demo/echo" in seen.services()) == (state == "ready")
