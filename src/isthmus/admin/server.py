"""The server of the admin socket: any table, listed once it is complete, followed for as long as the client reads.

A watch holds one batch of lines and one bounded reader of the table, which keeps a key once however often it changes.
So a client that reads slowly costs little; one that falls further behind, or reads nothing at all, is dropped and has
to list again.
"""

from __future__ import annotations

import asyncio
import socket as sockets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiohttp import ClientConnectionResetError, web
from msgspec import structs

import isthmus
from isthmus import bounds, logs
from isthmus.admin import listener
from isthmus.admin.feed import Feed
from isthmus.admin.protocol import (
    GONE,
    VERSION,
    Event,
    Failure,
    FeedLine,
    Line,
    Listing,
    ProcessStatus,
    TableLine,
    encodable,
    encode,
    key_text,
)
from isthmus.bounds import OutOfBounds
from isthmus.model.tables import FAULTS
from isthmus.statedb import Change, Changes, Database, Faults, Overrun, Snapshot, Table, describe_bug, raised_at

MAX_WAIT: Final = 3600.0
"""Seconds that a client may wait for a table to be complete."""

log = logs.get("admin")

UNREAD = 100_000
"""Changed keys that a watch may leave unread."""
STALL = 30.0
"""Seconds for which a client may leave the socket full."""
CHUNK = 500
"""Rows encoded at once."""
UNDER = "under"
"""The ordered index by which a table is listed below ``namespace/``; one without it is listed whole."""

AnyTable = Table[Any, Any]
WriteLine = Callable[[TableLine[Any]], Awaitable[None]]
Rows = list[dict[str, Any]]
Counters = Mapping[str, Callable[[], Rows | Awaitable[Rows]]]
"""Functions that measure something at a request, by name; what takes longer than a moment does so in a thread."""


class _Shown(NamedTuple):
    """State that is served from one :meth:`Server.show` to the next."""

    db: Database
    status: Callable[[], ProcessStatus]
    feeds: Mapping[str, Feed[Any]]
    timeout: float
    instance: str
    """Distinguishes the revisions of this database from those of another."""
    faults: Faults
    """Rows that cannot be written."""
    counters: Counters


def _shown(
    db: Database,
    status: Callable[[], ProcessStatus],
    feeds: Mapping[str, Feed[Any]] | None,
    counters: Counters | None,
    timeout: float,
) -> _Shown:
    faults = Faults(db, FAULTS, "admin socket", kind="rows")
    return _Shown(db, status, feeds or {}, timeout, uuid.uuid4().hex, faults, counters or {})


