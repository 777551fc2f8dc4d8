"""The rows found under one value of an index: nearly always one, sometimes a few, now and then thousands.

One is there as it is and takes no room. Up to a thousand are a dict by key, in the order in which they came, which is
copied once by a transaction that changes it (4 µs). More are a persistent map by key: no copy. What a root holds never
changes, so a snapshot's stay as they were. An index holds the very rows of its table: who looks into it need not look
for each. No value is without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Final

from immutables import Map

Rows = Any
"""A row, which is no dict and no map; or several in one of these."""

Values = Callable[[Any], Collection[Hashable]]

FEW: Final = 1024


class Index:
    """An index while a transaction changes it. A table's key function says by what several rows are told apart."""

    __slots__ = ("_key", "_own", "_values", "found", "get")

    def __init__(self, start: Any, values: Values, key: Callable[[Any], Hashable]) -> None:
        self.found: Any = start.mutate()
        self.get: Any = self.found.get
        self._values = values
        self._key = key
        self._own: set[Any] = set()
        """Values whose dict is this transaction's."""

    def add(self, new: Any) -> None:  # hot:
        """Have a row that was not there."""
        values = self._values(new)
        for value in values if len(values) < 2 else dict.fromkeys(values):
            found = self.get(value)
            if found is None:
                self.found[value] = new
            else:
                self._join(value, found, new)

    def replace(self, old: Any, new: Any) -> None:
        """Have a row in the place of another of the same key."""
        before, after = self._values(old), self._values(new)
        if before != after:
            self._take(old, set(before).difference(after))
        for value in after if len(after) < 2 else dict.fromkeys(after):
            found = self.get(value)
            if found is None or found is old:
                self.found[value] = new
            else:
                self._join(value, found, new)

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

    def _join(self, value: Any, found: Rows, new: Any) -> None:
        """Have a row among others, or in the place of the one of its key."""
        key = self._key(new)
        if type(found) is dict and (len(found) < FEW or key in found):
            self._mine(value, found)[key] = new
        elif type(found) is dict or type(found) is Map:
            self.found[value] = Map(found).set(key, new)
        else:
            self.found[value] = {self._key(found): found, key: new}
            self._own.add(value)

    def _take(self, old: Any, values: Collection[Any]) -> None:
        for value in values:
            found = self.get(value)
            if found is old or len(found) == 1:
                del self.found[value]
            elif type(found) is Map:
                self.found[value] = found.delete(self._key(old))
            else:
                left = self._mine(value, found)
                del left[self._key(old)]
                if len(left) == 1:
                    self.found[value] = next(iter(left.values()))
                    self._own.discard(value)

    def _mine(self, value: Any, found: dict[Any, Any]) -> dict[Any, Any]:
        """A value's rows, to be changed: a copy, since a root may hold them, but once."""
        if value not in self._own:
            self._own.add(value)
            found = self.found[value] = found.copy()
        return found


def rows_of(found: Rows) -> list[Any]:  # hot:
    """The rows found under a value."""
    return list(found.values()) if type(found) is dict or type(found) is Map else [found]


def build(rows: Map[Any, Any], values: Values, key: Callable[[Any], Hashable], *, empty: Any) -> Index:
    """An index of these rows, of the kind of an empty one."""
    index = Index(empty, values, key)
    for row in rows.values():
        index.add(row)
    return index
