"""Several tables followed on one connection, and counters that are read when they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rows.admin_world import serving

from isthmus.admin.protocol import TableLine
from isthmus.admin.query import NoTable, Socket
from isthmus.model.dns import Name
from isthmus.model.services import Namespace
from isthmus.model.tables import NAMES, NAMESPACES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def a_name(n: int) -> Name:
    return Name(f"n{n}.demo.svc.clusterset.local", "A", ("10.96.0.1",))


class Watch:
    """Lines of a watch, read by a thread."""

    def __init__(self, path: Path, *tables: str) -> None:
        self._lines: Iterator[TableLine[Any]] = Socket(path).watch(tables)

    async def next(self) -> TableLine[Any]:
        """The next line."""
        line = await self.next_or_end()
        assert line is not None
        return line

    async def next_or_end(self) -> TableLine[Any] | None:
        """The next line; ``None`` if there is none."""
        return await asyncio.wait_for(asyncio.to_thread(next, self._lines, None), 60)

    async def lists(self, count: int) -> dict[str, int]:
        """The number of rows of each of so many tables."""
        lines = [await self.next() for _ in range(count)]
        return {line.table: len(line.list.rows) for line in lines if line.list is not None}


async def test_each_table_begins_with_its_list_and_goes_on_with_its_changes(path: Path) -> None:
    async with serving(path) as process:
        process.put(NAMES, a_name(1))
        process.put(NAMESPACES, Namespace("demo"))
        watch = Watch(path, "names", "namespaces", "pods")
        assert await watch.lists(3) == {"names": 1, "namespaces": 1, "pods": 0}
        process.put(NAMESPACES, Namespace("shop"))
        line = await watch.next()
        assert (line.table, [event.key for event in line.events]) == ("namespaces", ["shop"])
        process.delete(NAMES, NAMES.key(a_name(1)))
        line = await watch.next()
        assert (line.table, [event.row for event in line.events]) == ("names", [None])


async def test_a_table_that_becomes_complete_is_listed_again_and_followed_meanwhile(path: Path) -> None:
    async with serving(path) as process:
        source = process.db.initializer(NAMESPACES, "kubernetes")
        watch = Watch(path, "namespaces")
        line = await watch.next()
        assert line.list is not None
        assert (line.list.complete, line.list.pending) == (False, ["kubernetes"])
        process.put(NAMESPACES, Namespace("demo"))
        assert [event.key for event in (await watch.next()).events] == ["demo"]
        with process.db.write() as txn:
            source.complete(txn)
        line = await watch.next()
        assert line.list is not None
        assert (line.list.complete, line.list.keys) == (True, ["demo"])


async def test_a_table_that_is_not_there_is_refused_with_those_that_are(path: Path) -> None:
    async with serving(path):
        with pytest.raises(NoTable, match="no table 'nothing' here") as refused:
            await Watch(path, "names", "nothing").next()
        assert "names" in refused.value.tables


async def test_another_database_that_is_shown_ends_the_watch(path: Path) -> None:
    async with serving(path) as process:
        watch = Watch(path, "names", "pods")
        await watch.lists(2)
        process.server.show(process.db, status=process.server._shown.status)
        assert await watch.next_or_end() is None


async def test_counters_are_read_when_they_are_asked_for(path: Path) -> None:
    numbers = iter(range(1, 9))
    async with serving(path, counters={"calls": lambda: [{"calls": next(numbers)}]}):
        ask = lambda: Socket(path).counters("calls")  # noqa: E731
        assert await asyncio.to_thread(ask) == [{"calls": 1}]
        assert await asyncio.to_thread(ask) == [{"calls": 2}]
        with pytest.raises(NoTable, match="no counters 'others'"):
            await asyncio.to_thread(Socket(path).counters, "others")


async def test_counters_that_take_their_time_do_not_hold_up_other_questions(path: Path) -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def slow() -> list[dict[str, int]]:
        asked.set()
        await finish.wait()
        return [{"calls": 1}]

    async with serving(path, counters={"calls": slow}):
        counted = asyncio.create_task(asyncio.to_thread(Socket(path).counters, "calls"))
        await asked.wait()
        assert "ready" in await asyncio.to_thread(Socket(path).status)
        finish.set()
        assert await counted == [{"calls": 1}]
