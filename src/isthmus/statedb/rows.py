"""The rows of a table by primary key: in a dict of their own, or in a clustered index.

A clustered index is one whose value of a row follows from the row's key. It holds the rows itself, so the table needs
no second dict of them and keeps no keys: of a table with one row under each value that is 100 bytes a row.
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
        """The row of each key, None where there is none."""
        return [*map(self.get, keys)]

    def add_new(self, rows: Mapping[Any, Any]) -> bool:
        """Add rows, given by key, if none of their keys has one; False: nothing was done."""
        if not self.keys().isdisjoint(rows):
            return False
        self.update(rows)
        return True

    def take(self, keys: Iterable[Any]) -> dict[Any, Any]:  # hot:
        """Remove the rows that have these keys; gives them by key."""
        pop = self.pop
        return {key: row for key in keys if (row := pop(key, None)) is not None}


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

    def many(self, keys: Collection[Any]) -> list[Any]:  # hot:
        """The row of each key, None where there is none."""
        rows = [*map(self.index.get, map(self._of_key, keys))]
        kinds = {*map(type, rows)}
        if kinds == {NoneType} or (kinds == {self._row} and [*map(self._key, rows)] == [*keys]):
            return rows  # nearly always: there is nothing under their values, or each is alone under its own
        return [*map(self.get, keys)]

    def add_new(self, rows: Mapping[Any, Any]) -> bool:  # hot:
        """Add rows, given by key, where each is alone under its value; False: nothing was done."""
        if not self.index.add_alone([*map(self._of_key, rows)], rows.values()):
            return False
        self._size += len(rows)
        return True

    def take(self, keys: Collection[Any]) -> dict[Any, Any]:  # hot:
        """Remove the rows that have these keys; gives them by key."""
        values = [*map(self._of_key, keys)]
        taken = self.index.take(values)
        if {*map(type, taken)} == {self._row} and [*map(self._key, taken)] == [*keys]:  # nearly always, as above
            found = dict(zip(keys, taken, strict=True))
        else:
            self.index.give_back(values, taken)
            found = {key: row for key, row in zip(keys, self.many(keys), strict=True) if row is not None}
            self.index.remove_all([*found.values()])
        self._size -= len(found)
        return found


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
