"""The store's followers, without a store; and compaction, on an etcd."""

from __future__ import annotations

import asyncio

import pytest
from peers.etcd_server import EtcdServer

from isthmus.etcd import Put, Session
from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver.storage import MAX_QUEUED_CHANGES, REGISTRY, Change, Store, Subscription


def changes(count: int, resource: str = "pods") -> list[Change]:
    return [Change(resource, f"ns/{number}", None, None, number) for number in range(count)]


async def test_a_follower_hears_in_order_of_what_it_follows() -> None:
    subscription = Subscription(frozenset({"pods"}))
    subscription.push(changes(2) + changes(1, "services"))
    subscription.push(changes(1))
    assert [change.key for change in await subscription.wait()] == ["ns/0", "ns/1", "ns/0"]
    assert await subscription.wait(timeout=0) == []


async def test_a_follower_hears_what_came_before_the_end() -> None:
    subscription = Subscription(None)
    subscription.push(changes(1))
    subscription.fail(Expired("compacted"))
    assert len(await subscription.wait()) == 1
    with pytest.raises(Expired, match="compacted"):
        await subscription.wait()


async def test_a_follower_that_is_too_slow_is_sent_away() -> None:
    subscription = Subscription(None)
    subscription.push(changes(MAX_QUEUED_CHANGES + 1))
    subscription.push(changes(1))
    with pytest.raises(Transient, match="waiting"):
        await subscription.wait()


async def test_compaction_goes_on_where_an_earlier_process_has_compacted_more(own_etcd: EtcdServer) -> None:
    async with Session((own_etcd.endpoint,)) as session:
        await own_etcd.ready(session)
        for _ in range(9):
            last = await session.txn([], [Put(f"{REGISTRY}configmaps/ns/a", b'{"metadata": {}}')], [])
        await session.compact(last.revision)
        store = Store(session)
        tasks = [asyncio.create_task(each) for each in (store.run(), store.compact(every=0.02))]
        await store.ready.wait()
        assert await store.create("configmaps", "ns/b", {"metadata": {"name": "b"}}) is not None
        async with asyncio.timeout(90):
            while not any(task.done() for task in tasks) and not await compacted(session, last.revision):
                await asyncio.wait(tasks, timeout=0.02)
        assert not any(task.done() for task in tasks), tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def compacted(session: Session, revision: int) -> bool:
    """True if a revision can no longer be read."""
    try:
        await session.range(REGISTRY, f"{REGISTRY}~", 1, revision)
    except Expired:
        return True
    return False
