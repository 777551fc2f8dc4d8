"""A secondary index: the rows of a table by a value computed from each.

Nearly every value has one row, which is stored as it is, without a container; several are a dict by primary key, in
insertion order. A value without rows is not stored. An index holds the row objects of its table, so a look-up does not
go through the table again. It changes in place: a snapshot reads it through its undo (:mod:`isthmus.statedb.past`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from isthmus.statedb.ordered import SortedDict
from isthmus.statedb.table import AnyTable, Attribute

Rows = Any
"""One row, whose type is never dict, or a dict of several rows by primary key."""

Values = Callable[[Any], Collection[Hashable]]


class Index:
    """Rows by value. ``entries`` is a SortedDict if the index is ordered, otherwise a plain dict."""

    __slots__ = ("_key", "_values", "entries", "get")

    def __init__(self, table: AnyTable, position: int) -> None:
        self.entries: dict[Any, Rows] = SortedDict(chunk_keys=table.chunk_keys) if position in table.ordered else {}
        self.get = self.entries.get
        self._values: Values = table.values[position]
        self._key: Callable[[Any], Hashable] = table.key

    def add(self, new: Any) -> None:  # hot:
        """Add a row whose key is not in the table."""
        values = self._values(new)
        for value in values if len(values) < 2 else dict.fromkeys(values):
            rows = self.get(value)
            if rows is None:
                self.entries[value] = new
            else:
                self._join(value, rows, new)

    def add_all(self, rows: Sequence[Any]) -> None:  # hot:
        """Add rows whose keys are not in the table."""
        single = self._single_values(rows)
        if single is None or not self.add_alone(*single):
            for row in rows:
                self.add(row)

    def add_alone(self, values: Sequence[Any], rows: Collection[Any]) -> bool:  # hot:
        """Add rows, each under one value of its own. The common case.

        Returns False, and does nothing, if two rows share a value or an existing row has one of the values.
        """
        entries, new = self.entries, dict(zip(values, rows, strict=True))
        if type(entries) is not dict or len(new) < len(values) or not entries.keys().isdisjoint(new):
            return False
        entries.update(new)
        return True

    def take(self, values: Iterable[Any]) -> list[Rows | None]:  # hot:
        """Remove and return the entries of these values, ``None`` for a value without rows."""
        return [*map(self.entries.pop, values, repeat(None))]

    def give_back(self, values: Iterable[Any], removed: Iterable[Rows | None]) -> None:
        """Restore entries that :meth:`take` removed."""
        for value, rows in zip(values, removed, strict=True):
            if rows is not None:
                self.entries[value] = rows

    def remove_all(self, rows: Sequence[Any]) -> None:  # hot:
        """Remove rows."""
        if type(self.entries) is dict and (single := self._single_values(rows)) is not None:
            values, under = single
            removed = self.take(values)
            if removed == under:  # nearly always: each row was the only one of its value
                return
            self.give_back(values, removed)
        for old in rows:
            self.remove(old)

    def replace(self, old: Any, new: Any) -> None:  # hot:
        """Replace a row by another of the same key."""
        before, after = self._values(old), self._values(new)
        if before != after:
            self._discard(old, set(before).difference(after))
        for value in after if len(after) < 2 else dict.fromkeys(after):
            rows = self.get(value)
            if rows is None or rows is old:
                self.entries[value] = new
            else:
                self._join(value, rows, new)

    def remove(self, old: Any) -> None:  # hot:
        """Remove a row."""
        values = self._values(old)
        self._discard(old, values if len(values) < 2 else dict.fromkeys(values))

    def _single_values(self, rows: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:  # hot:
        """(values, the row of each), without rows that have no value; ``None`` if a row has several values."""
        values_of = self._values
        if type(values_of) is Attribute:
            values = [*map(values_of.of, rows)]
            if not values_of.optional or all(values):
                return values, [*rows]
            if not any(values):
                return [], []
            return [*filter(None, values)], [row for row, value in zip(rows, values, strict=True) if value]
        lists = [*map(values_of, rows)]
        if not any(lists):  # the usual case of an index that few rows have a value in
            return [], []
        sizes = {*map(len, lists)}
        if sizes == {1}:
            return [*chain.from_iterable(lists)], [*rows]
        if max(sizes, default=0) > 1:
            return None
        return [*chain.from_iterable(lists)], [row for row, values in zip(rows, lists, strict=True) if values]

    def _join(self, value: Any, rows: Rows, new: Any) -> None:
        if type(rows) is dict:
            rows[self._key(new)] = new
        else:
            self.entries[value] = {self._key(rows): rows, self._key(new): new}

    def _discard(self, old: Any, values: Collection[Any]) -> None:
        for value in values:
            rows = self.entries[value]
            if rows is old:
                del self.entries[value]
            else:  # a dict has at least two rows: the last one of a value is stored without a dict
                del rows[self._key(old)]
                if len(rows) == 1:
                    [self.entries[value]] = rows.values()


def rows_of(rows: Rows | None) -> list[Any]:  # hot:
    """The rows stored under a value, in a new list."""
    if rows is None:
        return []
    return list(rows.values()) if type(rows) is dict else [rows]


def rows_of_each(entries: Iterable[Rows | None]) -> list[Any]:  # hot:
    """The rows stored under several values."""
    rows = [*filter(None, entries)]
    if dict in {*map(type, rows)}:
        return [row for under in rows for row in rows_of(under)]
    return rows


def first_of(rows: Rows | None) -> Any:  # hot:
    """One of the rows stored under a value, or ``None`` if there are none; copies nothing."""
    return next(iter(rows.values())) if type(rows) is dict else rows
