"""The rows found under one value of an index: nearly always one, sometimes a few, now and then thousands.

Up to a thousand are a tuple, read in a hundredth of a map's time (3 µs) and in the order in which they came; more are a
persistent map by key, where one comes or goes without a copy of all. Both are immutable, so a snapshot's stay as they
were. An index holds the very rows of its table: who looks into it need not look for each. No value is without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Final

from immutables import Map

Rows = tuple[Any, ...] | Map[Any, Any]
Values = Callable[[Any], Collection[Hashable]]

FEW: Final = 1024


class Index:
    """An index while a transaction changes it. A table's key function says by what many rows are told apart."""

    __slots__ = ("_key", "_values", "found", "get")

    def __init__(self, start: Any, values: Values, key: Callable[[Any], Hashable]) -> None:
        self.found: Any = start.mutate()
        self.get: Any = self.found.get
        self._values = values
        self._key = key

    def add(self, new: Any) -> None:  # hot:
        """Have a row that was not there."""
        values = self._values(new)
        for value in values if len(values) < 2 else dict.fromkeys(values):
            rows = self.get(value)
            self.found[value] = (new,) if rows is None else self._with(rows, new)

    def replace(self, old: Any, new: Any) -> None:
        """Have a row in the place of another of the same key."""
        before, after = self._values(old), self._values(new)
        kept = set(after) if before == after else set(after).intersection(before)
        for value in kept:
            rows = self.get(value)
            if isinstance(rows, tuple):
                self.found[value] = tuple([new if row is old else row for row in rows])
            else:
                self.found[value] = rows.set(self._key(new), new)
        if before != after:
            self._take(old, set(before) - kept)
            for value in set(after) - kept:
                rows = self.get(value)
                self.found[value] = (new,) if rows is None else self._with(rows, new)

    def remove(self, old: Any) -> None:  # hot:
        """Have a row no more."""
        values = self._values(old)
        self._take(old, values if len(values) < 2 else dict.fromkeys(values))

    def finish(self) -> Any:
        """The index as it is now, for good."""
        return self.found.finish()

    def since(self, value: Any) -> Iterator[Any]:
        """The values of an ordered index from one on, as they are now."""
        values: Iterator[Any] = self.found.since(value)
        return values

    def _with(self, rows: Rows, new: Any) -> Rows:
        if not isinstance(rows, tuple):
            return rows.set(self._key(new), new)
        if len(rows) < FEW:
            return (*rows, new)
        return Map({self._key(row): row for row in (*rows, new)})

    def _take(self, old: Any, values: Collection[Any]) -> None:
        for value in values:
            rows = self.get(value)
            if len(rows) == 1:
                del self.found[value]
            elif isinstance(rows, tuple):
                self.found[value] = tuple([row for row in rows if row is not old])
            else:
                self.found[value] = rows.delete(self._key(old))


def build(rows: Map[Any, Any], values: Values, key: Callable[[Any], Hashable], *, empty: Any) -> Index:
    """An index of these rows, of the kind of an empty one."""
    index = Index(empty, values, key)
    for row in rows.values():
        index.add(row)
    return index
