"""A secondary index: the rows of a table by a value computed from each.

Under nearly every value there is one row, which is stored as it is and takes no room of its own; several are a dict by
primary key, in the order in which they came. A value without rows is not stored. An index holds the very rows of its
table, so a look-up does not go through the table again. It changes in place: a snapshot reads it through its undo
(:mod:`isthmus.statedb.past`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from isthmus.statedb.ordered import SortedDict
from isthmus.statedb.table import AnyTable, Attribute

Rows = Any
"""One row, whose type is never dict; or a dict of several by primary key."""

Values = Callable[[Any], Collection[Hashable]]


class Index:
    """Rows by value. ``found`` is a SortedDict where the index is ordered, and else a plain dict."""

    __slots__ = ("_key", "_values", "found", "get")

    def __init__(self, table: AnyTable, position: int) -> None:
        self.found: dict[Any, Rows] = SortedDict(chunk_keys=table.chunk_keys) if position in table.ordered else {}
        self.get = self.found.get
        self._values: Values = table.values[position]
        self._key: Callable[[Any], Hashable] = table.key

    def add(self, new: Any) -> None:  # hot:
        """Add a row whose key is not in the table."""
        values = self._values(new)
        for value in values if len(values) < 2 else dict.fromkeys(values):
            rows = self.get(value)
            if rows is None:
                self.found[value] = new
            else:
                self._join(value, rows, new)

    def add_all(self, rows: Sequence[Any]) -> None:  # hot:
        """Add rows whose keys are not in the table."""
        each = self._each_once(rows)
        if each is None or not self.add_alone(*each):
            for row in rows:
                self.add(row)

    def add_alone(self, values: Sequence[Any], rows: Collection[Any]) -> bool:  # hot:
        """Add rows, each under the value given with it, where it is alone under that: True nearly always.

        False: several are under one value, with each other or with rows that are there, and nothing was done.
        """
        found, new = self.found, dict(zip(values, rows, strict=True))
        if type(found) is not dict or len(new) < len(values) or not found.keys().isdisjoint(new):
            return False
        found.update(new)
        return True

    def take(self, values: Iterable[Any]) -> list[Rows | None]:  # hot:
        """Remove whatever is stored under values; gives it, None for nothing."""
        return [*map(self.found.pop, values, repeat(None))]

    def give_back(self, values: Iterable[Any], taken: Iterable[Rows | None]) -> None:
        """Store again what was taken."""
        for value, rows in zip(values, taken, strict=True):
            if rows is not None:
                self.found[value] = rows

    def remove_all(self, rows: Sequence[Any]) -> None:  # hot:
        """Remove rows."""
        if type(self.found) is dict and (each := self._each_once(rows)) is not None:
            values, under = each
            taken = self.take(values)
            if taken == under:  # nearly always: each is alone under its value
                return
            self.give_back(values, taken)
        for old in rows:
            self.remove(old)

    def replace(self, old: Any, new: Any) -> None:  # hot:
        """Put a row in the place of another of the same key."""
        before, after = self._values(old), self._values(new)
        if before != after:
            self._discard(old, set(before).difference(after))
        for value in after if len(after) < 2 else dict.fromkeys(after):
            rows = self.get(value)
            if rows is None or rows is old:
                self.found[value] = new
            else:
                self._join(value, rows, new)

    def remove(self, old: Any) -> None:  # hot:
        """Remove a row."""
        values = self._values(old)
        self._discard(old, values if len(values) < 2 else dict.fromkeys(values))

    def _each_once(self, rows: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:  # hot:
        """(values, the row that is under each), without rows that are under none; None where one is under several."""
        values_of = self._values
        if type(values_of) is Attribute:
            values = [*map(values_of.of, rows)]
            if not values_of.optional or all(values):
                return values, [*rows]
            if not any(values):
                return [], []
            return [*filter(None, values)], [row for row, value in zip(rows, values, strict=True) if value]
        of = [*map(values_of, rows)]
        if not any(of):  # the rule for an index of a few rows
            return [], []
        sizes = {*map(len, of)}
        if sizes == {1}:
            return [*chain.from_iterable(of)], [*rows]
        if max(sizes, default=0) > 1:
            return None
        return [*chain.from_iterable(of)], [row for row, values in zip(rows, of, strict=True) if values]

    def _join(self, value: Any, rows: Rows, new: Any) -> None:
        if type(rows) is dict:
            rows[self._key(new)] = new
        else:
            self.found[value] = {self._key(rows): rows, self._key(new): new}

    def _discard(self, old: Any, values: Collection[Any]) -> None:
        for value in values:
            rows = self.found[value]
            if rows is old:
                del self.found[value]
            else:  # never of one row: those left alone under a value are stored without a dict
                del rows[self._key(old)]
                if len(rows) == 1:
                    [self.found[value]] = rows.values()


def rows_of(rows: Rows | None) -> list[Any]:  # hot:
    """The rows stored under a value, in a list of the caller's own."""
    if rows is None:
        return []
    return list(rows.values()) if type(rows) is dict else [rows]


def rows_of_each(found: Iterable[Rows | None]) -> list[Any]:  # hot:
    """The rows stored under several values."""
    rows = [*filter(None, found)]
    if dict in {*map(type, rows)}:
        return [row for under in rows for row in rows_of(under)]
    return rows


def first_of(rows: Rows | None) -> Any:  # hot:
    """One of the rows stored under a value, or None: without a list of what may be many."""
    return next(iter(rows.values())) if type(rows) is dict else rows
