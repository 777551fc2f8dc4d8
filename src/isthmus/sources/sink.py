"""Objects of one store into rows of one table, in one transaction per batch.

The invariant: after each batch the rows that this sink wrote are those of the objects the store has, no more and no
fewer. An object that cannot be a row counts as not there; what is wrong with it is logged in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from isthmus import logs
from isthmus.reflector import Event
from isthmus.statedb import Database, Table, WriteTxn

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
        self._complaints: dict[str, str] = {}
        self.name = name

    def __repr__(self) -> str:
        return f"<TableSink {self.name} → {self._table.name}, {len(self._rows)} rows>"

    def replace(self, items: Mapping[str, T], *, partial: bool) -> None:
        """Make the rows those of these objects; a partial list only adds. A whole one completes the table's source."""
        gone = [] if partial else [key for key in self._rows if key not in items]
        self._complaints = {key: why for key, why in self._complaints.items() if key in items}
        with self._db.write() as txn:
            for key in gone:
                self._drop(txn, key)
            for key, item in items.items():
                self._put(txn, key, item)
            if not partial:
                self._initializer.complete(txn)

    def apply(self, events: Sequence[Event[T]]) -> None:
        """Follow these changes, in their order."""
        with self._db.write() as txn:
            for key, item in events:
                if item is None:
                    self._complaints.pop(key, None)
                    self._drop(txn, key)
                else:
                    self._put(txn, key, item)

    def _put(self, txn: WriteTxn, key: str, item: T) -> None:
        row = self._row(key, item)
        if row is None:
            self._drop(txn, key)
            return
        before = self._rows.get(key)
        if before is not None and self._table.key(before) != self._table.key(row):
            txn.delete(self._table, self._table.key(before))
        old = txn.put(self._table, row)
        self._rows[key] = old if old is not None and old == row else row

    def _drop(self, txn: WriteTxn, key: str) -> None:
        before = self._rows.pop(key, None)
        if before is not None:
            txn.delete(self._table, self._table.key(before))

    def _row(self, key: str, item: T) -> R | None:
        try:
            row = self._convert(item)
        except Malformed as why:
            self._complain(key, str(why))
            return None
        self._complaints.pop(key, None)
        return row

    def _complain(self, key: str, why: str) -> None:
        """Log what is wrong with an object, once while it stays so."""
        if self._complaints.get(key) != why:
            log.warning("object ignored", table=self._table.name, name=key, why=why)
        self._complaints[key] = why
