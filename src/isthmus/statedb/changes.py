"""What changed since a reader last looked, deletions included.

A reader keeps, per key, the row as the reader last saw it and the one that was written last. So it coalesces (a
hundred writes between two reads are one change), needs no graveyard and no look-up in the table, and its memory is
bounded by the distinct keys it has not yet read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
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
        self._now: dict[Any, R | None] = {table.key(row): row for row in database.snapshot().all(table)}
        self._before: dict[Any, R | None] = dict.fromkeys(self._now)
        """Of each key that has changed since the last read, in order of its first change: its row now, and then."""
        self._shared = False
        """Whether these dicts are those of a transaction, which other readers may hold too."""
        self._rewritten = False
        """Whether some key was written more than once since the last read, and may be what it was."""
        self._wake = asyncio.Event()
        if self._before:
            self._wake.set()

    def __repr__(self) -> str:
        return f"<Changes of {self._table.name}, {len(self._before)} unread>"

    @property
    def unread(self) -> int:
        """How many keys have changed since the last read."""
        return len(self._before)

    @property
    def ready(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._wake.is_set()

    def next(self) -> tuple[Snapshot, list[Change[R]]]:
        """The present snapshot, and what changed up to it since the last call, in order of first change."""
        changes: list[Change[R]] = []
        for old, new in self.pairs():
            row = old if new is None else new
            assert row is not None  # of two that differ
            changes.append(Change(self._table.key(row), old, new))
        return self._database.snapshot(), changes

    def pairs(self) -> list[tuple[R | None, R | None]]:
        """What changed since the last call as (old row, new row), where no snapshot is needed."""
        if self._overrun:
            raise Overrun(f"more than {self._limit} rows of '{self._table.name}' changed between two reads")
        found = differing(self._before.values(), self._now.values(), rewritten=self._rewritten)
        self._before, self._now, self._rewritten = {}, {}, False
        self._wake.clear()
        return found

    async def wait(self) -> None:
        """Return when there is something to read."""
        await self._wake.wait()

    def close(self) -> None:
        """Stop tracking; the reader must not be used again."""
        self._before, self._now = {}, {}
        self._database._forget(self, self._table)

    def _committed(self, touched: dict[Any, Any], latest: dict[Any, Any], rewritten: bool) -> None:
        if not self._before:
            self._before, self._now, self._shared, self._rewritten = touched, latest, True, rewritten
        else:
            if self._shared:
                self._before, self._now, self._shared = dict(self._before), dict(self._now), False
            repeated = set_defaults(self._before, touched)
            self._now.update(latest)
            self._rewritten = self._rewritten or rewritten or repeated
        if self._limit is not None and len(self._before) > self._limit:
            self._overrun = True
            self.close()
        self._wake.set()


def differing(
    before: Collection[R | None], now: Collection[R | None], *, rewritten: bool
) -> list[tuple[R | None, R | None]]:  # hot:
    """Rows as they were with the same as they are, None for none, without those that came back to what they were:
    which none did unless one was ``rewritten``, for a write that changes nothing is none."""
    pairs = zip(before, now, strict=True)
    if not rewritten:
        return [*pairs]
    return [(old, new) for old, new in pairs if old is not new and (old is None or new is None or old != new)]


def set_defaults(known: dict[Any, Any], rows: Mapping[Any, Any]) -> bool:
    """Remember rows by key, but for keys that are known already; whether there were some."""
    before = len(known)
    if before:
        deque(map(known.setdefault, rows, rows.values()), maxlen=0)
    else:
        known.update(rows)  # copies hashes too, which most keys compute anew each time
    return len(known) < before + len(rows)
