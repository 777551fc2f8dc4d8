"""Reading: the same for a snapshot and for a transaction, which also sees what it has written itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, TypeVar, cast

from isthmus.statedb.index import rows_of
from isthmus.statedb.states import States
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class Reader:
    """What snapshots and write transactions have in common."""

    __slots__ = ("_states",)

    def __init__(self, states: States) -> None:
        self._states = states

    def get(self, table: Table[K, R], key: K) -> R | None:  # hot:
        """The row with this primary key, or None."""
        return cast("R | None", self._states[table.name].rows.get(key))

    def all(self, table: Table[Any, R]) -> Iterator[R]:
        """Every row as it is at this moment, in no order."""
        return iter(self._states[table.name].rows.values())

    def by(self, table: Table[Any, R], index: str, value: Hashable) -> list[R]:  # hot:
        """The rows found under a value of an index, in no order."""
        state = self._states[table.name]
        position = table.positions[index]
        found = state.indexes[position]
        rows = (state.index_at(table, position) if found is None else found).get(value)
        return [] if rows is None else rows_of(rows)

    def since(self, table: Table[Any, R], index: str, value: Any) -> Iterator[R]:
        """The rows of an ordered index in the order of its values, from this value or the first after it."""
        position = table.ordered(index)
        for each in self._values(table, position, value):
            yield from self.by(table, index, each)

    def below(self, table: Table[Any, R], index: str, prefix: Any) -> Iterator[R]:
        """The rows of an ordered index whose values begin with a prefix (of text, or of a tuple), in their order."""
        position, size = table.ordered(index), len(prefix)
        for each in self._values(table, position, prefix):
            if each[:size] != prefix:
                return
            yield from self.by(table, index, each)

    def _values(self, table: AnyTable, position: int, value: Any) -> Iterator[Any]:
        values: Iterator[Any] = self._states[table.name].index_at(table, position).since(value)  # type: ignore[union-attr]
        return values

    def count(self, table: AnyTable) -> int:
        """How many rows the table has."""
        return len(self._states[table.name].rows)

    def revision(self, table: AnyTable) -> int:
        """How many changes the table has seen; grows by one with each row put or deleted."""
        return self._states[table.name].revision

    def pending(self, table: AnyTable) -> frozenset[str]:
        """Names of the initializers that have not completed."""
        return self._states[table.name].pending

    def initialized(self, *tables: AnyTable) -> bool:
        """Whether every source of these tables has said that its first list is whole."""
        return not any(self._states[table.name].pending for table in tables)


class Snapshot(Reader):
    """The database as it was at one commit, for as long as it is held."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Snapshot {', '.join(f'{name}@{state.revision}' for name, state in self._states.items())}>"