class Server:
    """Serves a database's tables and the process's status on a unix socket, from :meth:`run` to its cancellation.

    A process claims its socket before it touches anything that another process with the same socket may be using.
    """

    def __init__(
        self,
        db: Database,
        socket: str | Path,
        *,
        status: Callable[[], ProcessStatus] = ProcessStatus,
        feeds: Mapping[str, Feed[Any]] | None = None,
        counters: Counters | None = None,
        timeout: float = 60.0,
        unread: int = UNREAD,
        stall: float = STALL,
    ) -> None:
        self._path = Path(socket)
        self._unread = unread
        self._stall = stall
        self._started = time.time()
        self._open = asyncio.Event()
        self._socket: sockets.socket | None = None
        self._following: set[asyncio.Task[Any]] = set()
        self._shown = _shown(db, status, feeds, counters, timeout)
        self.watching = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<admin.Server {self._path}: {self.watching} watching, {self.dropped} dropped>"

    @property
    def instance(self) -> str:
        """Identifier of the database that is served now."""
        return self._shown.instance

    def show(
        self,
        db: Database,
        *,
        status: Callable[[], ProcessStatus],
        feeds: Mapping[str, Feed[Any]] | None = None,
        counters: Counters | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Serve another database from now on. Who follows a table of the earlier one has to list again."""
        self._shown = _shown(db, status, feeds, counters, timeout)
        for task in self._following:
            task.cancel()

    def claim(self) -> None:
        """Take the socket; ConfigError when it cannot be had, as where another process serves there."""
        if self._socket is None:
            self._socket = listener.listen(self._path)

    async def run(self) -> None:
        """Serve until cancelled; ConfigError when the socket cannot be had."""
        self.claim()
        sock, self._socket = self._socket, None
        assert sock is not None
        inode = self._path.stat().st_ino
        runner = web.AppRunner(self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        try:
            await runner.setup()
            await web.SockSite(runner, sock).start()
            self._open.set()
            await asyncio.Event().wait()
        finally:
            listener.forget(self._path, inode)
            await runner.cleanup()
            sock.close()

    async def listening(self) -> None:
        """Return when clients can connect."""
        await self._open.wait()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[_explain])
        app.router.add_get(f"/{VERSION}/tables", self._tables)
        app.router.add_get(f"/{VERSION}/tables/{{table}}", self._table)
        app.router.add_get(f"/{VERSION}/watch", self._watch)
        app.router.add_get(f"/{VERSION}/feeds/{{feed}}", self._feed)
        app.router.add_get(f"/{VERSION}/counters/{{counters}}", self._counters)
        app.router.add_get(f"/{VERSION}/status", self._process_status)
        return app

    async def _tables(self, request: web.Request) -> web.Response:
        return _json({"instance": self.instance, "tables": self._shown.db.stats()})

    async def _process_status(self, request: web.Request) -> web.Response:
        tables, status = self._shown.db.stats(), self._known_status()
        general: dict[str, Any] = {
            "version": isthmus.__version__,
            "instance": self.instance,
            "uptime": round(time.time() - self._started, 1),
            "ready": not status.problems and not any(table.pending for table in tables.values()),
            "tables": tables,
        }
        return _json(general | structs.asdict(status))

    def _known_status(self) -> ProcessStatus:
        """The status, or why it cannot be computed: the tables are shown nevertheless."""
        try:
            return self._shown.status()
        except MemoryError:
            raise
        except Exception as error:
            return ProcessStatus(problems=(f"the status cannot be computed: {describe_bug(error)}",))

    async def _table(self, request: web.Request) -> web.StreamResponse:
        shown = self._shown
        table = shown.db.tables.get(request.match_info["table"])
        if table is None:
            known = list(shown.db.tables)
            why = f"no table '{request.match_info['table']}' here; there are: {', '.join(known)}"
            return _json(Failure(error=why, tables=known), status=404)
        query = request.query
        try:
            wait = bounds.number(query.get("wait", shown.timeout), most=MAX_WAIT, field="wait")
            asked = query.get("revision")
            revision = None if asked is None else bounds.count(asked, most=bounds.MAX_INT64, field="revision")
        except OutOfBounds as why:
            return _failure(400, str(why))
        if not query.get("watch"):
            await _complete(shown.db, table, wait)
            listing = _listing(shown, shown.db.snapshot(), table, under=query.get("under", ""))
            return web.Response(body=_encoded(shown, listing), content_type="application/json")
        if revision is None:
            await _complete(shown.db, table, wait)
            return await self._follow(request, shown, table, with_list=True)
        current = shown.db.snapshot().revision(table)
        if query.get("instance") != shown.instance or revision != current:
            return _failure(GONE, f"instance {shown.instance} has revision {current} of '{table.name}'; list again")
        return await self._follow(request, shown, table, with_list=False)

    async def _counters(self, request: web.Request) -> web.Response:
        name = request.match_info["counters"]
        read = self._shown.counters.get(name)
        if read is None:
            return _failure(404, f"this process has no counters '{name}'")
        rows = read()
        return _json(await rows if isinstance(rows, Awaitable) else rows)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """Follow several tables. The answer ends when one of them cannot be followed, and with the process."""
        shown, names = self._shown, request.query.getall("table", [])
        if absent := [name for name in names if name not in shown.db.tables]:
            known = list(shown.db.tables)
            return _json(Failure(error=f"no table '{absent[0]}' here", tables=known), status=404)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        turn = asyncio.Lock()

        async def write(line: TableLine[Any]) -> None:
            async with turn:
                await self._write(response, shown, line)

        try:
            async with asyncio.TaskGroup() as tasks:
                for name in dict.fromkeys(names):
                    tasks.create_task(self._watch_table(shown, shown.db.tables[name], write))
        except* (Overrun, TimeoutError) as errors:
            await self._drop(request, response, str(errors.exceptions[0]) or f"nothing read for {self._stall:g} s")
        except* (ClientConnectionResetError, ConnectionError):
            pass  # the client left
        return response

    async def _watch_table(self, shown: _Shown, table: AnyTable, write: WriteLine) -> None:
        """Write a table, then its changes; the whole table again when a partial one is complete."""
        async with self._reader(shown, table) as reader:
            snapshot, _ = reader.next()
            await write(TableLine(table=table.name, list=_listing(shown, snapshot, table)))
            if not snapshot.initialized(table):
                snapshot = await self._watch_partial(shown, table, reader, write)
                await write(TableLine(table=table.name, list=_listing(shown, snapshot, table)))
            while True:
                await shown.db.until(lambda now: reader.ready)
                snapshot, changes = reader.next()
                await _write_events(snapshot, table, changes, write)

    async def _watch_partial(self, shown: _Shown, table: AnyTable, reader: Changes[Any], write: WriteLine) -> Snapshot:
        """Write the changes of a partial table until it is complete."""
        while True:
            await shown.db.until(lambda now: reader.ready or now.initialized(table))
            snapshot, changes = reader.next()
            if snapshot.initialized(table):
                return snapshot
            await _write_events(snapshot, table, changes, write)

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        name, query = request.match_info["feed"], request.query
        shown = self._shown
        feed = shown.feeds.get(name)
        if feed is None or feed.off:
            return _failure(404, feed.off if feed else f"this process has no feed '{name}'")
        try:
            last = bounds.count(query.get("last", "0"), most=bounds.MAX_INT64, field="last")
        except OutOfBounds as error:
            return _failure(400, str(error))
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with feed.reader() as reader:
            await response.prepare(request)
            try:
                await self._write(response, shown, feed.last(last))
                while query.get("follow"):
                    await self._write(response, shown, await reader.next())
            except TimeoutError:
                log.warning("a reader that does not read is dropped", request=request.path)
                if request.transport is not None:
                    request.transport.abort()
            except (ClientConnectionResetError, ConnectionError):
                pass  # the client left
        return response

    async def _follow(
        self, request: web.Request, shown: _Shown, table: AnyTable, *, with_list: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        async with self._reader(shown, table) as reader:
            snapshot, _ = reader.next()
            first = Line(list=_listing(shown, snapshot, table)) if with_list else None
            await response.prepare(request)
            try:
                if first is not None:
                    await self._write(response, shown, first)
                await self._write_changes(response, shown, table, reader, partial=not snapshot.initialized(table))
            except (Overrun, TimeoutError) as error:
                await self._drop(request, response, str(error) or f"nothing read for {self._stall:g} s")
            except (ClientConnectionResetError, ConnectionError):
                pass  # the client left
        return response

    @asynccontextmanager
    async def _reader(self, shown: _Shown, table: AnyTable) -> AsyncIterator[Changes[Any]]:
        """A reader of a table. The block ends when another database is shown, as if it had come to its end."""
        reader, task = shown.db.changes(table, limit=self._unread), asyncio.current_task()
        assert task is not None
        self.watching += 1
        self._following.add(task)
        try:
            yield reader
        except asyncio.CancelledError:
            if shown is self._shown:
                raise
            task.uncancel()
        finally:
            self._following.discard(task)
            self.watching -= 1
            reader.close()

    async def _write_changes(
        self, response: web.StreamResponse, shown: _Shown, table: AnyTable, reader: Changes[Any], *, partial: bool
    ) -> None:
        """Changes as they come. A client whose list was partial has to list again once the table is complete."""
        while True:
            await shown.db.until(lambda now: reader.ready or (partial and now.initialized(table)))
            snapshot, changes = reader.next()
            for events in _chunks(Event(key_text(change.key), change.new) for change in changes):
                await self._write(response, shown, Line(revision=snapshot.revision(table), events=events))
            if partial and snapshot.initialized(table):
                return await self._write(response, shown, Line(expired=f"table '{table.name}' is complete now"))

    async def _write(self, response: web.StreamResponse, shown: _Shown, line: Line[Any] | FeedLine[Any]) -> None:
        async with asyncio.timeout(self._stall):
            await response.write(_encoded(shown, line) + b"\n")

    async def _drop(self, request: web.Request, response: web.StreamResponse, reason: str) -> None:
        """Send the reason where the client still reads, and abort the connection, which frees its buffer."""
        self.dropped += 1
        log.warning("a slow reader is dropped", request=request.path, why=reason)
        try:
            async with asyncio.timeout(1.0):
                await response.write(encode(Line[Any](expired=reason)) + b"\n")
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()


@web.middleware
async def _explain(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors of the web server in our format."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        return _failure(error.status, f"{request.path}: {error.reason}")
    return response


def _encoded(shown: _Shown, value: Listing[Any] | Line[Any] | FeedLine[Any]) -> bytes:
    """Encode rows as JSON, without those that cannot be written, which are faults."""
    try:
        return encode(value)
    except MemoryError:
        raise
    except Exception as error:
        shown.faults.failed(raised_at(error), error)
        shown.faults.publish()
        return encode(_writable(value))


def _writable(value: Listing[Any] | Line[Any] | FeedLine[Any]) -> Listing[Any] | Line[Any] | FeedLine[Any]:
    match value:
        case Listing():
            kept = [each for each in zip(value.keys, value.rows, strict=True) if encodable(each)]
            return structs.replace(value, keys=[key for key, _ in kept], rows=[row for _, row in kept])
        case FeedLine():
            return structs.replace(value, rows=tuple(filter(encodable, value.rows)))
    listing = _writable(value.list) if value.list is not None else None
    return structs.replace(value, list=listing, events=tuple(filter(encodable, value.events)))


async def _write_events(snapshot: Snapshot, table: AnyTable, changes: Iterable[Change[Any]], write: WriteLine) -> None:
    for events in _chunks(Event(key_text(change.key), change.new) for change in changes):
        await write(TableLine(table=table.name, revision=snapshot.revision(table), events=events))


async def _complete(db: Database, table: AnyTable, timeout: float) -> None:
    """Wait until the table is complete, for ``timeout`` seconds at most."""
    try:
        async with asyncio.timeout(timeout):
            await db.until(lambda snapshot: snapshot.initialized(table))
    except TimeoutError:
        pass


def _listing(shown: _Shown, snapshot: Snapshot, table: AnyTable, *, under: str = "") -> Listing[Any]:
    in_order = under and UNDER in table.indexes
    rows = list(snapshot.prefix(table, UNDER, under) if in_order else snapshot.all(table))
    return Listing(
        instance=shown.instance,
        revision=snapshot.revision(table),
        complete=snapshot.initialized(table),
        pending=sorted(snapshot.pending(table)),
        keys=[key_text(table.key(row)) for row in rows],
        rows=rows,
    )


def _chunks(events: Iterable[Event[Any]]) -> Iterable[tuple[Event[Any], ...]]:
    iterator = iter(events)
    while chunk := tuple(islice(iterator, CHUNK)):
        yield chunk


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=status, content_type="application/json")


def _failure(status: int, reason: str) -> web.Response:
    return _json(Failure(error=reason), status=status)
