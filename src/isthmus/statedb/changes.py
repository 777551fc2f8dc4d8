"""Readers of a table's changes, deletions included.

A reader keeps, per key, the row that it last returned and the row written last. So it coalesces (a hundred writes
between two reads are one change), needs no graveyard and no look-up in the table, and its memory is bounded by the
distinct keys it has not yet read.
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
    """Change of one key since the last read: a put, or a deletion if ``new`` is ``None``."""

    key: Any
    old: R | None
    new: R | None


class Changes(Generic[R]):
    """One reader of a table's changes, deletions included. Its first read returns every row of the table as an insert.

    Read with :meth:`next`, wait with :meth:`wait`, end with :meth:`close` or by dropping the reader: the database
    refers to it weakly. With a ``limit``, a reader that leaves more keys than that unread raises Overrun.
    """

    def __init__(self, database: Database, table: Table[Any, R], *, limit: int | None = None) -> None:
        self._database = database
        self._table = table
        self._limit = limit
        self._overrun = False
        self._now: dict[Any, R | None] = {table.key(row): row for row in database.snapshot().all(table)}
        self._before: dict[Any, R | None] = dict.fromkeys(self._now)
        """Rows at the last read, and current rows (``_now``), of each key changed since, in order of first change."""
        self._shared = False
        """True while both dicts are a transaction's own, which other readers may share: copy before writing."""
        self._rewritten = False
        """True if a key was written more than once since the last read, so that it may be unchanged after all."""
        self._wake = asyncio.Event()
        if self._before:
            self._wake.set()

    def __repr__(self) -> str:
        return f"<Changes of {self._table.name}, {len(self._before)} unread>"

    @property
    def unread(self) -> int:
        """Number of keys that have changed since the last read."""
        return len(self._before)

    @property
    def ready(self) -> bool:
        """True if :meth:`wait` would return at once."""
        return self._wake.is_set()

    def next(self) -> tuple[Snapshot, list[Change[R]]]:
        """Return a snapshot and the changes up to it since the last call, in order of first change."""
        changes: list[Change[R]] = []
        for old, new in self.pairs():
            row = old if new is None else new
            assert row is not None  # of two that differ
            changes.append(Change(self._table.key(row), old, new))
        return self._database.snapshot(), changes

    def pairs(self) -> list[tuple[R | None, R | None]]:
        """Return the changes since the last call as (old row, new row), for callers that need no snapshot."""
        if self._overrun:
            raise Overrun(f"more than {self._limit} rows of '{self._table.name}' changed between two reads")
        pairs = differing(self._before.values(), self._now.values(), rewritten=self._rewritten)
        self._before, self._now, self._rewritten = {}, {}, False
        self._wake.clear()
        return pairs

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
    before: Collection[R | None], after: Collection[R | None], *, rewritten: bool
) -> list[tuple[R | None, R | None]]:  # hot:
    """Pair old rows with new ones, ``None`` for none, and drop the pairs that are equal. Only a key that was
    ``rewritten`` can be equal to what it was: a single write of an equal row is no write."""
    pairs = zip(before, after, strict=True)
    if not rewritten:
        return [*pairs]
    return [(old, new) for old, new in pairs if old is not new and (old is None or new is None or old != new)]


def set_defaults(target: dict[Any, Any], rows: Mapping[Any, Any]) -> bool:
    """Add the rows whose keys ``target`` lacks; True if it had some of the keys already."""
    before = len(target)
    if before:
        deque(map(target.setdefault, rows, rows.values()), maxlen=0)
    else:
        target.update(rows)  # copies hashes too, which most keys compute anew each time
    return len(target) < before + len(rows)
