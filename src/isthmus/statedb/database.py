"""The database: an immutable root of persistent maps, replaced whole by each committed transaction.

Invariant: a root never changes. A snapshot is a root and costs nothing; a write transaction works on transients of
the maps it touches and swaps one new root in, so that several tables change together or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from immutables import Map

from isthmus.statedb.changes import Changes
from isthmus.statedb.errors import StateError
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.states import Draft, States, TableState
from isthmus.statedb.table import AnyTable, Table
from isthmus.statedb.transaction import WriteTxn

R = TypeVar("R")


class Initializer:
    """A source's promise to fill a table; complete it in the transaction that makes the first list whole."""

    def __init__(self, table: AnyTable, name: str) -> None:
        self._table = table
        self.name = name

    def __repr__(self) -> str:
        return f"<Initializer {self.name} of {self._table.name}>"

    def complete(self, txn: WriteTxn) -> None:
        """Say that the first list is whole. Saying it again changes nothing."""
        pending = txn.pending(self._table)
        if self.name in pending:
            txn._await_exactly(self._table, pending - {self.name})


class Database:
    """Tables, and everybody who reads and writes them."""

    def __init__(self, *tables: AnyTable) -> None:
        self._root = States()
        self._readers: dict[str, dict[Changes[Any], None]] = {}
        self._watchers: set[asyncio.Event] = set()
        self._writing = False
        self.tables: dict[str, AnyTable] = {}
        for table in tables:
            self.add(table)

    def __repr__(self) -> str:
        return f"<Database {', '.join(f'{name}={len(state.rows)}' for name, state in self._root.items())}>"

    def add(self, table: AnyTable) -> None:
        """Take one more table in, empty."""
        if table.name in self._root:
            raise StateError(f"table '{table.name}' is declared twice")
        self.tables[table.name] = table
        self._readers[table.name] = {}
        self._replace({table.name: TableState(Map(), [None] * len(table.indexes), 0, frozenset())})

    def snapshot(self) -> Snapshot:
        """The database as it is now."""
        return Snapshot(self._root)

    @contextmanager
    def write(self) -> Iterator[WriteTxn]:
        """A transaction: committed when the block ends, forgotten when it raises. Never ``await`` inside."""
        if self._writing:
            raise StateError("a transaction is open already: transactions do not nest and do not span an await")
        self._writing = True
        txn = WriteTxn(self._root)
        try:
            yield txn
            self._commit(txn._end())
        finally:
            txn._end()
            self._writing = False

    def _commit(self, drafts: dict[str, Draft]) -> None:
        if not drafts:
            return
        self._replace({name: draft.finish(self._state(name)) for name, draft in drafts.items()})
        for name, draft in drafts.items():
            if draft.touched:
                for reader in tuple(self._readers[name]):
                    reader._committed(draft.touched)
        self._wake()

    def changes(self, table: Table[Any, R], *, limit: int | None = None) -> Changes[R]:
        """A new reader of the table's changes; with a limit to how many changed keys it may leave unread."""
        reader = Changes(self, table, limit=limit)
        self._readers[table.name][reader] = None
        return reader

    def _forget(self, reader: Changes[Any], table: AnyTable) -> None:
        self._readers[table.name].pop(reader, None)

    def initializer(self, table: AnyTable, name: str) -> Initializer:
        """Register a source that will fill the table; until it completes the table counts as incomplete."""
        state = self._state(table.name)
        if name in state.pending:
            raise StateError(f"table '{table.name}' has an initializer '{name}' already")
        self._replace({table.name: state._replace(pending=state.pending | {name})})
        self._wake()
        return Initializer(table, name)

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait until a condition on the snapshot holds; it is looked at after each commit."""
        wake = asyncio.Event()
        self._watchers.add(wake)
        try:
            while not condition(snapshot := self.snapshot()):
                await wake.wait()
                wake.clear()
            return snapshot
        finally:
            self._watchers.discard(wake)

    def stats(self) -> dict[str, dict[str, int]]:
        """Per table: rows, revision, readers, changes that the slowest of them has not read, sources still awaited."""
        return {
            name: {
                "rows": len(state.rows),
                "revision": state.revision,
                "readers": len(self._readers[name]),
                "unread": max((reader.unread for reader in self._readers[name]), default=0),
                "pending": len(state.pending),
            }
            for name, state in self._root.items()
        }

    def _state(self, name: str) -> TableState:
        state = self._root[name]
        assert isinstance(state, TableState)  # a root has no drafts
        return state

    def _replace(self, states: dict[str, TableState]) -> None:
        root = States(self._root)
        root.update(states)
        self._root = root

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()
