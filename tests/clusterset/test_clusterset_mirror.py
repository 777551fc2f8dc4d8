"""A mirror copies peers into the own etcd; agents follow the copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from machine.bad_line import line_to
from peers.clusterset_peers import Peers, announce, configure, export, following, service
from peers.etcd_server import EtcdServer, free_ports
from peers.mirroring import mirroring

from isthmus.clusterset.mirror import Mirror, republished
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records import endpoints, keys
from isthmus.clusterset.records.identity import Description, encode
from isthmus.etcd import Session
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, Port
from isthmus.model.tables import CLUSTERS

QUICK = FollowerTimings(save_after=0.01)
C2, ECHO = ClusterName("c2"), ServiceName("demo/echo")


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def fill(peer_session: Session, name: str = "c2", number: int = 2) -> None:
    await service(peer_session, name, "demo/echo", f"10.{number}.1.1", number=number)
    await export(peer_session, name, "demo/echo")
    await announce(peer_session, name, number, future={"x": 1})


async def copies(own_session: Session) -> list[str]:
    return [kv.key.removeprefix("cilium/cache/") for kv in (await own_session.list("cilium/cache/")).kvs]


async def test_an_agent_follows_the_mirror_as_it_would_the_peer(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers
) -> None:
    peers.add("c2")
    local.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers), following(local) as agent:
        row = await agent.state("c2", "ready")
        assert row.cached
        assert agent.services() == {"c2:demo/echo": ["10.2.1.1"]}
        assert agent.exports() == ["c2:demo/echo"]
        await service(peer_session, "c2", "demo/echo", "10.2.1.2", number=2)
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.2"]})
        await peer_session.delete("cilium/state/services/v1/c2/demo/echo")
        await agent.until(lambda s: agent.services() == {})


async def test_a_large_record_is_followed_through_the_mirror_and_kept_on_disk(
    peer_session: Session, own_session: Session, peers: Peers, local: Peers, tmp_path: Path
) -> None:
    peers.add("c2")
    local.add("c2")
    await fill(peer_session)
    there = [f"10.2.{n // 250}.{n % 250 + 1}" for n in range(400)]

    async def written() -> None:
        found = [Endpoint(each, (Port("http", 8080),), node="n1") for each in there]
        value = endpoints.encode(ECHO, cluster=C2, cluster_id=2, endpoints=found, frontends={})
        await peer_session.put("cilium/state/services/v1/c2/demo/echo", value)

    async with mirroring(own_session, peers), following(local, state=tmp_path, timings=QUICK) as agent:
        for n in range(4):
            there[n * 90] = f"10.2.9.{n + 1}"
            await written()
            await agent.until(lambda s: agent.services() == {"c2:demo/echo": sorted(there)})
        file = tmp_path / "services" / "c2.json"
        await agent.until_true(lambda: file.exists() and "10.2.9.4" in file.read_text())


async def test_copies_are_identical_and_the_configuration_is_marked_cached(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        copy = await own_session.get("cilium/cache/services/v1/c2/demo/echo")
        source = await peer_session.get("cilium/state/services/v1/c2/demo/echo")
        assert copy is not None
        assert source is not None
        assert copy.value == source.value
        config = await own_session.get("cilium/cluster-config/c2")
        assert config is not None
        configuration = json.loads(config.value)
        assert configuration["id"] == 2
        assert configuration["capabilities"]["cached"] is True
        assert configuration["capabilities"]["future"] == {"x": 1}


def test_a_configuration_keeps_unknown_fields() -> None:
    configuration = json.loads(republished(b'{"id":3,"new":[1],"capabilities":{"x":"y"}}'))
    assert configuration == {"id": 3, "new": [1], "capabilities": {"x": "y", "syncedCanaries": True, "cached": True}}
    assert json.loads(republished(b'{"id":3}'))["capabilities"] == {"syncedCanaries": True, "cached": True}


@pytest.mark.parametrize("config", [b'{"id":2,"x":"\xff"}', b'{"id":2,"x":' + b"[" * 900 + b"]" * 900 + b"}", b"{"])
async def test_a_configuration_that_cannot_be_republished_costs_its_own_cluster_only(
    peer_session: Session, own_session: Session, peers: Peers, config: bytes
) -> None:
    peers.add("c2", "c3")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        await peer_session.put("cilium/cluster-config/c2", config)
        await fill(peer_session, "c3", 3)
        await until(lambda: own_session.get("cilium/synced/c3/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/echo" in await copies(own_session)


async def test_what_was_withdrawn_while_no_mirror_ran_goes_before_the_canary_is_new(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
    await peer_session.delete("cilium/state/services/v1/c2/demo/echo")
    copy, canary = "cilium/cache/services/v1/c2/demo/echo", "cilium/synced/c2/cilium/cache/services/v1"
    start = (await own_session.list("")).revision + 1
    seen: list[str] = []
    watching = own_session.watch("cilium/", start)
    async with mirroring(own_session, peers), asyncio.timeout(60), aclosing(watching) as batches:
        async for batch in batches:
            seen += [event.key for event in batch.events if event.key in (copy, canary)]
            if canary in seen:
                break
        assert seen == [copy, canary]
        assert await copies(own_session) == ["serviceexports/v1/c2/demo/echo"]


def is_deleted(session: Session, key: str) -> Callable[[], Awaitable[bool]]:
    async def deleted() -> bool:
        return await session.get(key) is None

    return deleted


async def test_a_mirror_that_starts_while_a_peer_is_away_keeps_its_copies(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2", "c3")
    await fill(peer_session)
    await fill(peer_session, "c3", 3)
    async with mirroring(own_session, peers):
        for name in ("c2", "c3"):
            await until(lambda name=name: own_session.get(f"cilium/synced/{name}/cilium/cache/services/v1"))  # type: ignore[misc]
    before = await copies(own_session)
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    await peer_session.delete("cilium/state/services/v1/c3/demo/echo")
    async with mirroring(own_session, peers):
        await until(is_deleted(own_session, "cilium/cache/services/v1/c3/demo/echo"))
        assert set(before) - set(await copies(own_session)) == {"services/v1/c3/demo/echo"}


async def test_a_mirror_that_starts_while_a_peer_is_away_knows_the_peer_by_its_copies(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        for kind in ("services", "serviceexports"):
            await until(lambda kind=kind: own_session.get(f"cilium/synced/c2/cilium/cache/{kind}/v1"))  # type: ignore[misc]
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    peers.add("c3")
    await announce(peer_session, "c3", 2)
    async with mirroring(own_session, peers) as mirror:

        async def row(name: str) -> Cluster | None:
            return mirror.db.snapshot().get(CLUSTERS, ClusterName(name)) if mirror.db is not None else None

        async def refused() -> bool:
            c3 = await row("c3")
            return c3 is not None and c3.state == "refused"

        async def restored() -> bool:
            c2 = await row("c2")
            return c2 is not None and (c2.state, c2.id, len(c2.synced)) == ("stale", 2, 2)

        await until(refused)
        await until(restored)


async def test_a_mirror_that_starts_while_a_peer_is_away_knows_since_when(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    """An earlier mirror has published it, for readers, whose use of the copies ends so long afterwards."""
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
    away = "2026-01-02T03:04:05Z"
    await own_session.put(keys.description(C2), encode(Description(away=away)))
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    async with mirroring(own_session, peers) as mirror:

        async def since() -> str:
            row = mirror.db.snapshot().get(CLUSTERS, C2) if mirror.db is not None else None
            return row.since if row is not None and row.state == "stale" else ""

        await until(since)
        difference = datetime.fromisoformat(await since()) - datetime.fromisoformat(away)
        assert abs(difference) < timedelta(minutes=5)


async def test_a_peer_that_comes_back_is_copied_whole_again(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    canary = "cilium/synced/c2/cilium/cache/services/v1"
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get(canary))
        peers.remove("c2")
        await until(is_deleted(own_session, canary))
        peers.add("c2")
        await until(lambda: own_session.get(canary))
        assert await copies(own_session) == ["serviceexports/v1/c2/demo/echo", "services/v1/c2/demo/echo"]


async def test_a_peer_that_leaves_takes_everything_of_it_along(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2", "c3")
    await fill(peer_session)
    await fill(peer_session, "c3", 3)
    async with mirroring(own_session, peers):
        for name in ("c2", "c3"):
            await until(lambda name=name: own_session.get(f"cilium/synced/{name}/cilium/cache/serviceexports/v1"))  # type: ignore[misc]
        peers.remove("c2")
        await until(is_deleted(own_session, "cilium/cache/services/v1/c2/demo/echo"))
    peers.remove("c3")
    async with mirroring(own_session, peers):
        await until(is_deleted(own_session, "cilium/cache/services/v1/c3/demo/echo"))
        assert [kv.key for kv in (await own_session.list("cilium/")).kvs] == []


async def test_bad_records_are_not_copied(peer_session: Session, own_session: Session, peers: Peers) -> None:
    peers.add("c2")
    await peer_session.put("cilium/state/services/v1/c2/demo/bad", b"{")
    await fill(peer_session)
    async with mirroring(own_session, peers) as mirror:
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/bad" not in await copies(own_session)
        assert "mirroring" in repr(mirror)


async def test_a_peer_that_is_refused_is_withdrawn(peer_session: Session, own_session: Session, peers: Peers) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        await configure(peer_session, "c2", 1)
        await until(is_deleted(own_session, "cilium/cache/services/v1/c2/demo/echo"))
        assert [kv.key for kv in (await own_session.list("cilium/")).kvs] == []


async def test_there_is_one_mirror_at_a_time_and_another_takes_over(
    peer_session: Session, own_session: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers) as first:
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        async with mirroring(own_session, peers) as second:
            await until(_says(second, "waiting for another mirror"))
            assert first.outcome == "mirroring"
            await own_session.delete("isthmus/mirror")
            await until(_says(second, "mirroring"))


@pytest.mark.slow
async def test_a_mirror_that_is_cut_off_has_stopped_before_another_begins(
    peer_session: Session,
    own_session: Session,
    own_etcd: EtcdServer,
    peers: Peers,
) -> None:
    ttl = 6  # outlasts a machine that stands still for a while
    peers.add("c2")
    await fill(peer_session)
    async with (
        line_to(own_etcd.endpoint) as line,
        Session([line.endpoint]) as far,
        mirroring(far, peers, lock_ttl=ttl) as first,
    ):
        await until(_says(first, "mirroring"))
        async with mirroring(own_session, peers, lock_ttl=ttl) as second:
            await until(_says(second, "waiting for another mirror"))
            line.silence()
            await until(_says(second, "mirroring"))
            assert "could not be kept alive" in first.outcome or first.db is None
            await service(peer_session, "c2", "demo/late", "10.2.1.3", number=2)
            await until(lambda: own_session.get("cilium/cache/services/v1/c2/demo/late"))
            line.resume()
            await until(_says(first, "waiting for another mirror"))
            assert second.outcome == "mirroring"


def _says(mirror: Mirror, text: str) -> Callable[[], Awaitable[bool]]:
    async def says() -> bool:
        return text in mirror.outcome

    return says


@pytest.mark.slow
async def test_a_wiped_store_gets_its_copies_again(
    peer_session: Session, own_session: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await fill(peer_session)
    async with mirroring(own_session, peers):
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(own_session)
        await until(lambda: own_session.get("cilium/synced/c2/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/echo" in await copies(own_session)
