"""A table of another process as a store for the reflector.

List and watch are one request: the list is its first line, and the watch continues after it, so
nothing can be missed between them. Whatever breaks that one stream means: list again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from isthmus.admin.protocol import VERSION, Line
from isthmus.admin.protocol import Listing as WireListing
from isthmus.reflector import Batch, Event, Expired, Listing, Transient
from isthmus.statedb import Table

R = TypeVar("R")


class TableStore(Generic[R]):
    """One table behind a process's admin socket, as a reflector.Store of its rows by key text."""

    def __init__(self, socket: str | Path, table: Table[Any, R]) -> None:
        self._socket = str(socket)
        self._table = table.name
        self._decoder = msgspec.json.Decoder(Line[table.row])  # type: ignore[name-defined]
        self._stream: _Stream | None = None

    def __repr__(self) -> str:
        return f"<TableStore {self._table} at {self._socket}>"

    async def list(self) -> Listing[R]:
        """Return every row when the process has a complete table, or a partial list after its time-out."""
        await self.close()
        stream = _Stream(self._socket, self._table)
        try:
            line = self._decode(await stream.open())
        except BaseException:
            await stream.close()
            raise
        if (listing := line.list) is None:
            await stream.close()
            raise Transient(f"{self._socket}: the watch of '{self._table}' did not begin with a list")
        self._stream = stream
        items = dict(zip(listing.keys, listing.rows, strict=True))
        return Listing(items, _revision(listing), partial=not listing.complete)

    async def watch(self, revision: str) -> AsyncIterator[Batch[R]]:
        """Yield the changes after the list of this revision, on the connection that returned it."""
        stream, self._stream = self._stream, None
        if stream is None:
            raise Expired(f"the watch of '{self._table}' has ended")
        instance = revision.partition("/")[0]
        try:
            async for text in stream.lines():
                line = self._decode(text)
                if line.expired:
                    raise Expired(line.expired)
                yield Batch([Event(event.key, event.row) for event in line.events], f"{instance}/{line.revision}")
        finally:
            await stream.close()

    async def close(self) -> None:
        """End what a list began and no watch has taken up."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _decode(self, text: bytes) -> Line[R]:
        try:
            line: Line[R] = self._decoder.decode(text)
        except msgspec.DecodeError as error:
            raise Transient(f"{self._socket}: table '{self._table}' cannot be read: {error}") from None
        return line


class _Stream:
    """One watch request, foreign errors translated."""

    def __init__(self, socket: str, table: str) -> None:
        self._where = socket
        self._url = f"http://isthmus/{VERSION}/tables/{table}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(socket),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        self._response: aiohttp.ClientResponse | None = None
        self._read = bytearray()

    async def open(self) -> bytes:
        """Ask; give the first line."""
        try:
            self._response = await self._session.get(self._url, params={"watch": "1"})
            if self._response.status != 200:
                raise Transient(f"{self._where}: {self._response.status} {(await self._response.text())[:200]}")
            return await self._line()
        except aiohttp.ClientConnectorError as error:
            raise Transient(f"no process serves {self._where}: {error.os_error.strerror}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(f"{self._where}: {error}") from None

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines after the first, until the server ends."""
        try:
            while line := await self._line():
                yield line
        except aiohttp.ClientPayloadError:
            raise Transient(f"{self._where}: the process went") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(f"{self._where}: {error}") from None

    async def _line(self) -> bytes:
        """The next whole line; nothing at the end, where half a line is no line."""
        assert self._response is not None
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            if not (chunk := await self._response.content.readany()):
                return b""
            self._read += chunk
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    async def close(self) -> None:
        if self._response is not None:
            self._response.close()
        await self._session.close()


def _revision(listing: WireListing[Any]) -> str:
    return f"{listing.instance}/{listing.revision}"
