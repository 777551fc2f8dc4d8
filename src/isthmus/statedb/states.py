"""The present state of a table, changed in place by the one transaction that may be open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from isthmus.statedb.errors import StateError
from isthmus.statedb.index import Index, Rows
from isthmus.statedb.ordered import SortedDict
from isthmus.statedb.rows import ByKey, Clustered
from isthmus.statedb.table import AnyTable

V = TypeVar("V")


class TableState:
    """Rows by key, indexes, and what the open transaction has touched.

    Invariant: ``touched`` maps each key written by the open transaction to its row before it (None: there was none),
    and ``latest`` the same keys, in the same order, to their rows now. The first is None while the transaction has not
    written this table. It is the rollback, and the undo of the snapshots that are held; readers of changes take over
    both.
    """

    __slots__ = (
        "before",
        "finders",
        "get",
        "indexes",
        "kept",
        "latest",
        "revision",
        "rewritten",
        "rows",
        "table",
        "touched",
    )

    def __init__(self, table: AnyTable) -> None:
        self.table = table
        self.rows: ByKey | Clustered = ByKey() if table.clustered is None else Clustered(table, *table.clustered)
        self.get = self.rows.get
        self.revision = 0
        self.touched: dict[Any, Any] | None = None
        self.latest: dict[Any, Any] = {}
        self.rewritten = False
        """Whether the open transaction wrote some key more than once, so that its row may be what it was."""
        self.before = (0, 0)
        """Revision and number of rows before the open transaction wrote."""
        self._forget_indexes()

    def __len__(self) -> int:
        return len(self.rows)

    def dicts(self) -> Iterator[dict[Any, Any]]:
        """The dicts that grow with the table: of its rows and of its indexes."""
        if isinstance(self.rows, ByKey):
            yield self.rows
        for index in filter(None, self.indexes):
            yield index.found

    def many(self, keys: Collection[Any]) -> list[Any]:
        """The row of each key, None where there is none."""
        return self.rows.many(keys)

    def all(self) -> list[Any]:
        """Every row, in a list of the caller's own: rows may be written while it is iterated."""
        return list(self.rows.values())

    def keys_from(self, position: int, value: Any) -> Iterator[Any]:
        """The values of an ordered index in order, from this one or the first after it."""
        found = self.index(position).found
        assert isinstance(found, SortedDict)  # the table's ordered_position() gave the position
        return found.keys_from(value)

    def index(self, position: int) -> Index:
        """An index. It is built at the first look-up and kept from then on: an unused one costs nothing."""
        index = self.indexes[position]
        if index is None:
            index = self.indexes[position] = Index(self.table, position)
            for row in self.rows.values():
                index.add(row)
            self.kept.append(index)
            self.finders[position] = index.get
        return index

    def finder(self, position: int) -> Callable[[Any], Rows | None]:
        """The function from a value of an index to what is stored under it; it follows writes until a roll-back."""
        return self.index(position).get

    def roll_back(self) -> None:
        """Restore the rows. The indexes are dropped: the exception may have come while one was half changed."""
        for key, old in (self.touched or {}).items():
            if old is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = old
        self.revision = self.before[0]
        self._forget_indexes()

    def _forget_indexes(self) -> None:
        self.indexes: list[Index | None] = [None] * len(self.table.values)
        self.kept: list[Index] = []
        """The indexes that are written with the rows, in order of their first look-up."""
        self.finders: list[Callable[[Any], Rows | None]] = [
            partial(self._first_look, position) for position in range(len(self.table.values))
        ]
        """Per index, the function from a value to what is stored under it."""
        if isinstance(self.rows, Clustered) and self.table.clustered is not None:
            position = self.table.clustered[0]
            self.indexes[position], self.finders[position] = self.rows.index, self.rows.index.get

    def _first_look(self, position: int, value: Any) -> Rows | None:
        return self.index(position).get(value)


class ByTable(dict[str, V]):
    """Something for each table of a database, by the table's name."""

    def __missing__(self, name: str) -> V:
        raise StateError(f"table '{name}' is not in this database")


class _Ended(ByTable[Any]):
    def __missing__(self, name: str) -> NoReturn:
        raise StateError("this transaction has ended; open another with Database.write()")


ENDED: Final = _Ended()
"""What a transaction reads and writes after its end."""
