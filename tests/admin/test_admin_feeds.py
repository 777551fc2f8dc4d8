"""Feeds of the admin socket: the newest is kept, what comes is passed on, what is lost is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rows.admin_world import eventually, serving

from isthmus.admin.feed import Feed
from isthmus.admin.query import NoTable, Socket


def feed_of(count: int, *, kept: int = 100, unread: int = 100) -> Feed[int]:
    made: Feed[int] = Feed(kept=kept, unread=unread)
    made.add(range(count))
    return made


def read(path: Path, *, last: int = 100) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(line.rows), line.lost) for line in Socket(path).feed("flows", last=last)]


async def test_the_newest_rows_are_given_and_how_many_were_lost(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", feed_of(5, kept=4)
    feed.add((), 7)
    async with serving(path, feeds={"flows": feed}):
        assert await asyncio.to_thread(read, path) == [((1, 2, 3, 4), 7)]
        assert [line for last in (2, 0) for line in await asyncio.to_thread(read, path, last=last)] == [
            ((3, 4), 7),
            ((), 7),
        ]


async def test_what_comes_is_passed_on_in_order_to_each_reader_until_it_leaves(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", feed_of(1)
    async with serving(path, feeds={"flows": feed}):
        readers = [Socket(path).feed("flows", last=1, follow=True) for _ in range(2)]
        first = [await asyncio.to_thread(next, reader) for reader in readers]
        for n in (1, 2):
            feed.add((10 * n,), n)
            for reader in readers:
                line = await asyncio.to_thread(next, reader)
                assert (line.rows, line.lost) == ((10 * n,), n)
        for reader in readers:
            await asyncio.to_thread(reader.close)
        await eventually(lambda: not feed._readers)
    assert [tuple(line.rows) for line in first] == [(0,), (0,)]


async def test_a_slow_reader_loses_rows_and_is_told_how_many() -> None:
    feed = feed_of(0, unread=10)
    with feed.reader() as slow, feed.reader() as other:
        feed.add(range(8))
        assert (await other.next()).rows == tuple(range(8))
        feed.add(range(8, 14), 1)
        line = await slow.next()
        assert (line.rows, line.lost) == (tuple(range(10)), 4 + 1)
        assert await other.next() == type(line)(tuple(range(8, 14)), 1)


async def test_a_namespace_with_ever_more_rows_displaces_its_own_and_none_of_another() -> None:
    feed: Feed[tuple[str, int]] = Feed(kept=10, unread=20, group=lambda row: row[0])
    with feed.reader() as slow:
        feed.add([("demo", number) for number in range(4)])
        for start in range(0, 1_000, 10):
            feed.add([("aaa", number) for number in range(start, start + 10)])
        line = await slow.next()
    assert [row for row in line.rows if row[0] == "demo"] == [("demo", number) for number in range(4)]
    assert (len(line.rows), line.lost) == (20, 984)
    kept = feed.last(100).rows
    assert kept == (*(("demo", number) for number in range(4)), *(("aaa", number) for number in range(994, 1_000)))


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    path, feed = tmp_path / "agent.sock", Feed[str](unread=100_000)
    async with serving(path, feeds={"flows": feed}, stall=0.2):
        reader = Socket(path).feed("flows", follow=True)
        await asyncio.to_thread(next, reader)
        for _ in range(200):
            feed.add(["x" * 1000] * 50)
            await asyncio.sleep(0)
        await eventually(lambda: not feed._readers)
        await asyncio.to_thread(list, reader)


async def test_a_feed_that_is_off_or_not_there_is_an_error_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with serving(path, feeds={"flows": Feed(off="flows are not recorded here: set datapath.flows")}):
        with pytest.raises(NoTable, match=r"set datapath\.flows"):
            await asyncio.to_thread(read, path)
        with pytest.raises(NoTable, match="no feed 'other'"):
            await asyncio.to_thread(lambda: list(Socket(path).feed("other")))
