"""The loop on virtual time, against a scripted store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from isthmus.reflector import Batch, Event, Expired, Listing, Reflector, State, Transient

pytestmark = pytest.mark.looptime

END = "end"
IDLE = "idle"


class Script:
    """A store: each list and each watch takes the next step of its script, and repeats the last one."""

    def __init__(self, *, lists: Sequence[Any], watches: Sequence[Sequence[Any]]) -> None:
        self.lists = list(lists)
        self.watches = [list(w) for w in watches]
        self.calls: list[tuple[float, str]] = []

    def times(self, verb: str) -> list[float]:
        return [when for when, what in self.calls if what.startswith(verb)]

    async def list(self) -> Listing[str]:
        self.calls.append((_now(), "list"))
        step = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(step, Exception):
            raise step
        return Listing(step, f"r{len(self.calls)}")

    async def watch(self, revision: str) -> AsyncIterator[Batch[str]]:
        self.calls.append((_now(), f"watch {revision}"))
        steps = self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, int | float):
                await asyncio.sleep(step)
            elif step == IDLE:
                await asyncio.Event().wait()
            elif step != END:
                yield step


class Memory:
    """A sink that records its items and its calls."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}
        self.calls: list[str] = []

    async def replace(self, items: Mapping[str, str], *, partial: bool) -> None:
        self.items = {**self.items, **items} if partial else dict(items)
        self.calls.append("replace")

    def apply(self, events: Sequence[Event[str]]) -> None:
        for key, item in events:
            if item is None:
                self.items.pop(key, None)
            else:
                self.items[key] = item
        self.calls.append("apply")


@asynccontextmanager
async def running(store: Script, **options: Any) -> AsyncIterator[tuple[Reflector[str], Memory]]:
    sink = Memory()
    reflector = Reflector(store, sink, name="test", jitter=lambda: 1.0, **options)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reflector.run())
        yield reflector, sink
        task.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()


def put(key: str, item: str, revision: str) -> Batch[str]:
    return Batch([Event(key, item)], revision)


async def test_a_list_is_followed_by_a_watch_from_its_revision() -> None:
    store = Script(lists=[{"a": "1"}], watches=[[put("b", "2", "r7"), Batch([Event("a", None)], "r8"), IDLE]])
    async with running(store) as (reflector, sink):
        await asyncio.sleep(0.01)
        assert sink.items == {"b": "2"}
        assert [what for _, what in store.calls] == ["list", "watch r1"]
        assert reflector.state == State(synced=True, connected=True, lists=1, failures=0, last_failure="")


async def test_a_watch_that_ends_is_resumed_where_it_was_bookmarks_included() -> None:
    bookmark: Batch[str] = Batch((), "r9")
    store = Script(lists=[{}], watches=[[put("a", "1", "r5"), bookmark, 10, END], [IDLE]])
    async with running(store) as (_, sink):
        await asyncio.sleep(11)
        assert [what for _, what in store.calls] == ["list", "watch r1", "watch r9"]
        assert store.times("watch") == [0, 10], "a watch that stood for a while is resumed at once"
        assert sink.calls == ["replace", "apply"]


async def test_an_expired_watch_relists_and_drops_what_vanished() -> None:
    store = Script(lists=[{"a": "1", "b": "1"}, {"b": "1"}], watches=[[Expired("410")], [IDLE]])
    async with running(store) as (_, sink):
        await asyncio.sleep(0.2)
        assert sink.items == {"b": "1"}
        assert store.times("list") == pytest.approx([0, 0.1])


async def test_a_watch_that_expires_after_standing_long_relists_at_once() -> None:
    store = Script(lists=[{}], watches=[[40, put("a", "1", "r2"), 40, Expired("compacted")], [IDLE]])
    async with running(store) as (reflector, _):
        await asyncio.sleep(81)
        assert store.times("list") == [0, 80]
        assert reflector.state.failures == 0


async def test_a_watch_that_ends_at_once_does_not_spin() -> None:
    store = Script(lists=[{}], watches=[[END]])
    async with running(store):
        await asyncio.sleep(300)
        assert store.times("watch")[:4] == pytest.approx([0, 0.1, 0.3, 0.7])
        assert len(store.times("watch")) < 25
        assert len(store.times("list")) == 1


async def test_a_watch_that_says_something_and_ends_at_once_does_not_spin_either() -> None:
    store = Script(lists=[{}], watches=[[put("a", "1", "r2"), END]])
    async with running(store):
        await asyncio.sleep(300)
        assert len(store.times("watch")) < 25


