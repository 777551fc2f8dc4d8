"""A table of another process, kept true by the reflector over the admin socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rows.admin_world import eventually, serving

from isthmus.admin.client import TableStore
from isthmus.model.dns import Name
from isthmus.model.tables import NAMES
from isthmus.reflector import Expired, Reflector, Transient
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database


def a_name(n: int) -> Name:
    return Name(f"n{n}", "A", ("10.96.0.1",))


class Follower:
    """The dns process as far as its names go."""

    def __init__(self, path: Path) -> None:
        self.db = Database(NAMES)
        sink = TableSink[Name, Name](self.db, NAMES, "agent", lambda row: row)
        self.reflector = Reflector(TableStore(path, NAMES), sink, name="names", first_delay=0.01, max_delay=0.05)

    def names(self) -> set[str]:
        return {row.name for row in self.db.snapshot().all(NAMES)}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Follower]:
        task = asyncio.create_task(self.reflector.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


async def test_names_come_with_the_list_and_follow_what_changes(path: Path) -> None:
    async with serving(path) as agent, Follower(path).running() as follower:
        agent.put(NAMES, a_name(1), a_name(2))
        await eventually(lambda: follower.names() == {"n1", "n2"})
        agent.delete(NAMES, ("n1", "A"))
        agent.put(NAMES, a_name(3))
        await eventually(lambda: follower.names() == {"n2", "n3"})
        assert follower.reflector.state.lists == 1
        assert follower.db.snapshot().initialized(NAMES)


async def test_a_reader_keeps_what_it_knew_while_the_process_is_away_and_drops_what_is_gone_when_it_is_back(
    path: Path,
) -> None:
    async with Follower(path).running() as follower:
        async with serving(path) as agent:
            agent.put(NAMES, a_name(1), a_name(2))
            await eventually(lambda: follower.names() == {"n1", "n2"})
        await eventually(lambda: follower.reflector.state.failures > 0)
        assert follower.names() == {"n1", "n2"}
        async with serving(path, timeout=0.1) as agent:
            agent.db.initializer(NAMES, "derive")
            agent.put(NAMES, a_name(2))
            await eventually(lambda: follower.reflector.state.lists >= 2)
            assert follower.names() == {"n1", "n2"}  # the list was partial: nothing is taken away
            with agent.db.write() as txn:
                txn._await_exactly(NAMES, frozenset())
            await eventually(lambda: follower.names() == {"n2"})


async def test_a_reader_that_was_dropped_lists_again(path: Path) -> None:
    async with serving(path, unread=5) as agent, Follower(path).running() as follower:
        await eventually(lambda: follower.reflector.state.lists == 1)
        agent.put(NAMES, *(a_name(n) for n in range(6)))
        await eventually(lambda: len(follower.names()) == 6)
        assert (follower.reflector.state.lists, agent.server.dropped) == (2, 1)


async def test_nobody_there_is_transient_and_says_who_is_missing(path: Path) -> None:
    with pytest.raises(Transient, match=r"no process serves .*agent.sock: No such file"):
        await TableStore(path, NAMES).list()


async def test_a_table_that_the_process_has_not_is_transient_and_says_so(path: Path) -> None:
    async with serving(path, db=Database()):
        with pytest.raises(Transient, match=r"404 .*no table 'names' here"):
            await TableStore(path, NAMES).list()


async def test_a_watch_that_no_list_began_is_expired(path: Path) -> None:
    with pytest.raises(Expired):
        await anext(aiter(TableStore(path, NAMES).watch("x/1")))


async def test_what_cannot_be_read_is_transient_and_names_table_and_field(path: Path) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        listing = (
            b'{"list":{"instance":"i","revision":1,"complete":true,"pending":[],"keys":["k"],"rows":[{"name":7}]}}'
        )
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + listing + b"\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(nonsense, path):
        with pytest.raises(Transient, match=r"table 'names' cannot be read: .*\$\.list\.rows\[0\]\.name"):
            await TableStore(path, NAMES).list()


async def test_a_list_of_many_rows_comes_whole(path: Path) -> None:
    async with serving(path) as agent:
        agent.put(NAMES, *(a_name(n) for n in range(20_000)))
        store = TableStore(path, NAMES)
        assert len((await store.list()).items) == 20_000
        await store.close()
