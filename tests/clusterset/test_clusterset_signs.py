"""Signs of life of a peer, beside that its etcd answers: a heartbeat, that it lets us read, that a mirror copies it."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs
from peers.clusterset_peers import QUICK, Peers, announce, following, service
from peers.etcd_server import free_ports
from peers.joining_world import World, clusters
from peers.mirroring import mirroring

from isthmus.clusterset import joining
from isthmus.clusterset.peers import peer_files
from isthmus.clusterset.records import identity, keys
from isthmus.clusterset.records.decoding import wall_clock
from isthmus.clusterset.records.signing import Signing
from isthmus.etcd import Session
from isthmus.identity.keys import new_private_key, public_key
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

C2 = ClusterName("c2")
ECHO = {"c2:demo/echo": ["10.2.1.1"]}


@pytest.fixture
async def peer_session(etcd: Session) -> Session:
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await announce(etcd, "c2", 2)
    return etcd


@pytest.fixture
def peers(peers: Peers) -> Peers:
    peers.add("c2")
    return peers


@pytest.fixture
def local(local: Peers) -> Peers:
    """As agents behind a mirror have them: our own etcd."""
    local.add("c2")
    return local


async def test_a_silent_publisher_is_reported_and_withdraws_nothing(
    peer_session: Session, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[str] = []

    class Counted(Session):
        async def __aenter__(self) -> Counted:
            sessions.append("one more")
            return await super().__aenter__()

    monkeypatch.setattr(peer_files, "Session", Counted)
    await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:00:00Z")
    async with following(peers, timings=structs.replace(QUICK, late=2.0)) as seen:
        await seen.state("c2", "ready")
        await seen.state("c2", "silent")
        assert "no publisher" in seen.cluster("c2").reason
        await seen.until_true(lambda: len(sessions) == 2)  # perhaps only the watch had died
        assert (seen.cluster("c2").state, seen.services()) == ("silent", ECHO)
        await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:01:00Z")
        await seen.state("c2", "ready")
        assert seen.cluster("c2").reason == ""


async def test_a_peer_that_signs_and_whose_clock_is_off_is_reported_and_stays_ready(
    peer_session: Session, peers: Peers
) -> None:
    def beat(ahead: float) -> bytes:
        return timestamp(wall_clock() + timedelta(seconds=ahead)).encode()

    signing = Signing(key=base64.b64encode(public_key(new_private_key())).decode(), verifies=True)
    await peer_session.put(keys.description(C2), identity.encode(identity.Description(signing=signing)))
    await peer_session.put(keys.HEARTBEAT, beat(-90))
    async with following(peers) as seen:
        row = await seen.state("c2", "ready")
        assert (row.signing_key, row.verifies) == (signing.key, True)
        await peer_session.put(keys.HEARTBEAT, beat(0))
        await peer_session.put(keys.HEARTBEAT, beat(130))
        await peer_session.put(keys.HEARTBEAT, beat(131))
        await seen.until_true(lambda: "its clock is 2 min or more ahead of ours" in seen.cluster("c2").reason)
        assert seen.cluster("c2").state == "ready"
        await peer_session.put(keys.HEARTBEAT, b"no time")
        await seen.until_true(lambda: seen.cluster("c2").reason == "")


async def test_a_publisher_whose_lease_ends_is_silent_at_once_and_withdraws_nothing(
    peer_session: Session, peers: Peers
) -> None:
    await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:00:00Z")
    async with following(peers) as seen:
        await seen.state("c2", "ready")
        await peer_session.delete(keys.HEARTBEAT)
        row = await seen.state("c2", "silent")
        assert row.reason == "it has no publisher, its heartbeat has ended: its operator is not there"
        assert seen.services() == ECHO
        await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:01:00Z")
        await seen.state("c2", "ready")


async def test_a_peer_that_never_had_a_heartbeat_has_a_moment_to_write_one(peer_session: Session, peers: Peers) -> None:
    await peer_session.delete(keys.HEARTBEAT)
    async with following(peers, timings=structs.replace(QUICK, absent=2.0)) as seen:
        await seen.state("c2", "ready")
        await seen.state("c2", "silent")
        assert seen.services() == ECHO


async def test_agents_behind_a_mirror_report_a_peer_without_a_publisher(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:00:00Z")
    async with mirroring(own_session, peers), following(local) as agent:
        await agent.state("c2", "ready")
        await peer_session.delete(keys.HEARTBEAT)
        await agent.state("c2", "silent")
        assert agent.services() == ECHO
        await peer_session.put(keys.HEARTBEAT, b"2026-01-01T00:01:00Z")
        await agent.state("c2", "ready")


async def joined(c1: World, c2: World) -> None:
    async with joining.invitation(c1.home, lifetime=60) as invitation:
        await asyncio.gather(invitation.accepted(), joining.join(c2.home, invitation.word, patience=90))


async def test_a_cluster_whose_access_ended_receives_no_more_though_its_watch_was_open(tmp_path: Path) -> None:
    async with clusters(tmp_path) as (c1, c2):
        await c1.publish("10.1.1.1")
        await joined(c1, c2)
        async with c2.following(timings=structs.replace(QUICK, ask_every=0.2)) as second:
            await second.state("c1", "ready")
            await joining.leave(c1.home, ClusterName("c2"))
            row = await second.state("c1", "stale")
            assert "authentication failed" in row.reason
            await c1.publish("10.1.1.1", "10.1.1.2")
            await second.until(lambda s: second.cluster("c1").failures > row.failures + 3)
            assert second.services() == {"c1:demo/echo": ["10.1.1.1"]}


async def test_copies_of_a_mirror_that_died_are_stale(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    async with following(local) as agent:
        async with mirroring(own_session, peers, lock_ttl=2):
            assert (await agent.state("c2", "ready")).cached
        row = await agent.state("c2", "stale")
        assert "no mirror is running" in row.reason
        assert agent.services() == ECHO
        async with mirroring(own_session, peers, lock_ttl=2):
            await agent.state("c2", "ready")


async def test_agents_behind_a_mirror_count_the_lifetime_of_a_peer_it_cannot_reach(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    async with (
        mirroring(own_session, peers),
        following(local, lifetime=600) as patient,
        following(local, lifetime=2.0) as agent,
    ):
        await agent.state("c2", "ready")
        await patient.state("c2", "ready")
        peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
        row = await patient.state("c2", "stale")
        assert "the mirror has not reached it since" in row.reason
        assert patient.services() == ECHO
        await agent.until(lambda s: agent.services() == {})
        assert await own_session.get("cilium/cache/services/v1/c2/demo/echo"), (
            "how long copies are good is for their readers"
        )
        async with following(local, lifetime=2.0) as late:  # an agent that starts meanwhile
            await late.until(lambda s: late.cluster("c2").state == "stale" and late.services() == {})
        peers.add("c2")
        await agent.state("c2", "ready")
        await agent.until(lambda s: agent.services() == ECHO)


async def test_a_peers_description_reaches_agents_behind_a_mirror(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    description = {
        "network": "blue",
        "region": "eu",
        "zone": "eu-1",
        "gateways": ["gw.c2.example:15443"],
        "version": "9",
        "labels": ["class=gold"],
    }
    await peer_session.put(keys.description(ClusterName("c2")), json.dumps(description).encode())
    async with mirroring(own_session, peers), following(local) as agent:
        await agent.until(lambda s: agent.cluster("c2").version == "9")
        row = agent.cluster("c2")
        assert (row.network, row.region, row.zone, row.gateways) == ("blue", "eu", "eu-1", ("gw.c2.example:15443",))
        assert row.labels == (("class", "gold"),)
