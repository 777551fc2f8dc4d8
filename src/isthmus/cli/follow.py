"""Several tables of one process followed at once, as changes against what was printed before."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isthmus.admin.protocol import Line
from isthmus.admin.query import QueryError, Socket
from isthmus.cli.arrivals import Arrivals

Row = Mapping[str, Any]
Arrival = tuple[str, Line[Any] | QueryError]
"""A table, and a line of it or the reason why there are no more."""

WAITING = 64
"""Lines read ahead of the terminal; beyond, the process is left to notice a slow reader."""


class Change(NamedTuple):
    """A change of a row: ADDED, MODIFIED or DELETED, and its previous state."""

    table: str
    event: str
    key: str
    row: Row | None
    old: Row | None


def follow(
    socket: Socket, tables: Mapping[str, Mapping[str, Row]], *, period: float | None = None
) -> Iterator[list[Change]]:
    """Yield changes of tables, those of a transaction together, against the rows by key that are known already.

    With ``period``, all changes of that many seconds are yielded together, and an empty list if there are none. Raises
    QueryError when the process ends.
    """
    lines: Arrivals[Arrival] = Arrivals(WAITING)
    for table in tables:
        threading.Thread(target=_read, args=(socket, table, lines), daemon=True).start()
    rows_by_table = {table: dict(rows) for table, rows in tables.items()}
    while True:
        changes: list[Change] = []
        for table, line in _arriving(lines, period):
            if isinstance(line, QueryError):
                raise line
            changes += _changes(table, line, rows_by_table[table])
        yield changes


def _arriving(lines: Arrivals[Arrival], period: float | None) -> Iterator[Arrival]:
    """The next line, or all lines of a period."""
    if period is None:
        yield lines.get()
        return
    end = time.monotonic() + period
    while (left := end - time.monotonic()) > 0:
        try:
            yield lines.get(timeout=left)
        except queue.Empty:
            return


def _read(socket: Socket, table: str, lines: Arrivals[Arrival]) -> None:
    """Read a table's lines for as long as the process answers; where it asks to list again, do."""
    try:
        while True:
            expired = False
            for line in socket.follow(table):
                lines.put((table, line))
                expired = bool(line.expired)
            if not expired:
                return lines.put((table, QueryError(f"the process at {socket.path} has ended")))
    except QueryError as error:
        lines.put((table, error))


def _changes(table: str, line: Line[Any], rows_by_key: dict[str, Row]) -> Iterator[Change]:
    printed = {event.key: event.row for event in line.events}
    if line.list is not None:
        listed = dict(zip(line.list.keys, line.list.rows, strict=True))
        # What a partial list does not have may still come; of a complete one it is gone.
        printed = {**(dict.fromkeys(rows_by_key) if line.list.complete else {}), **listed}
    for key, row in printed.items():
        old = rows_by_key.pop(key, None)
        if row is not None:
            rows_by_key[key] = row
        if row != old:
            yield Change(table, "DELETED" if row is None else "MODIFIED" if old else "ADDED", key, row, old)
