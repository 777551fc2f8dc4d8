"""The server of the admin socket: any table, listed once it is complete, followed for as long as the client reads.

A watch holds one batch of lines and one bounded reader of the table, which keeps a key once however often it changes.
So a client that reads slowly costs little; one that falls further behind, or reads nothing at all, is dropped and has
to list again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from aiohttp import ClientConnectionResetError, web
from msgspec import structs

import isthmus
from isthmus import logs
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
    encode,
    key_text,
)
from isthmus.statedb import Changes, Database, Overrun, Snapshot, Table

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


class Server:
    """Serves a database's tables and the process's status on a unix socket, from :meth:`run` to its cancellation."""

    def __init__(
        self,
        db: Database,
        socket: str | Path,
        *,
        status: Callable[[], ProcessStatus] = ProcessStatus,
        feeds: Mapping[str, Feed[Any]] | None = None,
        timeout: float = 60.0,
        unread: int = UNREAD,
        stall: float = STALL,
    ) -> None:
        self._db = db
        self._path = Path(socket)
        self._status = status
        self._feeds = feeds or {}
        self._timeout = timeout
        self._unread = unread
        self._stall = stall
        self._started = time.time()
        self._open = asyncio.Event()
        self.instance = uuid.uuid4().hex
        self.watching = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<admin.Server {self._path}: {self.watching} watching, {self.dropped} dropped>"

    async def run(self) -> None:
        """Serve until cancelled; ConfigError when the socket cannot be had."""
        sock = listener.listen(self._path)
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
        app.router.add_get(f"/{VERSION}/feeds/{{feed}}", self._feed)
        app.router.add_get(f"/{VERSION}/status", self._process_status)
        return app

    async def _tables(self, request: web.Request) -> web.Response:
        return _json({"instance": self.instance, "tables": self._db.stats()})

    async def _process_status(self, request: web.Request) -> web.Response:
        tables, status = self._db.stats(), self._status()
        general: dict[str, Any] = {
            "version": isthmus.__version__,
            "instance": self.instance,
            "uptime": round(time.time() - self._started, 1),
            "ready": not status.problems and not any(table.pending for table in tables.values()),
            "tables": tables,
        }
        return _json(general | structs.asdict(status))

    async def _table(self, request: web.Request) -> web.StreamResponse:
        table = self._db.tables.get(request.match_info["table"])
        if table is None:
            known = list(self._db.tables)
            why = f"no table '{request.match_info['table']}' here; there are: {', '.join(known)}"
            return _json(Failure(error=why, tables=known), status=404)
        query = request.query
        try:
            wait = float(query["wait"]) if "wait" in query else self._timeout
            revision = int(query["revision"]) if "revision" in query else None
        except ValueError:
            return _failure(400, "wait and revision are numbers")
        if not query.get("watch"):
            await self._complete(table, wait)
            return _json(self._listing(self._db.snapshot(), table, under=query.get("under", "")))
        if revision is None:
            await self._complete(table, wait)
            return await self._follow(request, table, with_list=True)
        present = self._db.snapshot().revision(table)
        if query.get("instance") != self.instance or revision != present:
            return _failure(GONE, f"instance {self.instance} has revision {present} of '{table.name}'; list again")
        return await self._follow(request, table, with_list=False)

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        name, query = request.match_info["feed"], request.query
        feed = self._feeds.get(name)
        if feed is None or feed.off:
            return _failure(404, feed.off if feed else f"this process has no feed '{name}'")
        try:
            last = int(query.get("last", "0"))
        except ValueError:
            return _failure(400, "last is a number")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        with feed.reader() as reader:
            await response.prepare(request)
            try:
                await self._write(response, feed.last(last))
                while query.get("follow"):
                    await self._write(response, await reader.next())
            except TimeoutError:
                log.warning("a reader that does not read is dropped", request=request.path)
                if request.transport is not None:
                    request.transport.abort()
            except (ClientConnectionResetError, ConnectionError):
                pass  # the client left
        return response

    async def _complete(self, table: AnyTable, timeout: float) -> None:
        """Wait until the table is complete, for ``timeout`` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                await self._db.until(lambda snapshot: snapshot.initialized(table))
        except TimeoutError:
            pass

    def _listing(self, snapshot: Snapshot, table: AnyTable, *, under: str = "") -> Listing[Any]:
        in_order = under and UNDER in table.indexes
        rows = list(snapshot.prefix(table, UNDER, under) if in_order else snapshot.all(table))
        return Listing(
            instance=self.instance,
            revision=snapshot.revision(table),
            complete=snapshot.initialized(table),
            pending=sorted(snapshot.pending(table)),
            keys=[key_text(table.key(row)) for row in rows],
            rows=rows,
        )

    async def _follow(self, request: web.Request, table: AnyTable, *, with_list: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        async with self._reader(table) as reader:
            snapshot, _ = reader.next()
            first = Line(list=self._listing(snapshot, table)) if with_list else None
            await response.prepare(request)
            try:
                if first is not None:
                    await self._write(response, first)
                await self._write_changes(response, table, reader, partial=not snapshot.initialized(table))
            except (Overrun, TimeoutError) as why:
                await self._drop(request, response, str(why) or f"nothing read for {self._stall:g} s")
            except (ClientConnectionResetError, ConnectionError):
                pass  # the client left
        return response

    @asynccontextmanager
    async def _reader(self, table: AnyTable) -> AsyncIterator[Changes[Any]]:
        reader = self._db.changes(table, limit=self._unread)
        self.watching += 1
        try:
            yield reader
        finally:
            self.watching -= 1
            reader.close()

    async def _write_changes(
        self, response: web.StreamResponse, table: AnyTable, reader: Changes[Any], *, partial: bool
    ) -> None:
        """Changes as they come. A client whose list was partial has to list again once the table is complete."""
        while True:
            await self._db.until(lambda now: reader.ready or (partial and now.initialized(table)))
            snapshot, changes = reader.next()
            for events in _chunks(Event(key_text(change.key), change.new) for change in changes):
                await self._write(response, Line(revision=snapshot.revision(table), events=events))
            if partial and snapshot.initialized(table):
                return await self._write(response, Line(expired=f"table '{table.name}' is complete now"))

    async def _write(self, response: web.StreamResponse, line: Line[Any] | FeedLine[Any]) -> None:
        async with asyncio.timeout(self._stall):
            await response.write(encode(line) + b"\n")

    async def _drop(self, request: web.Request, response: web.StreamResponse, why: str) -> None:
        """Send the reason where the client still reads, and abort the connection, which frees its buffer."""
        self.dropped += 1
        log.warning("a slow reader is dropped", request=request.path, why=why)
        try:
            async with asyncio.timeout(1.0):
                await response.write(encode(Line[Any](expired=why)) + b"\n")
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


def _chunks(events: Iterable[Event[Any]]) -> Iterable[tuple[Event[Any], ...]]:
    iterator = iter(events)
    while chunk := tuple(islice(iterator, CHUNK)):
        yield chunk


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=status, content_type="application/json")


def _failure(status: int, why: str) -> web.Response:
    return _json(Failure(error=why), status=status)
