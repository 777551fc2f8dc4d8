"""What changed since a reader last looked, deletions included.

A reader keeps, per key, the row as the reader last saw it. So it coalesces (a hundred writes between two reads are one
change), needs no graveyard, and its memory is bounded by the distinct keys it has not yet read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from isthmus.statedb.errors import Overrun
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.table import Table

if TYPE_CHECKING:
    from isthmus.statedb.database import Database

R = TypeVar("R")


class Change(NamedTuple, Generic[R]):
    """What became of one key since the reader last looked: put (``new``) or deleted (``new`` is None)."""

    key: Any
    old: R | None
    new: R | None


class Changes(Generic[R]):
    """One reader of a table's changes, deletions included; it starts with every present row as an insert.

    Read with :meth:`next`, wait with :meth:`wait`, end with :meth:`close`: an abandoned reader keeps what it missed.
    With a ``limit`` it keeps no more than that many keys: one that falls further behind gets Overrun.
    """

    def __init__(self, database: Database, table: Table[Any, R], *, limit: int | None = None) -> None:
        self._database = database
        self._table = table
        self._limit = limit
        self._overrun = False
        self._seen_before: dict[Any, R | None] = {table.key(row): None for row in database.snapshot().all(table)}
        self._shared = False
        """Whether that dict is the one of a transaction, which other readers may hold too."""
        self._wake = asyncio.Event()
        if self._seen_before:
            self._wake.set()

    def __repr__(self) -> str:
        return f"<Changes of {self._table.name}, {len(self._seen_before)} unread>"

    @property
    def unread(self) -> int:
        """How many keys have changed since the last read."""
        return len(self._seen_before)

    @property
    def ready(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._wake.is_set()

    def next(self) -> tuple[Snapshot, list[Change[R]]]:
        """The present snapshot, and what changed up to it since the last call, in order of first change."""
        before = self._take()
        snapshot = self._database.snapshot()
        changes, present = [], snapshot.get_all(self._table, before)
        for (key, old), new in zip(before.items(), present, strict=True):  # hot:
            if old is not new and (old is None or new is None or old != new):
                changes.append(Change(key, old, new))
        return snapshot, changes

    def pairs(self) -> list[tuple[R | None, R | None]]:
        """What changed since the last call as (old row, new row), where no snapshot is needed."""
        reader, before = self._database.present(), self._take()
        present = reader.get_all(self._table, before)
        return [
            (old, new)
            for old, new in zip(before.values(), present, strict=True)
            if old is not new and (old is None or new is None or old != new)
        ]

    def _take(self) -> dict[Any, R | None]:
        """The rows before, by key; nothing is unread from now on."""
        if self._overrun:
            raise Overrun(f"more than {self._limit} rows of '{self._table.name}' changed between two reads")
        before, self._seen_before = self._seen_before, {}
        self._wake.clear()
        return before

    async def wait(self) -> None:
        """Return when there is something to read."""
        await self._wake.wait()

    def close(self) -> None:
        """Stop tracking; the reader must not be used again."""
        self._seen_before = {}
        self._database._forget(self, self._table)

    def _committed(self, touched: dict[Any, Any]) -> None:
        if not self._seen_before:
            self._seen_before, self._shared = touched, True
        else:
            if self._shared:
                self._seen_before, self._shared = dict(self._seen_before), False
            deque(map(self._seen_before.setdefault, touched, touched.values()), maxlen=0)
        if self._limit is not None and len(self._seen_before) > self._limit:
            self._overrun = True
            self.close()
        self._wake.set()
