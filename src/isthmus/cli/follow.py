"""Several tables of one process followed at once, as changes against what was printed before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isthmus.admin.protocol import Line
from isthmus.admin.query import QueryError, Socket

Row = Mapping[str, Any]

WAITING = 64
"""Lines read ahead of the terminal; beyond, the process is left to notice a slow reader."""


class Change(NamedTuple):
    """What became of a row: ADDED, MODIFIED or DELETED, and what it was."""

    table: str
    event: str
    key: str
    row: Row | None
    old: Row | None


def follow(socket: Socket, tables: Mapping[str, Mapping[str, Row]]) -> Iterator[list[Change]]:
    """Changes of tables, together where they came together, against the rows by key that are known of each already.

    QueryError when the process ends.
    """
    lines: queue.Queue[tuple[str, Line[Any] | QueryError]] = queue.Queue(WAITING)
    for table in tables:
        threading.Thread(target=_read, args=(socket, table, lines), daemon=True).start()
    known = {table: dict(rows) for table, rows in tables.items()}
    while True:
        table, line = lines.get()
        if isinstance(line, QueryError):
            raise line
        yield list(_changes(table, line, known[table]))


def _read(socket: Socket, table: str, lines: queue.Queue[tuple[str, Line[Any] | QueryError]]) -> None:
    """Read a table's lines for as long as the process answers; where it asks to list again, do."""
    try:
        while True:
            expired = False
            for line in socket.follow(table):
                lines.put((table, line))
                expired = bool(line.expired)
            if not expired:
                return lines.put((table, QueryError(f"the process at {socket.path} has ended")))
    except QueryError as why:
        lines.put((table, why))


def _changes(table: str, line: Line[Any], known: dict[str, Row]) -> Iterator[Change]:
    printed = {event.key: event.row for event in line.events}
    if line.list is not None:
        listed = dict(zip(line.list.keys, line.list.rows, strict=True))
        # What a partial list does not have may still come; of a complete one it is gone.
        printed = {**(dict.fromkeys(known) if line.list.complete else {}), **listed}
    for key, row in printed.items():
        old = known.pop(key, None)
        if row is not None:
            known[key] = row
        if row != old:
            yield Change(table, "DELETED" if row is None else "MODIFIED" if old else "ADDED", key, row, old)
