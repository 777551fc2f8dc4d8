"""The rows of a table by primary key: in a dict of their own, or in a clustered index.

In a clustered index the value of a row follows from the row's key. It holds the rows itself, so the table needs no
second dict of them and stores no keys. That saves 100 bytes a row if each value has one row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from isthmus.statedb.index import Index
from isthmus.statedb.table import AnyTable


class ByKey(dict[Any, Any]):
    """Rows in a dict by primary key."""

    __slots__ = ()

    def many(self, keys: Iterable[Any]) -> list[Any]:
        """The row of each key, ``None`` for a key without one."""
        return [*map(self.get, keys)]

    def add_new(self, rows: Mapping[Any, Any]) -> bool:
        """Add rows by key if all keys are new; otherwise return False and do nothing."""
        if not self.keys().isdisjoint(rows):
            return False
        self.update(rows)
        return True

    def take(self, keys: Iterable[Any]) -> dict[Any, Any]:  # hot:
        """Remove the rows with these keys. Returns them by key."""
        pop = self.pop
        return {key: row for key in keys if (row := pop(key, None)) is not None}


class Clustered:
    """Rows in a clustered index. ``of_key`` maps a primary key to the index value of its row."""

    __slots__ = ("_key", "_of_key", "_row", "_size", "get", "index")

    def __init__(self, table: AnyTable, position: int, of_key: Callable[[Any], Any]) -> None:
        self.index = Index(table, position)
        self.get = _getter(self.index.get, table.key, of_key)
        self._row = table.row
        self._key = table.key
        self._of_key = of_key
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __setitem__(self, key: Any, row: Any) -> None:
        old = self.get(key)
        if old is None:
            self.index.add(row)
            self._size += 1
        else:
            self.index.replace(old, row)

    def __delitem__(self, key: Any) -> None:
        self.index.remove(self.get(key))
        self._size -= 1

    def pop(self, key: Any, default: None) -> None:
        """Remove the row of a key, if any."""
        if self.get(key) is not default:
            del self[key]

    def values(self) -> Iterator[Any]:
        """Every row."""
        for rows in self.index.entries.values():
            if type(rows) is dict:
                yield from rows.values()
            else:
                yield rows

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every row with its key."""
        return ((self._key(row), row) for row in self.values())

    def many(self, keys: Collection[Any]) -> list[Any]:  # hot:
        """The row of each key, ``None`` for a key without one."""
        rows = [*map(self.index.get, map(self._of_key, keys))]
        kinds = {*map(type, rows)}
        if kinds == {NoneType} or (kinds == {self._row} and [*map(self._key, rows)] == [*keys]):
            return rows  # nearly always: their values have no rows, or one row each
        return [*map(self.get, keys)]

    def add_new(self, rows: Mapping[Any, Any]) -> bool:  # hot:
        """Add rows by key if each has a value of its own; otherwise return False and do nothing."""
        if not self.index.add_alone([*map(self._of_key, rows)], rows.values()):
            return False
        self._size += len(rows)
        return True

    def take(self, keys: Collection[Any]) -> dict[Any, Any]:  # hot:
        """Remove the rows with these keys. Returns them by key."""
        values = [*map(self._of_key, keys)]
        removed = self.index.take(values)
        if {*map(type, removed)} == {self._row} and [*map(self._key, removed)] == [*keys]:  # nearly always, as above
            deleted = dict(zip(keys, removed, strict=True))
        else:
            self.index.give_back(values, removed)
            deleted = {key: row for key, row in zip(keys, self.many(keys), strict=True) if row is not None}
            self.index.remove_all([*deleted.values()])
        self._size -= len(deleted)
        return deleted


def _getter(
    under: Callable[[Any], Any], key_of: Callable[[Any], Any], of_key: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """The function from a key to its row or ``None``, given the function from a value to its rows."""

    def get(key: Any) -> Any:  # hot:
        rows = under(of_key(key))
        if type(rows) is dict:
            return rows.get(key)
        return rows if rows is not None and key_of(rows) == key else None

    return get
