"""Watches against every etcd of this machine, and what happens to them when the etcd goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from peers.etcd_server import EtcdServer, running

from isthmus.etcd import KeyStore, KeyValue, PrefixStore, Put, Session, WatchBatch
from isthmus.reflector import Event, Expired, Reflector, Transient


async def take(batches: AsyncIterator[WatchBatch], events: int) -> list[str]:
    """The next events as text."""
    seen: list[str] = []
    while len(seen) < events:
        async with asyncio.timeout(60):
            batch = await anext(batches)
        seen += [f"{event.key}={event.kv.value.decode() if event.kv else 'gone'}" for event in batch.events]
    return seen


async def test_a_watch_yields_the_events_from_a_revision_on(store: Session) -> None:
    await store.put("w/a", b"0")
    start = await store.put("w/a", b"1")
    await store.put("w/b", b"2")
    await store.put("v/c", b"elsewhere")
    await store.delete("w/a")
    assert await take(store.watch("w/", start), 3) == ["w/a=1", "w/b=2", "w/a=gone"]


async def test_one_key_is_followed_without_those_that_begin_like_it(store: Session) -> None:
    await store.put("w/a", b"0")
    start = await store.put("w/ab", b"1")
    listing = await KeyStore(store, "w/a").list()
    assert (list(listing.items), listing.revision) == ([""], str(start))
    await store.put("w/ab", b"2")
    await store.put("w/a", b"3")
    assert await take(store.watch("w/a", start + 1, exact=True), 1) == ["w/a=3"]


async def test_a_delete_carries_the_previous_value_if_requested(store: Session) -> None:
    start = await store.put("w/a", b"before")
    batches = store.watch("w/", start + 1, previous=True)
    await store.delete("w/a")
    batch = await anext(batches)
    assert batch.events[0].kv is None
    assert batch.events[0].prev_kv is not None
    assert batch.events[0].prev_kv.value == b"before"
    assert batch.revision == start + 1


async def test_a_revision_in_several_fragments_is_reached_with_the_last_one(store: Session) -> None:
    """A watch that breaks between two fragments has to resume before that revision, else the rest is lost."""
    keys = [f"w/{n}" for n in range(10)]
    for value in (b"a", b"b"):
        start = (await store.txn([], [Put(key, value * 130_000) for key in keys])).revision
    batches = store.watch("w/", start, previous=True)
    seen: list[str] = []
    reached: list[int] = []
    while len(seen) < len(keys):
        batch = await anext(batches)
        seen += [event.key for event in batch.events]
        reached.append(batch.revision)
    assert seen == keys
    assert len(reached) > 1, "the server sends them in fragments"
    assert reached == [start - 1] * (len(reached) - 1) + [start]


async def test_a_compacted_revision_is_expired(store: Session) -> None:
    old = await store.put("w/a", b"1")
    await store.compact(await store.put("w/a", b"2"))
    with pytest.raises(Expired, match="compacted"):
        await take(store.watch("w/", old), 1)


async def test_an_idle_watch_advances_by_bookmarks(each_shared_etcd: EtcdServer) -> None:
    async with Session([each_shared_etcd.endpoint], progress=0.05) as session:
        await each_shared_etcd.ready(session)
        start = await session.put("idle/a", b"")
        batches = session.watch("idle/", start + 1)
        elsewhere = await session.put("busy/a", b"")
        async with asyncio.timeout(60):
            while (batch := await anext(batches)).revision < elsewhere:
                pass
        assert batch.events == []


async def test_two_thousand_events_arrive_in_order(store: Session) -> None:
    start = await store.put("w/start", b"")

    async def write() -> None:
        for n in range(0, 2000, 100):
            await asyncio.gather(*(store.put(f"w/{n + i:05}", b"v") for i in range(100)))

    batches = store.watch("w/", start + 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        seen = await take(batches, 2000)
    assert len(set(seen)) == 2000


async def test_a_watch_breaks_when_the_etcd_goes_and_resumes_when_it_is_back(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        start = await session.put("w/a", b"1")
        batches = session.watch("w/", start)
        assert await take(batches, 1) == ["w/a=1"]
        own_etcd.stop()
        with pytest.raises(Transient):
            await take(batches, 1)
        own_etcd.start()
        await own_etcd.ready(session)
        await session.put("w/b", b"2")
        assert await take(session.watch("w/", start + 1), 1) == ["w/b=2"]


async def test_an_etcd_that_lost_its_data_is_expired_and_not_silent(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        for _ in range(10):
            start = await session.put("w/a", b"1")
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(session)
        with pytest.raises(Expired, match="lost its data"):
            await take(session.watch("w/", start + 1), 1)


async def test_another_store_behind_the_same_session_is_expired_and_not_taken_for_the_first(
    own_etcd: EtcdServer, tmp_path: Path
) -> None:
    with running(own_etcd.program, tmp_path / "replica", "--initial-cluster-token", "replica") as replica:
        async with Session([own_etcd.endpoint, replica.endpoint]) as session, Session([replica.endpoint]) as there:
            await replica.ready(there)
            async with Session([own_etcd.endpoint]) as here:  # a failure would send the other session to the replica
                await own_etcd.ready(here)
            await session.put("w/a", b"1")
            listing = await session.list("w/")
            for _ in range(listing.revision + 5):
                await there.put("w/b", b"2")
            own_etcd.stop()
            with pytest.raises(Transient):
                await session.get("w/a")
            assert await session.get("w/b") is not None
            with pytest.raises(Expired, match="another store"):
                await take(session.watch("w/", listing.revision + 1, store=listing.store), 1)


class Seen:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.changed = asyncio.Event()

    async def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        self.items = {key: kv.value for key, kv in items.items()}
        self.changed.set()

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        for key, kv in events:
            if kv is None:
                self.items.pop(key, None)
            else:
                self.items[key] = kv.value
        self.changed.set()

    async def until(self, items: dict[str, bytes]) -> None:
        async with asyncio.timeout(60):
            while self.items != items:
                self.changed.clear()
                await self.changed.wait()


async def test_the_reflector_follows_a_prefix_over_compaction_and_loss_of_data(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        await session.put("p/a", b"1")
        seen = Seen()
        reflector = Reflector(PrefixStore(session, "p/"), seen, name="test")
        task = asyncio.create_task(reflector.run())
        await seen.until({"a": b"1"})
        await session.delete("p/a")
        await session.put("p/b", b"2")
        await seen.until({"b": b"2"})
        own_etcd.stop()
        own_etcd.wipe()
        own_etcd.start()
        await own_etcd.ready(session)
        await session.put("p/c", b"3")
        await seen.until({"c": b"3"})
        task.cancel()