async def test_watches_that_are_silent_until_the_server_ends_them_cost_no_pause() -> None:
    store = Script(lists=[{}], watches=[[300, END]])
    async with running(store):
        await asyncio.sleep(1501)
        assert store.times("watch") == [0, 300, 600, 900, 1200, 1500]


@pytest.mark.parametrize(
    "watch",
    [
        [Expired("410")],
        [Batch((), "r2"), Expired("410")],
        [put("a", "1", "r2"), 5, Expired("410")],
    ],
    ids=["at once", "after a bookmark", "after five seconds"],
)
async def test_lists_are_rate_limited_when_every_watch_expires(watch: list[Any]) -> None:
    store = Script(lists=[{}], watches=[watch])
    async with running(store):
        await asyncio.sleep(300)
        lists = store.times("list")
        assert len(lists) < 25
        assert lists[-1] - lists[-2] >= 30


async def test_expiry_between_watches_that_end_is_rate_limited_too() -> None:
    store = Script(lists=[{}], watches=[[Batch((), "r2"), END], [Expired("410")]] * 200)
    async with running(store):
        await asyncio.sleep(300)
        assert len(store.times("list")) < 25


async def test_a_list_that_expires_is_tried_again_with_a_growing_pause() -> None:
    store = Script(lists=[Expired("continue token"), Expired("continue token"), {"a": "1"}], watches=[[IDLE]])
    async with running(store) as (_, sink):
        await asyncio.sleep(1)
        assert store.times("list") == pytest.approx([0, 0.1, 0.3])
        assert sink.items == {"a": "1"}


async def test_a_store_that_is_away_is_tried_with_a_doubling_capped_pause() -> None:
    store = Script(lists=[Transient("refused")], watches=[[IDLE]])
    async with running(store, first_delay=1.0, max_delay=8.0) as (reflector, _):
        await asyncio.sleep(32)
        assert store.times("list") == [0, 1, 3, 7, 15, 23, 31]
        assert reflector.state == State(synced=False, connected=False, lists=0, failures=7, last_failure="refused")


async def test_what_was_known_stays_while_the_store_is_away() -> None:
    store = Script(lists=[{"a": "1"}], watches=[[put("b", "2", "r5"), 10, Transient("reset")], [Transient("refused")]])
    async with running(store) as (reflector, sink):
        await asyncio.sleep(60)
        assert sink.items == {"a": "1", "b": "2"}
        assert sink.calls == ["replace", "apply"]
        assert {what for _, what in store.calls[2:]} == {"watch r5"}, "a break is no reason to list"
        assert not reflector.state.connected


async def test_a_break_after_a_good_time_starts_the_pauses_over() -> None:
    broken: list[Any] = [Transient("refused")]
    store = Script(
        lists=[{}],
        watches=[broken, broken, broken, [Batch((), "r2"), 50, Transient("reset")], [Batch((), "r3"), IDLE]],
    )
    async with running(store) as (reflector, _):
        await asyncio.sleep(60)
        assert store.times("watch") == pytest.approx([0, 0.1, 0.3, 0.7, 50.8])
        assert reflector.state.connected, "the first, empty batch says that the store is back"


async def test_pauses_are_spread_between_half_and_the_whole() -> None:
    reflector = Reflector(Script(lists=[{}], watches=[[IDLE]]), Memory(), name="test", jitter=lambda: 0.0)
    assert [reflector._delay(n) for n in (1, 2, 3, 50)] == [0.05, 0.1, 0.2, 15.0]


async def test_cancelling_ends_the_watch_and_the_loop() -> None:
    closed = asyncio.Event()

    class Closing(Script):
        async def watch(self, revision: str) -> AsyncIterator[Batch[str]]:
            try:
                await asyncio.Event().wait()
                yield Batch((), revision)
            finally:
                closed.set()

    async with running(Closing(lists=[{}], watches=[[IDLE]])):
        await asyncio.sleep(1)
    assert closed.is_set()


async def test_a_bug_in_the_sink_is_not_swallowed() -> None:
    class Broken(Memory):
        def apply(self, events: Sequence[Event[str]]) -> None:
            raise ZeroDivisionError

    reflector = Reflector(Script(lists=[{}], watches=[[put("a", "1", "r2")]]), Broken(), name="test")
    with pytest.raises(ZeroDivisionError):
        await reflector.run()


async def test_every_change_of_state_is_told() -> None:
    told: list[State] = []
    store = Script(lists=[Transient("refused"), {}], watches=[[IDLE]])
    async with running(store, on_state=told.append):
        await asyncio.sleep(1)
    assert [(s.synced, s.connected, s.failures) for s in told] == [(False, False, 1), (True, True, 1)]
