"""Write transactions over any tables, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

from isthmus.statedb.changes import differing, set_defaults
from isthmus.statedb.reading import Pending, Reader
from isthmus.statedb.states import ENDED, ByTable, TableState
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

ONE_BY_ONE = 4
"""Batches smaller than this are written one by one, which takes no longer."""


class WriteTxn(Reader):
    """Writes to any tables, visible to its own reads at once and to other readers at commit.

    It changes the tables in place, and remembers the previous row of each key that it touches.
    """

    __slots__ = ("_awaited", "_completed", "_present", "_touch")

    def __init__(
        self, states: ByTable[TableState], pending: Pending, touch: Callable[[TableState], dict[Any, Any]]
    ) -> None:
        super().__init__(states, pending)
        self._present = states
        self._touch = touch
        """Called before the first write of a table; returns its dict of touched rows."""
        self._completed: dict[str, frozenset[str]] = {}
        self._awaited: dict[str, frozenset[str]] = {}
        """Initializers by table: those that this transaction completed, and those that it added (``_awaited``)."""

    def __repr__(self) -> str:
        written = {name: len(state.touched) for name, state in self._present.items() if state.touched}
        return f"<WriteTxn {', '.join(f'{name}: {n} rows' for name, n in written.items()) or 'so far empty'}>"

    def put(self, table: Table[Any, R], row: R) -> R | None:  # hot:
        """Insert or replace a row. Returns the replaced row. A put of an equal row changes nothing."""
        state = self._present[table.name]
        key = table.key(row)
        old: R | None = state.get(key)
        if old is None or (old is not row and old != row):
            self._set(state, key, old, row)
        return old

    def delete(self, table: Table[K, R], key: K) -> R | None:  # hot:
        """Remove a row. Returns it, or ``None`` if the key had none."""
        state = self._present[table.name]
        old: R | None = state.get(key)
        if old is None:
            return None
        touched = state.touched
        if touched is None:
            touched = self._touch(state)
        if key in touched:
            state.rewritten = True
        else:
            touched[key] = old
        state.latest[key] = None
        del state.rows[key]
        state.revision += 1
        for index in state.kept:
            index.remove(old)
        return old

    def put_all(self, table: Table[Any, R], rows: Sequence[R], *, compared: bool = False) -> None:  # hot:
        """Put rows in order; faster than one by one if all keys are new.

        ``compared`` promises that each row is identical to the current one or differs from it, which saves comparisons
        of large rows.
        """
        if len(rows) >= ONE_BY_ONE:
            state = self._present[table.name]
            touched = self._touch(state) if state.touched is None else state.touched
            new = dict(zip(map(table.key, rows), rows, strict=True))
            if len(new) == len(rows) and state.rows.add_new(new):
                state.rewritten |= set_defaults(touched, dict.fromkeys(new))
                state.latest.update(new)
                state.revision += len(new)
                for index in state.kept:
                    index.add_all(rows)
                return
        for row in rows:
            if not compared:
                self.put(table, row)
                continue
            state, key = self._present[table.name], table.key(row)
            if (old := state.get(key)) is not row:
                self._set(state, key, old, row)

    def delete_all(self, table: Table[K, R], keys: Sequence[K]) -> None:  # hot:
        """Remove rows; a key without a row is no error."""
        if len(keys) < ONE_BY_ONE:
            for key in keys:
                self.delete(table, key)
            return
        state = self._present[table.name]
        touched = self._touch(state) if state.touched is None else state.touched
        if deleted := state.rows.take(keys):
            state.rewritten |= set_defaults(touched, deleted)
            state.latest.update(dict.fromkeys(deleted))
            state.revision += len(deleted)
            for index in state.kept:
                index.remove_all([*deleted.values()])

    def _set(self, state: TableState, key: Any, old: Any, new: Any) -> None:  # hot:
        """Put a row that differs from the current one, which is ``None`` for a new key, and update the indexes."""
        touched = state.touched
        if touched is None:
            touched = self._touch(state)
        if key in touched:
            state.rewritten = True
        else:
            touched[key] = old
        state.latest[key] = state.rows[key] = new  # the first of them first: the second may raise
        state.revision += 1
        if old is None:
            for index in state.kept:
                index.add(new)
        else:
            for index in state.kept:
                index.replace(old, new)

    @contextmanager
    def savepoint(self, tables: Iterable[AnyTable]) -> Iterator[None]:
        """Roll back a block's writes to these tables, and no others of the transaction, when the block raises.

        Functions from ``finder`` are invalid once the block has raised. Savepoints do not nest, and :meth:`changed`
        must not be called inside of one.
        """
        states = [self._present[table.name] for table in tables]
        before = [(state.latest, state.revision) for state in states]
        for state in states:
            state.latest = {}  # the keys that the block writes, with their rows now
        try:
            yield
        except Exception:
            for state, (latest, revision) in zip(states, before, strict=True):
                self._take_back(state, latest)
                state.revision = revision
            raise
        finally:
            for state, (latest, _) in zip(states, before, strict=True):
                latest.update(state.latest)  # in the order of ``touched``, which only the new keys have joined
                state.latest = latest

    def _take_back(self, state: TableState, latest: dict[Any, Any]) -> None:
        """Write the rows from before a savepoint, which are in ``latest``, over those written after it.

        Updating the indexes costs what the block cost. If the block failed in the middle of a write, a row may be in
        some indexes only: then their update fails as well, and all of them are rebuilt.
        """
        touched = state.touched or {}
        rows = {key: latest[key] if key in latest else touched[key] for key in state.latest}
        try:
            for key, row in rows.items():
                if row is None:
                    self.delete(state.table, key)
                else:
                    self.put(state.table, row)
        except Exception:  # whatever the functions of the table's indexes raise
            state.restore(rows)
            state.latest.update(rows)
        state.rewritten = True

    def with_rows(self, table: AnyTable, index: str, values: Iterable[Hashable]) -> Set[Any]:  # hot:
        """The subset of ``values`` that have rows in an index; fast if few of many do."""
        entries = self._present[table.name].index(table.positions[index]).entries
        return entries.keys() & values

    def changed(self, table: AnyTable) -> list[tuple[Any, Any]]:
        """Changes by this transaction so far as (old row, new row), ``None`` for none."""
        state = self._present[table.name]
        return differing((state.touched or {}).values(), state.latest.values(), rewritten=state.rewritten)

    def _await_exactly(self, table: AnyTable, names: frozenset[str]) -> None:
        """Set the table's pending initializers."""
        name, before = table.name, self._pending[table.name]
        completed = self._completed[name] = self._completed.get(name, frozenset()) | (before - names)
        self._awaited[name] = (self._awaited.get(name, frozenset()) - completed) | (names - before)
        self._pending = ByTable(self._pending)
        self._pending[name] = names

    def _pending_after(self, current: Pending) -> Pending:
        """Pending initializers after the commit; ``current`` includes those registered during the transaction."""
        if not self._completed:
            return current
        after = ByTable(current)
        for name, completed in self._completed.items():
            after[name] = (current[name] - completed) | self._awaited[name]
        return after if after != current else current

    def _end(self) -> None:
        """Refuse all further reads and writes."""
        self._states = self._present = self._pending = ENDED
