"""Objects of one store into rows of one table, in one transaction per batch.

The invariant: after each batch the rows that this sink wrote are those of the objects the store has, no more and no
fewer. An object that cannot be a row counts as not there; what is wrong with it is logged in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
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
        self._complaints = {key: why for key, why in self._complaints.items() if key in items}
        gone = [] if partial else [(key, None) for key in self._rows if key not in items]
        with self._db.write() as txn:
            self._follow(txn, chain(gone, items.items()))
            if not partial:
                self._initializer.complete(txn)

    def apply(self, events: Sequence[Event[T]]) -> None:
        """Follow these changes: of several of one object the last counts."""
        with self._db.write() as txn:
            self._follow(txn, events)

    def _follow(self, txn: WriteTxn, items: Iterable[tuple[str, T | None]]) -> None:  # hot:
        """Objects as they are now; None for one that is no more. Rows are deleted first: a key may move."""
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
        gone: list[Any] = []
        rows: list[R] = []
        for key, row in found.items():
            before = known.get(key)
            if row is None:
                if before is not None:
                    gone.append(key_of(before))
                    del known[key]
                continue
            if before is not None:
                if before == row:
                    row = before
                elif key_of(before) != key_of(row):
                    gone.append(key_of(before))
            known[key] = row
            rows.append(row)
        txn.delete_all(self._table, gone)
        txn.put_all(self._table, rows)

    def _complain(self, key: str, why: str) -> None:
        """Log what is wrong with an object, once while it stays so."""
        if self._complaints.get(key) != why:
            log.warning("object ignored", table=self._table.name, name=key, why=why)
        self._complaints[key] = why
