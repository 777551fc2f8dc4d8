"""Read operations shared by snapshots and transactions. A transaction also reads its own writes."""

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
"""Names of uncompleted initializers by table. Never modified, only replaced as a whole."""


class Reader:
    """Read operations of snapshots and write transactions."""

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
        """Every row, in no order; writes during the iteration do not affect it."""
        return iter(self._states[table.name].all())

    def by(self, table: Table[Any, R], index: str, value: Hashable) -> list[R]:  # hot:
        """The rows found under a value of an index, in no order."""
        rows = self._states[table.name].finders[table.positions[index]](value)
        if rows is None:
            return []
        return list(rows.values()) if type(rows) is dict else [rows]

    def finder(self, table: Table[Any, R], index: str) -> Callable[[Any], Rows | None]:  # hot:
        """A function from a value of an index to the one row under it, a dict of several by key, or None (``rows_of``).

        For many look-ups. The result belongs to the index and must not be modified; the function is valid as long as
        its transaction or snapshot.
        """
        finder: Callable[[Any], Rows | None] = self._states[table.name].finder(table.positions[index])
        return finder

    def lower_bound(self, table: Table[Any, R], index: str, value: Any) -> Iterator[R]:
        """The rows of an ordered index in the order of its values, from this value or the first after it."""
        for indexed in self._states[table.name].keys_from(table.ordered_position(index), value):
            yield from self.by(table, index, indexed)

    def prefix(self, table: Table[Any, R], index: str, prefix: Any) -> Iterator[R]:
        """The rows of an ordered index whose values begin with a prefix (of text, or of a tuple), in their order."""
        size = len(prefix)
        for value in self._states[table.name].keys_from(table.ordered_position(index), prefix):
            if value[:size] != prefix:
                return
            yield from self.by(table, index, value)

    def count(self, table: AnyTable) -> int:
        """Number of rows in the table."""
        return len(self._states[table.name])

    def revision(self, table: AnyTable) -> int:
        """Revision of the table, which grows by one with each row put or deleted."""
        return self._states[table.name].revision

    def pending(self, table: AnyTable) -> frozenset[str]:
        """Names of the initializers that have not completed."""
        return self._pending[table.name]

    def initialized(self, *tables: AnyTable) -> bool:
        """True if every source of these tables has completed its first list."""
        return not any(self._pending[table.name] for table in tables)


class Snapshot(Reader):
    """The database at one commit.

    While a snapshot is held, each transaction adds the rows that it touches to the snapshot's undo: drop it early.
    """

    __slots__ = ("__weakref__",)

    def __repr__(self) -> str:
        return f"<Snapshot {', '.join(f'{name}@{state.revision}' for name, state in self._states.items())}>"

    def _begin(self, current: TableState) -> None:
        """A transaction begins to write a table."""
        state = self._states.get(current.table.name)  # None if the table was added after the snapshot
        if isinstance(state, PastState):
            state.begin()
        elif state is not None:
            self._states[current.table.name] = PastState(current)

    def _end(self, table: str) -> None:
        """The transaction that wrote the table ends."""
        state = self._states.get(table)
        if isinstance(state, PastState):
            state.end()
