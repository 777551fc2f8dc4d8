"""The rows of a table by primary key: in a dict of their own, or in a clustered index.

A clustered index is one whose value of a row follows from the row's key. It holds the rows itself, so the table needs
no second dict of them and keeps no keys: of a table with one row under each value that is 100 bytes a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from isthmus.statedb.index import Index
from isthmus.statedb.table import AnyTable


class ByKey(dict[Any, Any]):
    """Rows in a dict by primary key."""

    __slots__ = ()

    def has_none(self, keys: Collection[Any]) -> bool:
        """Whether no row has one of these keys."""
        return self.keys().isdisjoint(keys)

    def many(self, keys: Iterable[Any]) -> list[Any]:
        """The row of each key, None where there is none."""
        return [*map(self.get, keys)]

    def select(self, keys: Iterable[Any]) -> dict[Any, Any]:  # hot:
        """The rows that have these keys, by key."""
        get = self.get
        return {key: row for key in keys if (row := get(key)) is not None}

    def remove(self, rows: Mapping[Any, Any]) -> None:
        """Remove rows that are there, given by key."""
        deque(map(self.__delitem__, rows), maxlen=0)


class Clustered:
    """The same over a clustered index. ``of_key`` gives the value that the row of a key is under."""

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
            self._size += 1
            self.index.add(row)
        else:
            self.index.replace(old, row)

    def __delitem__(self, key: Any) -> None:
        self._size -= 1
        self.index.remove(self.get(key))

    def pop(self, key: Any, default: None) -> None:
        """Remove the row of a key, where there is one."""
        if self.get(key) is not default:
            del self[key]

    def update(self, rows: Mapping[Any, Any]) -> None:
        """Add rows, given by key, whose keys have none."""
        self._size += len(rows)
        self.index.add_all([*rows.values()])

    def values(self) -> Iterator[Any]:
        """Every row."""
        for rows in self.index.found.values():
            if type(rows) is dict:
                yield from rows.values()
            else:
                yield rows

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Every row with its key."""
        return ((self._key(row), row) for row in self.values())

    def has_none(self, keys: Collection[Any]) -> bool:  # hot:
        """Whether no row has one of these keys."""
        return self.index.found.keys().isdisjoint([*map(self._of_key, keys)]) or not self.select(keys)

    def many(self, keys: Collection[Any]) -> list[Any]:  # hot:
        """The row of each key, None where there is none."""
        rows = [*map(self.index.get, map(self._of_key, keys))]
        kinds = {*map(type, rows)}
        if kinds == {NoneType} or (kinds == {self._row} and [*map(self._key, rows)] == [*keys]):
            return rows  # nearly always: there is nothing under their values, or each is alone under its own
        return [*map(self.get, keys)]

    def select(self, keys: Collection[Any]) -> dict[Any, Any]:  # hot:
        """The rows that have these keys, by key."""
        return {key: row for key, row in zip(keys, self.many(keys), strict=True) if row is not None}

    def remove(self, rows: Mapping[Any, Any]) -> None:
        """Remove rows that are there, given by key."""
        self._size -= len(rows)
        self.index.remove_all([*rows.values()])


def _getter(
    under: Callable[[Any], Any], key_of: Callable[[Any], Any], of_key: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """The function from a key to its row, or None, over what is under a value."""

    def get(key: Any) -> Any:  # hot:
        rows = under(of_key(key))
        if type(rows) is dict:
            return rows.get(key)
        return rows if rows is not None and key_of(rows) == key else None

    return get
