"""The database: an immutable root of persistent maps, replaced whole by each committed transaction.

Invariant: a root never changes. A snapshot is a root and costs nothing; a write transaction works on transients of
the maps it touches and swaps one new root in, so that several tables change together or not at all.

A change reader keeps, per key, the row as the reader last saw it. So it coalesces (a hundred writes between two
reads are one change), needs no graveyard, and its memory is bounded by the distinct keys it has not yet read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar, cast

from immutables import Map

from isthmus.statedb.errors import Overrun, StateError
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

Keys = Map[Any, None]


class TableState(NamedTuple):
    """One table inside a root: rows by key, keys by index value, the count of changes, who has yet to fill it."""

    rows: Map[Any, Any]
    indexes: tuple[Map[Any, Keys], ...]
    revision: int
    pending: frozenset[str]


Root = dict[str, TableState]


class Reader:
    """What snapshots and write transactions have in common: reading."""

    def _rows(self, table: AnyTable) -> Any:
        raise NotImplementedError

    def _index(self, table: AnyTable, position: int) -> Any:
        raise NotImplementedError

    def get(self, table: Table[K, R], key: K) -> R | None:
        """The row with this primary key, or None."""
        return cast("R | None", self._rows(table).get(key))

    def all(self, table: Table[Any, R]) -> Iterator[R]:
        """Every row, in no order."""
        return iter(self._rows(table).values())

    def by(self, table: Table[Any, R], index: str, value: Hashable) -> list[R]:
        """The rows found under a value of an index, in no order."""
        rows = self._rows(table)
        keys = self._index(table, _position(table, index)).get(value)
        return [rows[key] for key in keys] if keys else []

    def count(self, table: AnyTable) -> int:
        """How many rows the table has."""
        return len(self._rows(table))


class Snapshot(Reader):
    """The database as it was at one commit, for as long as it is held."""

    __slots__ = ("_root",)

    def __init__(self, root: Root) -> None:
        self._root = root

    def _state(self, table: AnyTable) -> TableState:
        try:
            return self._root[table.name]
        except KeyError:
            raise StateError(f"table '{table.name}' is not in this database") from None

    def _rows(self, table: AnyTable) -> Map[Any, Any]:
        return self._state(table).rows

    def _index(self, table: AnyTable, position: int) -> Map[Any, Keys]:
        return self._state(table).indexes[position]

    def revision(self, table: AnyTable) -> int:
        """How many changes the table has seen; grows by one with each row put or deleted."""
        return self._state(table).revision

    def pending(self, table: AnyTable) -> frozenset[str]:
        """Names of the initializers that have not completed."""
        return self._state(table).pending

    def initialized(self, *tables: AnyTable) -> bool:
        """Whether every source of these tables has said that its first list is whole."""
        return not any(self._state(table).pending for table in tables)


class _Draft:
    """A table inside a write transaction: transients, made when first touched."""

    __slots__ = ("base", "indexes", "pending", "revision", "rows", "touched")

    def __init__(self, base: TableState) -> None:
        self.base = base
        self.rows = base.rows.mutate()
        self.indexes = [index.mutate() for index in base.indexes]
        self.revision = base.revision
        self.pending = base.pending
        self.touched: dict[Any, Any] = {}

    def finish(self) -> TableState:
        indexes = tuple(index.finish() for index in self.indexes)
        return TableState(self.rows.finish(), indexes, self.revision, self.pending)


class WriteTxn(Reader):
    """Writes to any tables, seen by its own reads at once and by everybody else at commit."""

    __slots__ = ("_closed", "_drafts", "_root")

    def __init__(self, root: Root) -> None:
        self._root = root
        self._drafts: dict[str, _Draft] = {}
        self._closed = False

    def put(self, table: Table[Any, R], row: R) -> R | None:
        """Insert or replace a row; give the one it replaced. A row equal to the present one changes nothing."""
        draft = self._draft(table)
        key = table.key(row)
        old = draft.rows.get(key)
        if old is not None and (old is row or old == row):
            return cast("R", old)
        draft.rows[key] = row
        self._touch(table, draft, key, old, row)
        return cast("R | None", old)

    def delete(self, table: Table[K, R], key: K) -> R | None:
        """Remove a row; give it back, or None where there was none."""
        draft = self._draft(table)
        old = draft.rows.get(key)
        if old is None:
            return None
        del draft.rows[key]
        self._touch(table, draft, key, old, None)
        return cast("R", old)

    def touched(self, table: AnyTable) -> dict[Any, Any]:
        """Keys written in this transaction so far, each with the row as it was before (None: there was none)."""
        draft = self._drafts.get(table.name)
        return draft.touched if draft else {}

    def initialized(self, *tables: AnyTable) -> bool:
        """Whether every source of these tables has completed, this transaction's completions included."""
        return not any((self._drafts.get(table.name) or self._state(table)).pending for table in tables)

    def _state(self, table: AnyTable) -> TableState:
        try:
            return self._root[table.name]
        except KeyError:
            raise StateError(f"table '{table.name}' is not in this database") from None

    def _draft(self, table: AnyTable) -> _Draft:
        if self._closed:
            raise StateError("this transaction has ended; open another with Database.write()")
        draft = self._drafts.get(table.name)
        if draft is None:
            draft = self._drafts[table.name] = _Draft(self._state(table))
        return draft

    def _touch(self, table: AnyTable, draft: _Draft, key: Any, old: Any, new: Any) -> None:
        draft.revision += 1
        draft.touched.setdefault(key, old)
        for position, values in enumerate(table.indexes.values()):
            before = set(values(old)) if old is not None else set()
            after = set(values(new)) if new is not None else set()
            index = draft.indexes[position]
            for value in before - after:
                keys = index[value].delete(key)
                if keys:
                    index[value] = keys
                else:
                    del index[value]
            for value in after - before:
                index[value] = index.get(value, _NO_KEYS).set(key, None)

    def _rows(self, table: AnyTable) -> Any:
        draft = self._drafts.get(table.name)
        return draft.rows if draft else self._state(table).rows

    def _index(self, table: AnyTable, position: int) -> Any:
        draft = self._drafts.get(table.name)
        return draft.indexes[position] if draft else self._state(table).indexes[position]

    def all(self, table: Table[Any, R]) -> Iterator[R]:
        """Every row, in no order. The rows are those of the moment of the call: writing while iterating is fine."""
        return iter(list(self._rows(table).values()) if table.name in self._drafts else self._rows(table).values())


