"""Reading: the same for a snapshot and for a transaction, which also sees what it has written itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from isthmus.statedb.index import Rows
from isthmus.statedb.past import PastState
from isthmus.statedb.states import ByTable, TableState
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

Pending = ByTable[frozenset[str]]
"""Names of the initializers that have not completed. Never changed: replaced whole."""


class Reader:
    """What snapshots and write transactions have in common."""

    __slots__ = ("_pending", "_states")

    def __init__(self, states: ByTable[Any], pending: Pending) -> None:
        self._states: ByTable[TableState | PastState] = states
        self._pending = pending

    def get(self, table: Table[K, R], key: K) -> R | None:  # hot:
        """The row with this primary key, or None."""
        row: R | None = self._states[table.name].get(key)
        return row

    def get_all(self, table: Table[K, R], keys: Collection[K]) -> Sequence[R | None]:  # hot:
        """The row with each of these primary keys, or None."""
        return self._states[table.name].many(keys)

    def getter(self, table: Table[K, R]) -> Callable[[K], R | None]:
        """The function from a primary key to its row, or None, for many look-ups without an ``await`` between them."""
        get: Callable[[K], R | None] = self._states[table.name].get
        return get

    def all(self, table: Table[Any, R]) -> Iterator[R]:
        """Every row as it is at this moment, in no order; writing while iterating is fine."""
        return iter(self._states[table.name].all())

    def by(self, table: Table[Any, R], index: str, value: Hashable) -> list[R]:  # hot:
        """The rows found under a value of an index, in no order."""
        rows = self._states[table.name].finders[table.positions[index]](value)
        if rows is None:
            return []
        return list(rows.values()) if type(rows) is dict else [rows]

    def finder(self, table: Table[Any, R], index: str) -> Callable[[Any], Rows | None]:  # hot:
        """A function from a value of an index to the one row under it, a dict of several by key, or None (``rows_of``).

        For many look-ups: what it gives is the index's own and must not be changed, and the function is valid as long
        as its transaction, or its snapshot.
        """
        found: Callable[[Any], Rows | None] = self._states[table.name].finder(table.positions[index])
        return found

    def lower_bound(self, table: Table[Any, R], index: str, value: Any) -> Iterator[R]:
        """The rows of an ordered index in the order of its values, from this value or the first after it."""
        for each in self._states[table.name].keys_from(table.ordered_position(index), value):
            yield from self.by(table, index, each)

    def prefix(self, table: Table[Any, R], index: str, prefix: Any) -> Iterator[R]:
        """The rows of an ordered index whose values begin with a prefix (of text, or of a tuple), in their order."""
        size = len(prefix)
        for each in self._states[table.name].keys_from(table.ordered_position(index), prefix):
            if each[:size] != prefix:
                return
            yield from self.by(table, index, each)

    def count(self, table: AnyTable) -> int:
        """How many rows the table has."""
        return len(self._states[table.name])

    def revision(self, table: AnyTable) -> int:
        """How many changes the table has seen; grows by one with each row put or deleted."""
        return self._states[table.name].revision

    def pending(self, table: AnyTable) -> frozenset[str]:
        """Names of the initializers that have not completed."""
        return self._pending[table.name]

    def initialized(self, *tables: AnyTable) -> bool:
        """Whether every source of these tables has completed its first list."""
        return not any(self._pending[table.name] for table in tables)


class Snapshot(Reader):
    """The database as it was at one commit, for as long as it is held.

    While it is held, each transaction adds what it touches to the snapshot's undo: drop it when it is not needed.
    """

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"<Snapshot {', '.join(f'{name}@{state.revision}' for name, state in self._states.items())}>"

    def _begin(self, present: TableState) -> None:
        """A transaction begins to write a table."""
        state = self._states.get(present.table.name)  # none: the table is younger than the snapshot
        if isinstance(state, PastState):
            state.begin()
        elif state is not None:
            self._states[present.table.name] = PastState(present)

    def _end(self, table: str) -> None:
        """The transaction that wrote the table ends."""
        state = self._states.get(table)
        if isinstance(state, PastState):
            state.end()
