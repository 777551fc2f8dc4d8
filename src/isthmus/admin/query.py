"""Questions to an admin socket from a command: blocking, on the standard library alone, so that commands start fast."""

from __future__ import annotations

import copy
import http.client
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from isthmus.admin.protocol import VERSION, Failure, FeedLine, Line, Listing, TableLine

Dial = Callable[[float], socket.socket]
"""A new connection to an admin socket, with a timeout in seconds for each of its operations."""

# Decoders exist before any thread: msgspec 0.22 crashes if two threads meet a type for the first time at once.
_LINE: Final = msgspec.json.Decoder(Line[Any])
_TABLE_LINE: Final = msgspec.json.Decoder(TableLine[Any])
_FEED_LINE: Final = msgspec.json.Decoder(FeedLine[Any])
_LISTING: Final = msgspec.json.Decoder(Listing[Any])
_FAILURE: Final = msgspec.json.Decoder(Failure)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])
_ROWS: Final = msgspec.json.Decoder(list[dict[str, Any]])


class QueryError(Exception):
    """The request failed; the message has the reason and what to do."""


class NoTable(QueryError):  # noqa: N818
    """The process answers and has no such table; ``tables`` are those it has."""

    def __init__(self, message: str, tables: list[str]) -> None:
        super().__init__(message)
        self.tables = tables


class Unreachable(QueryError):  # noqa: N818
    """No process answers at the socket."""


class Socket:
    """One process's admin socket."""

    def __init__(
        self,
        path: Path,
        *,
        timeout: float = 10.0,
        dial: Dial | None = None,
        ended: Callable[[], str] = str,
        name: str = "",
    ) -> None:
        """``ended``: why the last connection that ``dial`` made ended by itself; empty where that is not known.

        ``name`` tells processes of one path apart, such as a node's; the path by default.
        """
        self.path = path
        self.name = name or str(path)
        self._ended = ended
        self._timeout = timeout
        self._dial = dial or partial(_unix, path)
        self._kept: http.client.HTTPConnection | None = None
        """The connection of the last question, where dialling is expensive: it serves the next one too."""
        self._keep = dial is not None

    def __repr__(self) -> str:
        return f"<Socket {self.path}>"

    def close(self) -> None:
        """End the connection that is kept for the next question, if there is one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def clone(self) -> Socket:
        """Return the same process's socket for another thread: a kept connection serves one question at a time."""
        if not self._keep:
            return Socket(self.path, timeout=self._timeout, name=self.name)
        dial = copy.copy(self._dial)
        ended = getattr(dial, "ended", str)
        return Socket(self.path, timeout=self._timeout, dial=dial, ended=ended, name=self.name)

    @property
    def dials(self) -> bool:
        """``True`` if a connection is expensive and kept for the next question."""
        return self._keep

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the process's report. ``timeout``: seconds to wait, if other than for other questions.

        A connection that is expensive to dial has the usual time.
        """
        with self._get("status", timeout=None if self._keep else timeout) as response:
            return _OBJECT.decode(response.read())

    def tables(self) -> dict[str, Any]:
        """The names of its tables, with their numbers."""
        with self._get("tables") as response:
            return msgspec.convert(_OBJECT.decode(response.read()).get("tables"), dict[str, Any])

    def table(self, name: str, *, wait: float = 0.0, under: str = "") -> Listing[Any]:
        """Return every row of a table as JSON objects, complete or not after ``wait`` seconds.

        ``under`` selects rows by a prefix (``demo/``) in tables that the process orders by namespace.
        """
        with self._get(f"tables/{quote(name, safe='')}", wait=wait, under=under) as response:
            return _LISTING.decode(response.read())

    def follow(self, name: str) -> Generator[Line[Any], None, None]:
        """The table as a first line, then its changes, until the process ends or this is closed."""
        with self._get(f"tables/{quote(name, safe='')}", watch=1, wait=0) as response:
            self._without_timeout(response)
            try:
                while text := response.readline():
                    yield _LINE.decode(text)
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                return  # the process went in the middle of a line: the same as its end

    def watch(self, names: Sequence[str]) -> Generator[TableLine[Any], None, None]:
        """Several tables on one connection: a list of each, then changes, until the process ends."""
        with self._get("watch", table=[*names]) as response:
            self._without_timeout(response)
            try:
                while text := response.readline():
                    yield _TABLE_LINE.decode(text)
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                return  # the process went in the middle of a line: the same as its end

    def counters(self, name: str) -> list[dict[str, Any]]:
        """Growing numbers of the process, as of now."""
        with self._get(f"counters/{quote(name, safe='')}") as response:
            return _ROWS.decode(response.read())

    def feed(self, name: str, *, last: int = 0, follow: bool = False) -> Generator[FeedLine[Any], None, None]:
        """Yield the newest rows of a feed as a first line, then, if followed, later rows until the process ends."""
        with self._get(f"feeds/{quote(name, safe='')}", last=last, **({"follow": 1} if follow else {})) as response:
            if not follow:  # one line: half of it is no answer, since without rows it would read as "nothing happened"
                yield _FEED_LINE.decode(response.readline())
                return
            self._without_timeout(response)
            try:
                while text := response.readline():
                    yield _FEED_LINE.decode(text)
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                return  # the process went in the middle of a line: the same as its end

    @contextmanager
    def _get(
        self, path: str, *, timeout: float | None = None, **query: float | str | list[str]
    ) -> Iterator[http.client.HTTPResponse]:
        connection, self._kept = self._kept or _Connection(self._dial, timeout=timeout or self._timeout), None
        try:
            headers = {"Connection": "keep-alive" if self._keep else "close"}
            connection.request("GET", f"/{VERSION}/{path}?{urlencode(query, doseq=True)}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refusal(response)
            yield response
            if self._keep and response.isclosed():  # read to its end: the connection is free
                self._kept = connection
        except (OSError, http.client.HTTPException) as error:  # in the middle of the answer, too
            raise Unreachable(self._ended() or _why(self.path, error)) from None
        except msgspec.MsgspecError as error:
            raise QueryError(f"{self.path}: the answer cannot be read: {error}") from None
        finally:
            if self._kept is not connection:
                connection.close()

    def _refusal(self, response: http.client.HTTPResponse) -> QueryError:
        try:
            failure = _FAILURE.decode(response.read())
        except msgspec.DecodeError:
            failure = Failure(error=f"{self.path}: HTTP {response.status}")
        if response.status == 404:
            return NoTable(failure.error, failure.tables)
        return QueryError(failure.error)

    def _without_timeout(self, response: http.client.HTTPResponse) -> None:
        """No timeout between lines: a table may not change for hours."""
        raw = getattr(response.fp, "raw", None)
        if raw is not None:
            raw._sock.settimeout(None)


class _Connection(http.client.HTTPConnection):
    def __init__(self, dial: Dial, *, timeout: float) -> None:
        super().__init__("isthmus", timeout=timeout)
        self._dial = dial
        self._seconds = timeout

    def connect(self) -> None:
        self.sock = self._dial(self._seconds)


def _unix(path: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _why(path: Path, error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return f"no process serves {path}: start it, or name its socket with --socket"
        case ConnectionRefusedError():
            return f"the process that served {path} has ended: start it again"
        case PermissionError():
            return f"{path} is its owner's only: run this command as that user (sudo)"
        case http.client.IncompleteRead():
            return f"{path}: the process ended in the middle of its answer"
        case TimeoutError():
            return f"{path}: no answer in time: the process is busy or stopped"
        case _:
            return f"{path}: {error}"