class Change(NamedTuple, Generic[R]):
    """What became of one key since the reader last looked: put (``new``) or deleted (``new`` is None)."""

    key: Any
    old: R | None
    new: R | None


class Changes(Generic[R]):
    """One reader of a table's changes, deletions included; it starts with every present row as an insert.

    Read with :meth:`next`, wait with :meth:`wait`, end with :meth:`close`: an abandoned reader keeps what it missed.
    With a ``limit`` it keeps no more than that many keys: one that falls further behind gets Overrun.
    """

    def __init__(self, database: Database, table: Table[Any, R], *, limit: int | None = None) -> None:
        self._database = database
        self._table = table
        self._limit = limit
        self._overrun = False
        self._seen_before: dict[Any, R | None] = dict.fromkeys(database.snapshot()._rows(table).keys())
        self._wake = asyncio.Event()
        if self._seen_before:
            self._wake.set()

    def __repr__(self) -> str:
        return f"<Changes of {self._table.name}, {len(self._seen_before)} unread>"

    @property
    def unread(self) -> int:
        """How many keys have changed since the last read."""
        return len(self._seen_before)

    @property
    def ready(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._wake.is_set()

    def next(self) -> tuple[Snapshot, list[Change[R]]]:
        """The present snapshot, and what changed up to it since the last call, in order of first change."""
        if self._overrun:
            raise Overrun(f"more than {self._limit} rows of '{self._table.name}' changed between two reads")
        snapshot = self._database.snapshot()
        before, self._seen_before = self._seen_before, {}
        self._wake.clear()
        rows = snapshot._rows(self._table)
        changes = (Change(key, old, rows.get(key)) for key, old in before.items())
        return snapshot, [change for change in changes if change.old is not change.new]

    async def wait(self) -> None:
        """Return when there is something to read."""
        await self._wake.wait()

    def close(self) -> None:
        """Stop tracking; the reader must not be used again."""
        self._seen_before = {}
        self._database._readers[self._table.name].discard(self)

    def _committed(self, touched: dict[Any, Any]) -> None:
        for key, old in touched.items():
            self._seen_before.setdefault(key, old)
        if self._limit is not None and len(self._seen_before) > self._limit:
            self._overrun = True
            self.close()
        self._wake.set()


class Initializer:
    """A source's promise to fill a table; complete it in the transaction that makes the first list whole."""

    def __init__(self, database: Database, table: AnyTable, name: str) -> None:
        self._database = database
        self._table = table
        self.name = name

    def __repr__(self) -> str:
        return f"<Initializer {self.name} of {self._table.name}>"

    def complete(self, txn: WriteTxn) -> None:
        """Say that the first list is whole. Saying it again changes nothing."""
        draft = txn._draft(self._table)
        draft.pending -= {self.name}


class Database:
    """Tables, and everybody who reads and writes them."""

    def __init__(self, *tables: AnyTable) -> None:
        self._root: Root = {}
        self._readers: dict[str, set[Changes[Any]]] = {}
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
        self._readers[table.name] = set()
        self._root = {**self._root, table.name: TableState(Map(), (Map(),) * len(table.indexes), 0, frozenset())}

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
            self._commit(txn)
        finally:
            txn._closed = True
            self._writing = False

    def _commit(self, txn: WriteTxn) -> None:
        drafts = {n: d for n, d in txn._drafts.items() if d.touched or d.pending != d.base.pending}
        if not drafts:
            return
        self._root = {**self._root, **{name: draft.finish() for name, draft in drafts.items()}}
        for name, draft in drafts.items():
            if draft.touched:
                for reader in tuple(self._readers[name]):
                    reader._committed(draft.touched)
        for watcher in self._watchers:
            watcher.set()

    def changes(self, table: Table[Any, R], *, limit: int | None = None) -> Changes[R]:
        """A new reader of the table's changes; with a limit to how many changed keys it may leave unread."""
        reader = Changes(self, table, limit=limit)
        self._readers[table.name].add(reader)
        return reader

    def initializer(self, table: AnyTable, name: str) -> Initializer:
        """Register a source that will fill the table; until it completes the table counts as incomplete."""
        state = self.snapshot()._state(table)
        if name in state.pending:
            raise StateError(f"table '{table.name}' has an initializer '{name}' already")
        self._root = {**self._root, table.name: state._replace(pending=state.pending | {name})}
        return Initializer(self, table, name)

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
        """Per table: rows, revision, readers, and sources still awaited."""
        return {
            name: {
                "rows": len(state.rows),
                "revision": state.revision,
                "readers": len(self._readers[name]),
                "pending": len(state.pending),
            }
            for name, state in self._root.items()
        }


_NO_KEYS: Keys = Map()


def _position(table: AnyTable, index: str) -> int:
    for position, name in enumerate(table.indexes):
        if name == index:
            return position
    raise StateError(f"table '{table.name}' has no index '{index}'; it has: {', '.join(table.indexes) or 'none'}")
