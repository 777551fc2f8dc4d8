"""A peer's etcd is restarted, wiped, compacted, lost for long; a peer is replaced. Tables follow what is true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from peers.clusterset_peers import Peers, announce, canaries, configure, export, following, service
from peers.etcd_server import EtcdServer, free_ports, running

from isthmus.etcd import Session, binary
from isthmus.model import tables
from isthmus.model.names import ClusterName


@pytest.fixture
def own_etcd(etcd_program: Path, tmp_path: Path) -> Iterator[EtcdServer]:
    """Everything here is done to each etcd that a client must get along with."""
    with running(etcd_program, tmp_path / "etcd") as server:
        yield server


@pytest.fixture
async def etcd(own_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        yield session


@pytest.fixture
def peers(tmp_path: Path, own_etcd: EtcdServer) -> Peers:
    return Peers(tmp_path / "clusters", own_etcd.endpoint)


async def test_a_peer_that_is_away_is_stale_and_keeps_everything(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        own_etcd.stop()
        row = await seen.state("c2", "stale")
        assert row.failures
        assert "127.0.0.1" in row.reason
        assert (seen.services(), seen.exports()) == ({"c2:demo/echo": ["10.2.1.1"]}, ["c2:demo/echo"])
        own_etcd.start()
        row = await seen.state("c2", "ready")
        assert row.reason == ""


async def test_what_changed_while_a_peer_was_away_is_there_when_it_is_back(
    etcd: Session, own_etcd: EtcdServer, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/gone", "10.2.1.1", number=2)
    await service(etcd, "c2", "demo/stays", "10.2.1.2", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
        await seen.state("c2", "stale")
        await etcd.delete("cilium/state/services/v1/c2/demo/gone")
        await service(etcd, "c2", "demo/new", "10.2.1.3", number=2)
        assert set(seen.services()) == {"c2:demo/gone", "c2:demo/stays"}
        peers.add("c2")
        await seen.state("c2", "ready")
        assert set(seen.services()) == {"c2:demo/stays", "c2:demo/new"}


async def test_a_store_that_is_refilled_withdraws_nothing_before_it_is_whole(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/gone", "10.2.1.1", number=2)
    await service(etcd, "c2", "demo/stays", "10.2.1.2", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(etcd)
        await configure(etcd, "c2", 2)
        await seen.until(lambda s: seen.cluster("c2").failures)
        await service(etcd, "c2", "demo/stays", "10.2.1.9", number=2)
        assert set(seen.services()) == {"c2:demo/gone", "c2:demo/stays"}
        await canaries(etcd, "c2")
        await seen.until(lambda s: seen.services() == {"c2:demo/stays": ["10.2.1.9"]})
        await seen.state("c2", "ready")


async def test_a_store_that_lost_its_data_and_ran_past_our_revision_is_read_again(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/gone", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(etcd)
        for n in range(30):
            await etcd.put("noise", b"%d" % n)
        await announce(etcd, "c2", 2)
        await seen.until(lambda s: seen.services() == {})


async def test_a_compaction_while_a_peer_was_away_loses_no_delete(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/gone", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
        await seen.state("c2", "stale")
        await etcd.delete("cilium/state/services/v1/c2/demo/gone")
        await etcd.compact(await etcd.put("noise", b""))
        peers.add("c2")
        await seen.until(lambda s: seen.services() == {})


@pytest.mark.slow
async def test_after_the_cache_lifetime_endpoints_go_and_exports_stay(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    async with following(peers, lifetime=0.3) as seen:
        for _ in range(2):  # a peer that lapsed, came back and goes away again lapses again
            await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
            await seen.state("c2", "ready")
            own_etcd.stop()
            await seen.until(lambda s: seen.services() == {})
            await seen.state("c2", "stale")
            assert seen.exports() == ["c2:demo/echo"]
            own_etcd.start()
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})


@pytest.mark.slow
async def test_a_peer_that_is_late_at_the_start_is_not_away_afterwards(
    etcd: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    own_etcd.stop()
    async with following(peers, lifetime=0.6) as seen:
        await seen.until(lambda s: seen.cluster("c2").failures)
        own_etcd.start()
        await seen.state("c2", "ready")
        changes = seen.db.changes(tables.ENDPOINT_SETS)
        changes.next()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await changes.wait()
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_a_lifetime_of_zero_is_for_ever(etcd: Session, own_etcd: EtcdServer, peers: Peers) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    async with following(peers, lifetime=0) as seen:
        await seen.state("c2", "ready")
        own_etcd.stop()
        await seen.until(lambda s: seen.cluster("c2").failures > 4)
        assert seen.services() == {"c2:demo/echo": ["10.2.1.1"]}


async def test_one_peer_that_is_away_keeps_no_other_from_being_ready(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    peers.add("c3", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await seen.until(lambda s: seen.cluster("c3").reason)
        assert seen.cluster("c3").state == "connecting"
        assert seen.db.snapshot().pending(tables.ENDPOINT_SETS) == {"clusterset/c3"}
        peers.remove("c3")
        await seen.until(lambda s: s.initialized(tables.ENDPOINT_SETS, tables.EXPORTS))


async def test_a_peer_that_moves_to_another_etcd_loses_no_row_meanwhile(
    etcd: Session, peers: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    with running(binary.find(), tmp_path / "other") as other:
        async with Session([other.endpoint]) as moved, following(peers) as seen:
            await other.ready(moved)
            await seen.state("c2", "ready")
            await service(moved, "c2", "demo/echo", "10.2.1.1", number=2)
            await announce(moved, "c2", 2)
            changes = seen.db.changes(tables.ENDPOINT_SETS)
            changes.next()
            peers.add("c2", endpoint=other.endpoint)
            await seen.until(lambda s: seen.cluster("c2").endpoints == (other.endpoint,))
            await service(moved, "c2", "demo/new", "10.2.1.2", number=2)
            await seen.until(lambda s: "c2:demo/new" in seen.services())
            assert {change.key[0] for change in changes.next()[1]} == {"demo/new"}


async def test_a_failure_of_ours_with_one_peer_leaves_the_others_alone(
    etcd: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from isthmus.clusterset.peers import peer_record

    def fail(self: object, kv: object) -> None:
        raise ZeroDivisionError("a bug")

    real = peer_record.PeerRecord.configured
    monkeypatch.setattr(
        peer_record.PeerRecord, "configured", lambda self, kv: (fail if self.name == "c3" else real)(self, kv)
    )
    peers.add("c2", "c3")
    await announce(etcd, "c3", 3)
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await asyncio.sleep(0)
        assert seen.db.snapshot().get(tables.CLUSTERS, ClusterName("c3")) is not None


async def test_a_peer_whose_connection_raised_once_is_followed_again(
    etcd: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.clusterset.peers import sinks

    real, fails = sinks.RecordSink.apply, [True]

    def apply(self: sinks.RecordSink, events: Any) -> None:
        if fails:
            fails.pop()
            raise ZeroDivisionError("a bug")
        real(self, events)

    monkeypatch.setattr(sinks.RecordSink, "apply", apply)
    peers.add("c2")
    await announce(etcd, "c2", 2)
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
        await seen.until(lambda s: seen.cluster("c2").failures)
        assert "ZeroDivisionError: a bug" in seen.cluster("c2").last_failure_reason
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.2"]})
        await seen.until(lambda s: not seen.cluster("c2").failing)
        assert seen.cluster("c2").state == "ready"


async def test_a_peer_is_never_displayed_as_healthy_while_a_part_that_follows_it_fails(
    etcd: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.clusterset.peers import peer_record

    def fail(self: object, kv: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(peer_record.PeerRecord, "described", fail)
    peers.add("c2")
    await etcd.put("isthmus/clusters/v1/c2", b"{}")
    await announce(etcd, "c2", 2)
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    async with following(peers) as seen:
        await seen.until(lambda s: "ZeroDivisionError: a bug" in getattr(seen.cluster("c2"), "failing", ""))
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.1"]})
        await seen.state("c2", "ready")
        await service(etcd, "c2", "demo/echo", "10.2.1.2", number=2)
        await seen.until(lambda s: seen.services() == {"c2:demo/echo": ["10.2.1.2"]})
        assert seen.cluster("c2").failing
        assert seen.cluster("c2").failures
