"""Convert the objects of one store into rows of one table, in one transaction for a batch of events or a short list.

The invariant: after each batch this sink's rows are exactly those of the store's objects. An object that cannot be
converted keeps its last row, if it had one, and is a row of ``faults``: it is malformed, or the store could not decode
it, or its conversion raised, which is a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Final, Generic, TypeVar, cast

from isthmus import logs
from isthmus.bounds import OutOfBounds
from isthmus.model.tables import FAULTS
from isthmus.reflector import LIST_BATCH, Event, Unreadable, in_turns
from isthmus.statedb import Cause, Database, Faults, Table

T = TypeVar("T")
R = TypeVar("R")

log = logs.get("sources")


class Malformed(Exception):  # noqa: N818 about the object, not about us
    """An object cannot be a row, though each value is within its bounds. The message names the field and the reason."""


MALFORMED: Final = (Malformed, OutOfBounds)
"""Exceptions of a conversion that an invalid object causes; any other is a bug."""


class TableSink(Generic[T, R]):
    """A reflector's sink. ``convert`` returns an object's row, or ``None`` for an object that this table leaves out.

    ``kind`` names the objects in their faults. A database without a table of faults raises bugs instead.
    """

    def __init__(
        self, db: Database, table: Table[Any, R], name: str, convert: Callable[[T], R | None], *, kind: str = ""
    ) -> None:
        self._db = db
        self._table = table
        self._convert = convert
        self._initializer = db.initializer(table, name)
        self._rows: dict[str, R] = {}
        """Rows by the object's key: the very objects in the table, so unchanged ones are found by identity."""
        self._faults = Faults(db, FAULTS, table.name, kind=kind or name)
        self.name = name

    def __repr__(self) -> str:
        return f"<TableSink {self.name} → {self._table.name}, {len(self._rows)} rows>"

    async def replace(self, items: Mapping[str, T], *, partial: bool) -> None:
        """Replace the rows by those of these objects; a partial list only adds. A complete one initialises the source.

        A long list is read over several turns of the event loop. More than ``LIST_BATCH`` changes are committed in
        several transactions, puts before deletes, and the last one initialises the source.
        """
        key_of, row_of = self._table.key, self._db.committed().getter(self._table)
        absent = () if partial else [key for key in self._rows if key not in items]
        keys: set[Any] = set()
        changes: dict[Any, R | None] = {}
        leaving: list[Any] = []
        async for part in in_turns(items):
            rows, deleted = self._read(part)
            leaving += deleted
            for row in rows:  # hot:
                key = key_of(row)
                keys.add(key)
                if row_of(key) is not row:
                    changes[key] = row
                elif changes:
                    changes.pop(key, None)
        leaving += self._forget(absent)
        if self._faults and not partial:
            self._faults.retain(items.keys())
        # a key in ``keys`` now has a row of another object
        changes.update((key, None) for key in leaving if key not in keys)
        while True:
            changed = {key: changes.pop(key) for key in [*islice(changes, LIST_BATCH)]}
            keys.difference_update(changed)  # all keys of a long list, freed at once at its end, took 7 ms
            with self._db.write() as txn:
                txn.put_all(self._table, [row for row in changed.values() if row is not None])
                txn.delete_all(self._table, [key for key, row in changed.items() if row is None])
                if not changes and not partial:
                    self._initializer.complete(txn)
                self._faults.write(txn)
            if not changes:
                return
            await asyncio.sleep(0)

    def apply(self, events: Sequence[Event[T]]) -> None:
        """Apply changes; the last of an object wins. Deletes precede puts because a key may move to another object."""
        rows, leaving = self._read(events)
        with self._db.write() as txn:
            txn.delete_all(self._table, leaving)
            txn.put_all(self._table, rows, compared=True)
            self._faults.write(txn)

    def _read(self, items: Iterable[tuple[str, T | None]]) -> tuple[list[R], list[Any]]:  # hot:
        """Convert objects (``None`` if deleted); return their rows, and the keys of rows that they no longer have.

        Another object may have taken over such a key.
        """
        converted: dict[str, R | None] = {}
        convert, failing = self._convert, bool(self._faults)
        for key, item in items:  # one by one: a fault names its object
            try:
                if isinstance(item, Unreadable):
                    raise Malformed(item.why)  # noqa: TRY301 recorded as what is malformed is
                converted[key] = None if item is None else convert(item)
            except MemoryError:
                raise
            except Exception as error:
                self._failed(key, item, error)
                converted.setdefault(key, self._rows.get(key))
                failing = True
            else:
                if failing:
                    self._faults.succeeded(key)
        key_of, rows_before = self._table.key, self._rows
        whole = all(converted.values())
        rows_now = (
            cast("dict[str, R]", converted) if whole else {k: row for k, row in converted.items() if row is not None}
        )
        deleted = [key for key in converted if key not in rows_now] if len(rows_now) < len(converted) else ()
        leaving = self._forget(deleted)
        if rows_before.keys().isdisjoint(rows_now):  # all are new, or all were deleted
            rows_before.update(rows_now)
            return [*rows_now.values()], leaving
        rows: list[R] = []
        for key, row in rows_now.items():
            before = rows_before.setdefault(key, row)
            if before is not row:
                if before == row:
                    row = before
                elif key_of(before) != key_of(row):
                    leaving.append(key_of(before))
                rows_before[key] = row
            rows.append(row)
        return rows, leaving

    def _forget(self, keys: Iterable[str]) -> list[Any]:
        """Forget the rows of objects; return the keys of these rows."""
        return [*map(self._table.key, filter(None, map(self._rows.pop, keys, repeat(None))))]

    def _failed(self, key: str, item: Any, error: Exception) -> None:
        """Record why an object could not be converted; log it once per fault."""
        cause: Cause = "unreadable" if isinstance(item, Unreadable) else "malformed"
        if not isinstance(error, MALFORMED):
            cause = "bug"
        message = "" if cause == "bug" else str(error)
        if self._faults.failed(key, error, cause=cause, message=message, uid=_uid(item)):
            log.warning("object ignored", table=self._table.name, name=key, why=message or repr(error))


def _uid(item: Any) -> str:
    """Return the UID of a Kubernetes object; empty for others."""
    return item.uid if isinstance(item, Unreadable) else getattr(getattr(item, "metadata", None), "uid", "")
