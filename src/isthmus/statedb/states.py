"""The current state of a table, changed in place by the open transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from isthmus.statedb.errors import StateError
from isthmus.statedb.index import Index, Rows
from isthmus.statedb.ordered import SortedDict
from isthmus.statedb.rows import ByKey, Clustered
from isthmus.statedb.table import AnyTable

V = TypeVar("V")


class TableState:
    """Rows by key, indexes, and the keys that the open transaction has touched.

    Invariant: ``touched`` maps each key written by the open transaction to its row before the transaction, ``None`` for
    none, and ``latest`` maps the same keys, in the same order, to their current rows. ``touched`` is ``None`` until the
    transaction writes this table. It serves as the rollback and as the undo of live snapshots; change readers take over
    both dicts.
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
        """True if the open transaction wrote a key more than once, so that its row may be unchanged after all."""
        self.before = (0, 0)
        """Revision and number of rows before the open transaction's first write."""
        self._forget_indexes()

    def __len__(self) -> int:
        return len(self.rows)

    def many(self, keys: Collection[Any]) -> list[Any]:
        """The row of each key, ``None`` for a key without one."""
        return self.rows.many(keys)

    def all(self) -> list[Any]:
        """Every row, in a new list: rows may be written during the iteration."""
        return list(self.rows.values())

    def keys_from(self, position: int, value: Any) -> Iterator[Any]:
        """The values of an ordered index in order, from this one or the first after it."""
        entries = self.index(position).entries
        assert isinstance(entries, SortedDict)  # the table's ordered_position() gave the position
        return entries.keys_from(value)

    def index(self, position: int) -> Index:
        """An index, built at its first look-up and maintained from then on: an unused index costs nothing."""
        index = self.indexes[position]
        if index is None:
            index = self.indexes[position] = Index(self.table, position)
            for row in self.rows.values():
                index.add(row)
            self.kept.append(index)
            self.finders[position] = index.get
        return index

    def finder(self, position: int) -> Callable[[Any], Rows | None]:
        """The function from a value of an index to its rows; it sees later writes, until a rollback."""
        return self.index(position).get

    def roll_back(self) -> None:
        """Restore the rows from before the open transaction."""
        self.restore(self.touched or {})
        self.revision = self.before[0]

    def restore(self, rows: Mapping[Any, Any]) -> None:
        """Put rows by key, ``None`` for none, and drop the indexes: an exception may have interrupted their update."""
        for key, row in rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self._forget_indexes()

    def _forget_indexes(self) -> None:
        self.indexes: list[Index | None] = [None] * len(self.table.values)
        self.kept: list[Index] = []
        """The built indexes, which every write maintains, in order of their first look-up."""
        self.finders: list[Callable[[Any], Rows | None]] = [
            partial(self._first_look, position) for position in range(len(self.table.values))
        ]
        """The look-up function of each index."""
        if isinstance(self.rows, Clustered) and self.table.clustered is not None:
            position = self.table.clustered[0]
            self.indexes[position], self.finders[position] = self.rows.index, self.rows.index.get

    def _first_look(self, position: int, value: Any) -> Rows | None:
        return self.index(position).get(value)


class ByTable(dict[str, V]):
    """Values by table name; a table that is not in the database raises StateError."""

    def __missing__(self, name: str) -> V:
        raise StateError(f"table '{name}' is not in this database")


class _Ended(ByTable[Any]):
    def __missing__(self, name: str) -> NoReturn:
        raise StateError("this transaction has ended; open another with Database.write()")


ENDED: Final = _Ended()
"""State of a transaction after its end: every use raises StateError."""
