"""Lines between clusters that go silent, are slow, or break in the middle of a list."""

from __future__ import annotations

from machine.bad_line import line_to
from peers.clusterset_peers import Peers, announce, following, service
from peers.etcd_server import EtcdServer

from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.etcd import Session, SessionTimings

QUICK_PINGS = FollowerTimings(look_every=0.05, session=SessionTimings(ping_every=1.0, ping_timeout=0.5))


async def test_a_line_that_goes_silent_makes_its_peer_stale_and_loses_nothing(
    etcd: Session, shared_etcd: EtcdServer, peers: Peers
) -> None:
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with line_to(shared_etcd.endpoint) as line:
        peers.add("c2", endpoint=line.endpoint)
        # In this test alone: a machine that stands still for half a second would break the others' lines.
        async with following(peers, timings=QUICK_PINGS) as seen:
            await seen.state("c2", "ready")
            line.silence()
            await seen.state("c2", "stale")
            assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}
            await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
            line.resume()
            await seen.state("c2", "ready")
            assert seen.services() == {"c2:demo/echo": ["10.2.1.2"]}


async def test_a_list_that_breaks_in_the_middle_is_no_list(
    etcd: Session, shared_etcd: EtcdServer, peers: Peers
) -> None:
    for n in range(40):
        await service(etcd, "c2", f"demo/s{n}", "10.2.1.1", number=2, x="y" * 1_000)
    await announce(etcd, "c2", 2)
    async with line_to(shared_etcd.endpoint) as line:
        peers.add("c2", endpoint=line.endpoint)
        async with following(peers) as seen:
            await seen.state("c2", "ready")
            changes = seen.db.changes(seen.db.tables["endpoint_sets"])
            changes.next()
            line.most = 20_000
            line.cut()
            await seen.until(lambda s: seen.cluster("c2").failures > 3)
            assert changes.next()[1] == []
            await etcd.delete("cilium/state/services/v1/c2/demo/s0")
            line.most = None
            await seen.state("c2", "ready")
            assert [change.new for change in changes.next()[1]] == [None]


async def test_a_slow_line_is_only_slow(etcd: Session, shared_etcd: EtcdServer, peers: Peers) -> None:
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with line_to(shared_etcd.endpoint) as line:
        line.delay = 0.05
        peers.add("c2", endpoint=line.endpoint)
        async with following(peers) as seen:
            assert (await seen.state("c2", "ready")).failures == 0
            await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
            await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.2"]})
