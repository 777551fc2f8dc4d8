"""Objects of one store into rows of one table, in one transaction per batch of events or list of few changes.

The invariant: after each batch the rows that this sink wrote are those of the objects the store has, no more and no
fewer. An object that cannot be a row counts as not there; what is wrong with it is logged in one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Generic, TypeVar, cast

from isthmus import logs
from isthmus.reflector import LIST_BATCH, Event, in_turns
from isthmus.statedb import Database, Growth, Table

T = TypeVar("T")
R = TypeVar("R")

log = logs.get("sources")


class Malformed(Exception):  # noqa: N818 about the object, not about us
    """An object cannot be a row. The message names the field and what is wrong with it."""


class TableSink(Generic[T, R]):
    """A reflector's sink. ``convert`` gives an object's row, or None for an object that is none of this table's."""

    def __init__(self, db: Database, table: Table[Any, R], name: str, convert: Callable[[T], R | None]) -> None:
        self._db = db
        self._table = table
        self._convert = convert
        self._initializer = db.initializer(table, name)
        self._rows: dict[str, R] = {}
        """By object; the very rows of the table."""
        self._growth = Growth(beside=db.growth)
        self._complaints: dict[str, str] = {}
        self.name = name

    def __repr__(self) -> str:
        return f"<TableSink {self.name} → {self._table.name}, {len(self._rows)} rows>"

    async def replace(self, items: Mapping[str, T], *, partial: bool) -> None:
        """Make the rows those of these objects; a partial list only adds. A whole one completes the table's source.

        A long list is read over several turns of the loop. What it changes is one transaction, or, where that is long
        too, several: first the rows that there are, then those that are no more, and the source is complete with the
        last.
        """
        self._complaints = {key: why for key, why in self._complaints.items() if key in items}
        key_of, present = self._table.key, self._db.present().getter(self._table)
        absent = () if partial else [key for key in self._rows if key not in items]
        wanted: set[Any] = set()
        changes: dict[Any, R | None] = {}
        leaving: list[Any] = []
        async for part in in_turns(items):
            rows, left = self._read(part)
            leaving += left
            for row in rows:  # hot:
                key = key_of(row)
                wanted.add(key)
                if present(key) is not row:
                    changes[key] = row
                elif changes:
                    changes.pop(key, None)
        leaving += self._forget(absent)
        changes.update((key, None) for key in leaving if key not in wanted)  # not of a row that another object has now
        while True:
            changed = {key: changes.pop(key) for key in [*islice(changes, LIST_BATCH)]}
            wanted.difference_update(changed)  # all keys of a long list, freed at once at its end, took 7 ms
            with self._db.write() as txn:
                txn.put_all(self._table, [row for row in changed.values() if row is not None])
                txn.delete_all(self._table, [key for key, row in changed.items() if row is None])
                if not changes and not partial:
                    self._initializer.complete(txn)
            if not changes:
                return
            await asyncio.sleep(0)

    def apply(self, events: Sequence[Event[T]]) -> None:
        """Follow these changes: of several of one object the last counts. Rows are deleted first: a key may move."""
        rows, leaving = self._read(events)
        with self._db.write() as txn:
            txn.delete_all(self._table, leaving)
            txn.put_all(self._table, rows, compared=True)

    def _read(self, items: Iterable[tuple[str, T | None]]) -> tuple[list[R], list[Any]]:  # hot:
        """Objects as they are now, None for one that is no more: their rows, and the keys of rows they no longer are.

        Another object may have the row of such a key by now.
        """
        self._growth.look((self._rows,))
        found: dict[str, R | None] = {}
        convert, complaints = self._convert, self._complaints
        for key, item in items:  # each of them, for what is wrong with it
            try:
                found[key] = None if item is None else convert(item)
            except Malformed as why:
                found[key] = None
                self._complain(key, str(why))
            else:
                if complaints:
                    complaints.pop(key, None)
        key_of, known = self._table.key, self._rows
        whole = all(found.values())
        present = cast("dict[str, R]", found) if whole else {k: row for k, row in found.items() if row is not None}
        deleted = [key for key in found if key not in present] if len(present) < len(found) else ()
        leaving = self._forget(deleted)
        if known.keys().isdisjoint(present):  # they have come, or there are none
            known.update(present)
            return [*present.values()], leaving
        rows: list[R] = []
        for key, row in present.items():
            before = known.setdefault(key, row)
            if before is not row:
                if before == row:
                    row = before
                elif key_of(before) != key_of(row):
                    leaving.append(key_of(before))
                known[key] = row
            rows.append(row)
        return rows, leaving

    def _forget(self, keys: Iterable[str]) -> list[Any]:
        """The keys of the rows that objects had which have none any more."""
        return [*map(self._table.key, filter(None, map(self._rows.pop, keys, repeat(None))))]

    def _complain(self, key: str, why: str) -> None:
        """Log what is wrong with an object, once while it stays so."""
        if self._complaints.get(key) != why:
            log.warning("object ignored", table=self._table.name, name=key, why=why)
        self._complaints[key] = why
