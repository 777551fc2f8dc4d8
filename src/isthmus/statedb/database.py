"""The database: tables changed in place by one transaction at a time, with their snapshots and change readers.

Invariant: at most one transaction is open, and it runs without ``await``; between transactions the current state of
every table is the committed one. The database refers to snapshots weakly: a transaction's first write of a table makes
the live ones read that table through an undo, which collects the rows that the transaction touches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import ReferenceType, WeakSet, ref

from msgspec import Struct

from isthmus.statedb.changes import Changes
from isthmus.statedb.errors import StateError
from isthmus.statedb.reading import Pending, Reader, Snapshot
from isthmus.statedb.states import ByTable, TableState
from isthmus.statedb.table import AnyTable, Table
from isthmus.statedb.transaction import WriteTxn

R = TypeVar("R")


class TableStats(Struct, frozen=True, gc=False):
    """Statistics of a table. ``unread`` is the number of changes that its slowest reader has not read."""

    rows: int
    revision: int
    readers: int
    unread: int
    pending: tuple[str, ...]
    """Initializers that have not completed."""


class Initializer:
    """A source that fills a table; the transaction that writes its first complete list completes it."""

    def __init__(self, table: AnyTable, name: str) -> None:
        self._table = table
        self.name = name

    def __repr__(self) -> str:
        return f"<Initializer {self.name} of {self._table.name}>"

    def complete(self, txn: WriteTxn) -> None:
        """Declare that this transaction completes the source's first list. Idempotent."""
        pending = txn.pending(self._table)
        if self.name in pending:
            txn._await_exactly(self._table, pending - {self.name})


class Database:
    """A set of tables, with transactions, snapshots and change readers over them."""

    def __init__(self, *tables: AnyTable) -> None:
        self._states: ByTable[TableState] = ByTable()
        self._pending: Pending = ByTable()
        self._readers: ByTable[dict[ReferenceType[Changes[Any]], None]] = ByTable()
        """Weak references: a reader is freed with the frames of a task that failed, and collects no more changes."""
        self._snapshots: WeakSet[Snapshot] = WeakSet()
        self._watchers: set[asyncio.Event] = set()
        self._writing = False
        self._written: list[TableState] = []
        """The tables that the open transaction has written."""
        self.tables: dict[str, AnyTable] = {}
        for table in tables:
            self.add(table)

    def __repr__(self) -> str:
        return f"<Database {', '.join(f'{name}={len(state)}' for name, state in self._states.items())}>"

    def add(self, table: AnyTable) -> None:
        """Add an empty table."""
        if table.name in self._states:
            raise StateError(f"table '{table.name}' is declared twice")
        self.tables[table.name] = table
        self._readers[table.name] = {}
        self._states[table.name] = TableState(table)
        self._pending = _with(self._pending, table, frozenset())

    def snapshot(self) -> Snapshot:
        """The last committed state of all tables."""
        snapshot = Snapshot(ByTable(self._states), self._pending)
        for state in self._written:
            snapshot._begin(state)
        self._snapshots.add(snapshot)
        return snapshot

    @property
    def pending(self) -> Pending:
        """Uncompleted initializers by table; the same object until an initializer is registered or completes."""
        return self._pending

    def committed(self) -> Reader:
        """Read the committed state without a snapshot. Raises StateError while a transaction is open."""
        if self._writing:
            raise StateError("a transaction is open: what was committed last is read through a snapshot")
        return Reader(self._states, self._pending)

    @contextmanager
    def write(self) -> Iterator[WriteTxn]:
        """Open a transaction: committed when the block ends, rolled back when it raises. Never ``await`` inside."""
        if self._writing:
            raise StateError("a transaction is open already: transactions do not nest and do not span an await")
        self._writing = True
        txn = WriteTxn(self._states, self._pending, self._touch)
        try:
            yield txn
        except BaseException:
            for state in self._written:
                state.roll_back()
            self._close()
            raise
        else:
            self._commit(txn)
        finally:
            txn._end()
            self._writing = False

    def _touch(self, state: TableState) -> dict[Any, Any]:
        """Prepare a table for the first write of the open transaction. Returns its dict of touched rows."""
        touched = state.touched = {}
        state.latest, state.rewritten = {}, False
        state.before = (state.revision, len(state.rows))
        self._written.append(state)
        for snapshot in self._live_snapshots():
            snapshot._begin(state)
        return touched

    def _live_snapshots(self) -> Sequence[Snapshot]:
        """Snapshots that are still referenced."""
        return tuple(self._snapshots) if self._snapshots else ()

    def _commit(self, txn: WriteTxn) -> None:
        pending = txn._pending_after(self._pending)
        changed = pending is not self._pending
        self._pending = pending
        for name, touched, latest, rewritten in self._close():
            changed = True
            for reference in tuple(self._readers[name]):
                if (reader := reference()) is not None:
                    reader._committed(touched, latest, rewritten)
        if changed:
            self._wake()

    def _close(self) -> list[tuple[str, dict[Any, Any], dict[Any, Any], bool]]:
        """End the writes to all tables. Returns, per table written, its old and new rows by key, and whether a key was
        written more than once."""
        written = [
            (state.table.name, state.touched, state.latest, state.rewritten) for state in self._written if state.touched
        ]
        for snapshot in self._live_snapshots():
            for state in self._written:
                snapshot._end(state.table.name)
        for state in self._written:
            state.touched, state.latest = None, {}
        self._written = []
        return written

    def changes(self, table: Table[Any, R], *, limit: int | None = None) -> Changes[R]:
        """A new reader of the table's changes; ``limit`` bounds the changed keys that it may leave unread."""
        reader, readers = Changes(self, table, limit=limit), self._readers[table.name]
        readers[ref(reader, lambda dead: readers.pop(dead, None))] = None
        return reader

    def _forget(self, reader: Changes[Any], table: AnyTable) -> None:
        self._readers[table.name].pop(ref(reader), None)

    def initializer(self, table: AnyTable, name: str) -> Initializer:
        """Register a source that fills the table, which is not initialized until the source completes."""
        pending = self._pending[table.name]
        if name in pending:
            raise StateError(f"table '{table.name}' has an initializer '{name}' already")
        self._pending = _with(self._pending, table, pending | {name})
        self._wake()
        return Initializer(table, name)

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait until a condition holds, and return the snapshot that meets it. Evaluated after each commit."""
        wake = asyncio.Event()
        self._watchers.add(wake)
        try:
            while True:
                snapshot = self.snapshot()
                if condition(snapshot):
                    return snapshot
                del snapshot  # held while waiting, it would cost every transaction
                await wake.wait()
                wake.clear()
        finally:
            self._watchers.discard(wake)

    def stats(self) -> dict[str, TableStats]:
        """Statistics of each table."""
        return {
            name: TableStats(
                rows=len(state),
                revision=state.revision,
                readers=len(self._readers[name]),
                unread=max((reader.unread for weak in self._readers[name] if (reader := weak())), default=0),
                pending=tuple(sorted(self._pending[name])),
            )
            for name, state in self._states.items()
        }

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()


def _with(pending: Pending, table: AnyTable, names: frozenset[str]) -> Pending:
    changed = ByTable(pending)
    changed[table.name] = names
    return changed
