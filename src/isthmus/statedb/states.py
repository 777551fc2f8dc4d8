"""The state of one table, as it stands in a root or as a transaction is changing it, and all states by name.

Both kinds answer the same questions by the same attributes, so that reading is one code for snapshots and
transactions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from immutables import Map

from isthmus.statedb.errors import StateError
from isthmus.statedb.index import Index, Rows, build
from isthmus.statedb.ordered import Ordered
from isthmus.statedb.table import AnyTable


def _build(table: AnyTable, position: int, rows: Map[Any, Any]) -> Index:
    return build(rows, table.values[position], table.key, empty=table.empty[position])


class TableState(NamedTuple):
    """One table inside a root: rows by key and by index value, the count of changes, who has yet to fill it."""

    rows: Map[Any, Any]
    indexes: list[Map[Any, Rows] | Ordered | None]
    """None: nobody has looked into it yet. It is made when somebody does, and kept from then on."""
    revision: int
    pending: frozenset[str]

    def index_at(self, table: AnyTable, position: int) -> Map[Any, Rows] | Ordered:
        """An index, made now where this is the first look into it."""
        found = self.indexes[position]
        if found is None:
            found = self.indexes[position] = _build(table, position, self.rows).finish()
        return found


class Draft:
    """One table inside a write transaction: transients, made when it is first written."""

    __slots__ = ("awaited", "base", "indexes", "kept", "pending", "revision", "rows", "settled", "touched")

    def __init__(self, table: AnyTable, base: TableState) -> None:
        self.base = base
        self.rows: Any = base.rows.mutate()
        self.indexes: list[Index | None] = [
            None if each is None else Index(each, values, table.key)
            for each, values in zip(base.indexes, table.values, strict=True)
        ]
        self.kept = [each for each in self.indexes if each is not None]
        self.revision = base.revision
        self.pending = base.pending
        self.settled: frozenset[str] = frozenset()
        self.awaited: frozenset[str] = frozenset()
        self.touched: dict[Any, Any] = {}

    def index_at(self, table: AnyTable, position: int) -> Index:
        """An index, made now where this is the first look into it."""
        found = self.indexes[position]
        if found is None:
            found = self.indexes[position] = _build(table, position, self.present())
            self.kept.append(found)
        return found

    def put(self, key: Any, old: Any, new: Any) -> None:  # hot:
        """Put a row in the place of the old one, or of none; the indexes follow."""
        self.rows[key] = new
        self.revision += 1
        self.touched.setdefault(key, old)
        if old is None:
            for index in self.kept:
                index.add(new)
        else:
            for index in self.kept:
                index.replace(old, new)

    def delete(self, key: Any, old: Any) -> None:  # hot:
        """Take a row away; the indexes follow."""
        del self.rows[key]
        self.revision += 1
        self.touched.setdefault(key, old)
        for index in self.kept:
            index.remove(old)

    def present(self) -> Map[Any, Any]:
        """The rows as they are now, immutable: what is being changed cannot be iterated."""
        rows: Map[Any, Any] = self.rows.finish()
        self.rows = rows.mutate()
        return rows

    def await_exactly(self, names: frozenset[str]) -> None:
        """These, and no others, have yet to fill the table."""
        self.settled = self.settled | (self.pending - names)
        self.awaited = (self.awaited - self.settled) | (names - self.pending)
        self.pending = names

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.touched) or bool(self.settled) or bool(self.awaited)

    def finish(self, now: TableState) -> TableState:
        """The state to commit; ``now`` has the initializers that were registered since the transaction began."""
        if not self.touched:
            return now._replace(pending=(now.pending - self.settled) | self.awaited)
        indexes = [None if each is None else each.finish() for each in self.indexes]
        return TableState(self.rows.finish(), indexes, self.revision, (now.pending - self.settled) | self.awaited)


class States(dict[str, TableState | Draft]):
    """States by the table's name. A root is one whose states are all TableStates, and is never changed."""

    def __missing__(self, name: str) -> TableState:
        raise StateError(f"table '{name}' is not in this database")


class _Ended(States):
    def __missing__(self, name: str) -> TableState:
        raise StateError("this transaction has ended; open another with Database.write()")


ENDED: Final = _Ended()
"""What a transaction reads and writes after its end."""
