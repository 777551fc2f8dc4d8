"""What each user of a cluster's etcd may, asked of real etcds with their guard up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from peers.clusterset_peers import Peers
from peers.etcd_server import EtcdServer, running
from peers.mirroring import mirroring

from isthmus.clusterset.joining import rights
from isthmus.clusterset.records import keys
from isthmus.etcd import Credentials, Denied, Session, access
from isthmus.model.names import ClusterName

OWN = ClusterName("c1")
HELD = (
    "cilium/.heartbeat",
    "cilium/state/services/v1/c1/demo/echo",
    "cilium/state/serviceexports/v1/c1/demo/echo",
    "cilium/synced/c1/cilium/state/services/v1",
    "cilium/cluster-config/c1",
    "isthmus/clusters/v1/c1",
    "isthmus/trust/v1/c1",
    "isthmus/refusals/v1/c1/c2",
)
NOT_FOR_PEERS = (
    "isthmus/join/7",
    "isthmus/invite/7",
    "isthmus/mirror",
    "isthmus/clusters/v1/c2",
    "cilium/cache/services/v1/c2/demo/echo",
    "cilium/cluster-config/c10",
    "cilium/synced/c2/cilium/cache/services/v1",
    "/registry/secrets/demo/token",
    "anything",
)


NOBODYS = ("/registry/secrets/demo/token", "isthmus/join/7", "isthmus/invite/7", "isthmus/trust/v1/c1")
"""What no process of a cluster writes: only `isthmus clusters …`, as root."""


@pytest.fixture
async def guarded(etcd_program: Path, tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """Each etcd in turn, with a cluster's users."""
    with running(etcd_program, tmp_path / "etcd") as server:
        async with Session([server.endpoint]) as session:
            await server.ready(session)
            for key in (*HELD, *NOT_FOR_PEERS):
                await session.put(key, b"x")
            await access.ensure_role(session, access.ROOT, ())
            await access.ensure_user(session, access.ROOT, "secret", access.ROOT)
            for role, grants in {**rights.roles(OWN), "join-7": rights.guest_rights("7")}.items():
                await access.ensure_role(session, role, grants)
                await access.ensure_user(session, f"{role}-user", role, role)
            await access.enable(session)
        yield server


def user(server: EtcdServer, role: str) -> Session:
    return Session([server.endpoint], credentials=Credentials(f"{role}-user", role))


async def test_a_peer_reads_exactly_what_it_needs_and_writes_nothing(guarded: EtcdServer) -> None:
    async with user(guarded, "remote") as peer:
        for key in HELD:
            assert (await peer.read(key)).kvs, key
            with pytest.raises(Denied):
                await peer.put(key, b"forged")
            with pytest.raises(Denied):
                await peer.delete(key)
        for key in NOT_FOR_PEERS:
            with pytest.raises(Denied):
                await peer.get(key)
            with pytest.raises(Denied):
                await anext(peer.watch(key, 1, exact=True))
        for prefix in ("", "isthmus/", "cilium/", "cilium/cluster-config/", "/registry/"):
            with pytest.raises(Denied):
                await peer.list(prefix)
        assert [kv.key for kv in (await peer.list(keys.prefix("services", OWN))).kvs] == [HELD[1]]
        with pytest.raises(Denied):
            await access.users(peer)


async def test_a_guest_writes_one_key_and_reads_not_even_that(guarded: EtcdServer) -> None:
    async with user(guarded, "join-7") as guest:
        await guest.put("isthmus/join/7", b"offer")
        for key in (*HELD, *NOT_FOR_PEERS):
            with pytest.raises(Denied):
                await guest.get(key)
        for key in ("isthmus/join/8", "isthmus/join/70", "isthmus/join/", "isthmus/invite/7"):
            with pytest.raises(Denied):
                await guest.put(key, b"offer")


async def test_the_operator_writes_what_is_the_clustersets_and_nothing_of_kubernetes(guarded: EtcdServer) -> None:
    async with user(guarded, "writer") as operator:
        lease = await operator.grant_lease(60)
        await operator.put(keys.HEARTBEAT, b"now", lease=lease.id)
        await operator.put(HELD[1], b"x")
        await operator.put(keys.description(OWN), b"{}")
        await lease.renew()
        await lease.revoke()
        for key in (*NOBODYS, "isthmus/mirror", "cilium/cache/services/v1/c2/demo/echo", "cilium/cluster-config/c2"):
            with pytest.raises(Denied):
                await operator.put(key, b"x")


async def test_the_mirror_writes_copies_and_none_of_our_own_records(guarded: EtcdServer) -> None:
    async with user(guarded, "mirror") as mirror:
        for key in ("cilium/cache/services/v1/c2/demo/echo", "isthmus/clusters/v1/c2", "cilium/cluster-config/c2"):
            await mirror.put(key, b"x")
        await mirror.put(keys.MIRROR, b"me")
        for key in (*NOBODYS, HELD[0], HELD[1], HELD[2]):
            with pytest.raises(Denied):
                await mirror.put(key, b"x")


async def test_a_mirror_that_stands_by_watches_the_lock_and_nothing_beside_it(
    guarded: EtcdServer, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "peers", guarded.endpoint)
    async with user(guarded, "mirror") as session, mirroring(session, peers) as mirror, asyncio.timeout(60):
        while not mirror.standing_by:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for _ in range(100):  # for long enough that a server refuses a watch, and nothing is claimed about how long
            assert mirror.problem == ""
            await asyncio.sleep(0.02)
        async with Session([guarded.endpoint], credentials=Credentials("root", "secret")) as root:
            await root.delete(keys.MIRROR)
        while mirror.outcome != "mirroring":
            assert mirror.problem == ""
            await asyncio.sleep(0.02)


async def test_an_agent_behind_a_mirror_reads_the_copies(guarded: EtcdServer) -> None:
    async with user(guarded, "local") as agent:
        assert await agent.get("cilium/cache/services/v1/c2/demo/echo")
        assert await agent.get("isthmus/clusters/v1/c2")
        for key in ("isthmus/join/7", "/registry/secrets/demo/token", "cilium/state/services/v1/c1/demo/echo"):
            with pytest.raises(Denied):
                await agent.get(key)
        with pytest.raises(Denied):
            await agent.put("cilium/cache/services/v1/c2/demo/echo", b"x")


async def test_saying_it_again_changes_nothing_and_takes_back_what_is_too_much(guarded: EtcdServer) -> None:
    async with Session([guarded.endpoint], credentials=Credentials("root", "secret")) as root:
        await access.ensure_role(root, "remote", (*rights.roles(OWN)["remote"], access.Grant("read", "anything")))
        async with user(guarded, "remote") as peer:
            assert await peer.get("anything")
            await access.ensure_role(root, "remote", rights.roles(OWN)["remote"])
            with pytest.raises(Denied):
                await peer.get("anything")
            assert await peer.get(HELD[1])
        assert await access.drop_user(root, "remote-user")
        assert not await access.drop_user(root, "remote-user")
        async with user(guarded, "remote") as peer:
            with pytest.raises(Denied):
                await peer.get(HELD[1])
