"""The rows found under one value of an index: nearly always one, sometimes a few, now and then thousands.

One is there as it is and takes no room. Up to a thousand are a tuple, read in a hundredth of a map's time (3 µs) and in
the order in which they came; more are a persistent map by key, where one comes or goes without a copy of all. All are
immutable, so a snapshot's stay as they were. An index holds the very rows of its table: who looks into it need not look
for each. No value is without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Final

from immutables import Map


class Few(tuple[Any, ...]):
    """Several rows, which no row can be."""

    __slots__ = ()


class Many:
    """More rows, by key."""

    __slots__ = ("by_key",)

    def __init__(self, by_key: Map[Any, Any]) -> None:
        self.by_key = by_key


Rows = Any
"""A row, Few or Many."""
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
            found = self.get(value)
            self.found[value] = new if found is None else self._with(found, new)

    def replace(self, old: Any, new: Any) -> None:
        """Have a row in the place of another of the same key."""
        before, after = self._values(old), self._values(new)
        kept = set(after) if before == after else set(after).intersection(before)
        for value in kept:
            found = self.get(value)
            if isinstance(found, Few):
                self.found[value] = Few([new if row is old else row for row in found])
            elif isinstance(found, Many):
                self.found[value] = Many(found.by_key.set(self._key(new), new))
            else:
                self.found[value] = new
        if before != after:
            self._take(old, set(before) - kept)
            for value in set(after) - kept:
                found = self.get(value)
                self.found[value] = new if found is None else self._with(found, new)

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

    def _with(self, found: Rows, new: Any) -> Rows:
        if isinstance(found, Many):
            return Many(found.by_key.set(self._key(new), new))
        if not isinstance(found, Few):
            return Few((found, new))
        if len(found) < FEW:
            return Few((*found, new))
        return Many(Map({self._key(row): row for row in (*found, new)}))

    def _take(self, old: Any, values: Collection[Any]) -> None:
        for value in values:
            found = self.get(value)
            if isinstance(found, Few):
                left = [row for row in found if row is not old]
                self.found[value] = Few(left) if len(left) > 1 else left[0]
            elif isinstance(found, Many) and len(found.by_key) > 1:
                self.found[value] = Many(found.by_key.delete(self._key(old)))
            else:
                del self.found[value]


def rows_of(found: Rows) -> list[Any]:  # hot:
    """The rows found under a value."""
    if type(found) is Few:
        return list(found)
    return list(found.by_key.values()) if type(found) is Many else [found]


def build(rows: Map[Any, Any], values: Values, key: Callable[[Any], Hashable], *, empty: Any) -> Index:
    """An index of these rows, of the kind of an empty one."""
    index = Index(empty, values, key)
    for row in rows.values():
        index.add(row)
    return index
