"""The store's followers, without a store."""

from __future__ import annotations

import pytest

from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver.storage import MAX_QUEUED_CHANGES, Change, Subscription


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
