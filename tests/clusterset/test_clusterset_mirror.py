"""A mirror copies peers into the own etcd; agents follow the copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from bad_line import line_to
from clusterset_peers import Peers, announce, configure, export, following, service
from etcd_server import EtcdServer, free_ports
from mirroring import mirroring

from isthmus.clusterset import copying
from isthmus.clusterset import follower as follower_module
from isthmus.clusterset.copying import Mirror, republished
from isthmus.etcd import Session


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(copying, "LOCK_TTL", 2)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def fill(theirs: Session, name: str = "c2", number: int = 2) -> None:
    await service(theirs, name, "demo/echo", f"10.{number}.1.1", number=number)
    await export(theirs, name, "demo/echo")
    await announce(theirs, name, number, future={"x": 1})


async def copies(ours: Session) -> list[str]:
    return [kv.key.removeprefix("cilium/cache/") for kv in (await ours.list("cilium/cache/")).kvs]


async def test_an_agent_follows_the_mirror_as_it_would_the_peer(
    theirs: Session, ours: Session, peers: Peers, local: Peers
) -> None:
    peers.add("c2")
    local.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers), following(local) as agent:
        row = await agent.state("c2", "ready")
        assert row.cached
        assert agent.services() == {"c2:demo/echo": ["10.2.1.1"]}
        assert agent.exports() == ["c2:demo/echo"]
        await service(theirs, "c2", "demo/echo", "10.2.1.2", number=2)
        await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.2"]})
        await theirs.delete("cilium/state/services/v1/c2/demo/echo")
        await agent.until(lambda s: agent.services() == {})


async def test_copies_are_identical_and_the_configuration_says_so(theirs: Session, ours: Session, peers: Peers) -> None:
    peers.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers):
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        copy = await ours.get("cilium/cache/services/v1/c2/demo/echo")
        source = await theirs.get("cilium/state/services/v1/c2/demo/echo")
        assert copy is not None
        assert source is not None
        assert copy.value == source.value
        config = await ours.get("cilium/cluster-config/c2")
        assert config is not None
        said = json.loads(config.value)
        assert said["id"] == 2
        assert said["capabilities"]["cached"] is True
        assert said["capabilities"]["future"] == {"x": 1}


def test_a_configuration_keeps_what_we_do_not_know() -> None:
    said = json.loads(republished(b'{"id":3,"new":[1],"capabilities":{"x":"y"}}'))
    assert said == {"id": 3, "new": [1], "capabilities": {"x": "y", "syncedCanaries": True, "cached": True}}
    assert json.loads(republished(b'{"id":3}'))["capabilities"] == {"syncedCanaries": True, "cached": True}


@pytest.mark.parametrize("config", [b'{"id":2,"x":"\xff"}', b'{"id":2,"x":' + b"[" * 900 + b"]" * 900 + b"}", b"{"])
async def test_a_configuration_that_cannot_be_told_again_costs_its_own_cluster_only(
    theirs: Session, ours: Session, peers: Peers, config: bytes
) -> None:
    peers.add("c2", "c3")
    await fill(theirs)
    async with mirroring(ours, peers):
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        await theirs.put("cilium/cluster-config/c2", config)
        await fill(theirs, "c3", 3)
        await until(lambda: ours.get("cilium/synced/c3/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/echo" in await copies(ours)


async def test_what_was_withdrawn_while_no_mirror_ran_goes_before_the_canary_is_new(
    theirs: Session, ours: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers):
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
    await theirs.delete("cilium/state/services/v1/c2/demo/echo")
    copy, canary = "cilium/cache/services/v1/c2/demo/echo", "cilium/synced/c2/cilium/cache/services/v1"
    start = (await ours.list("")).revision + 1
    seen: list[str] = []
    watching = ours.watch("cilium/", start)
    async with mirroring(ours, peers), asyncio.timeout(60), aclosing(watching) as batches:
        async for batch in batches:
            seen += [event.key for event in batch.events if event.key in (copy, canary)]
            if canary in seen:
                break
        assert seen == [copy, canary]
        assert await copies(ours) == ["serviceexports/v1/c2/demo/echo"]


def _gone(session: Session, key: str) -> Callable[[], Awaitable[bool]]:
    async def gone() -> bool:
        return await session.get(key) is None

    return gone


async def test_a_mirror_that_starts_while_a_peer_is_away_keeps_its_copies(
    theirs: Session, ours: Session, peers: Peers
) -> None:
    peers.add("c2", "c3")
    await fill(theirs)
    await fill(theirs, "c3", 3)
    async with mirroring(ours, peers):
        for name in ("c2", "c3"):
            await until(lambda name=name: ours.get(f"cilium/synced/{name}/cilium/cache/services/v1"))  # type: ignore[misc]
    before = await copies(ours)
    peers.add("c2", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}")
    await theirs.delete("cilium/state/services/v1/c3/demo/echo")
    async with mirroring(ours, peers):
        await until(_gone(ours, "cilium/cache/services/v1/c3/demo/echo"))
        assert set(before) - set(await copies(ours)) == {"services/v1/c3/demo/echo"}


async def test_a_peer_that_leaves_takes_everything_of_it_along(theirs: Session, ours: Session, peers: Peers) -> None:
    peers.add("c2", "c3")
    await fill(theirs)
    await fill(theirs, "c3", 3)
    async with mirroring(ours, peers):
        for name in ("c2", "c3"):
            await until(lambda name=name: ours.get(f"cilium/synced/{name}/cilium/cache/serviceexports/v1"))  # type: ignore[misc]
        peers.remove("c2")
        await until(_gone(ours, "cilium/cache/services/v1/c2/demo/echo"))
    peers.remove("c3")
    async with mirroring(ours, peers):
        await until(_gone(ours, "cilium/cache/services/v1/c3/demo/echo"))
        assert [kv.key for kv in (await ours.list("cilium/")).kvs] == []


async def test_bad_records_are_not_copied(theirs: Session, ours: Session, peers: Peers) -> None:
    peers.add("c2")
    await theirs.put("cilium/state/services/v1/c2/demo/bad", b"{")
    await fill(theirs)
    async with mirroring(ours, peers) as mirror:
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/bad" not in await copies(ours)
        assert "mirroring" in repr(mirror)


async def test_a_peer_that_is_refused_is_withdrawn(theirs: Session, ours: Session, peers: Peers) -> None:
    peers.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers):
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        await configure(theirs, "c2", 1)
        await until(_gone(ours, "cilium/cache/services/v1/c2/demo/echo"))
        assert [kv.key for kv in (await ours.list("cilium/")).kvs] == []


async def test_there_is_one_mirror_at_a_time_and_another_takes_over(
    theirs: Session, ours: Session, peers: Peers
) -> None:
    peers.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers) as first:
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        async with mirroring(ours, peers) as second:
            await until(_says(second, "waiting for another mirror"))
            assert first.outcome == "mirroring"
            await ours.delete("isthmus/mirror")
            await until(_says(second, "mirroring"))


async def test_a_mirror_that_is_cut_off_has_stopped_before_another_begins(
    theirs: Session, ours: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await fill(theirs)
    async with line_to(own_etcd.endpoint) as line, Session([line.endpoint]) as far, mirroring(far, peers) as first:
        await until(_says(first, "mirroring"))
        async with mirroring(ours, peers) as second:
            await until(_says(second, "waiting for another mirror"))
            line.silence()
            await until(_says(second, "mirroring"))
            assert "could not be kept alive" in first.outcome or first.db is None
            await service(theirs, "c2", "demo/late", "10.2.1.3", number=2)
            await until(lambda: ours.get("cilium/cache/services/v1/c2/demo/late"))
            line.resume()
            await until(_says(first, "waiting for another mirror"))
            assert second.outcome == "mirroring"


def _says(mirror: Mirror, text: str) -> Callable[[], Awaitable[bool]]:
    async def says() -> bool:
        return text in mirror.outcome

    return says


async def test_a_wiped_store_gets_its_copies_again(
    theirs: Session, ours: Session, own_etcd: EtcdServer, peers: Peers
) -> None:
    peers.add("c2")
    await fill(theirs)
    async with mirroring(ours, peers):
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(ours)
        await until(lambda: ours.get("cilium/synced/c2/cilium/cache/services/v1"))
        assert "services/v1/c2/demo/echo" in await copies(ours)
