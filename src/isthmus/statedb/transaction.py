"""Writing: any tables, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import Any, TypeVar

from isthmus.statedb.changes import differing, set_defaults
from isthmus.statedb.reading import Pending, Reader
from isthmus.statedb.states import ENDED, ByTable, TableState
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

ONE_BY_ONE = 4
"""Fewer rows than this are put, or deleted, one by one in no more time than together."""


class WriteTxn(Reader):
    """Writes to any tables, seen by its own reads at once and by everybody else at commit.

    It changes the tables in place, and remembers of each key it touches the row before.
    """

    __slots__ = ("_awaited", "_completed", "_present", "_touch")

    def __init__(
        self, states: ByTable[TableState], pending: Pending, touch: Callable[[TableState], dict[Any, Any]]
    ) -> None:
        super().__init__(states, pending)
        self._present = states
        self._touch = touch
        """Called before the first write of a table; gives its dict of touched rows."""
        self._completed: dict[str, frozenset[str]] = {}
        self._awaited: dict[str, frozenset[str]] = {}
        """By table: initializers that completed in this transaction, and those it added."""

    def __repr__(self) -> str:
        written = {name: len(state.touched) for name, state in self._present.items() if state.touched}
        return f"<WriteTxn {', '.join(f'{name}: {n} rows' for name, n in written.items()) or 'so far empty'}>"

    def put(self, table: Table[Any, R], row: R) -> R | None:  # hot:
        """Insert or replace a row; give the one it replaced. A row equal to the present one changes nothing."""
        state = self._present[table.name]
        key = table.key(row)
        old: R | None = state.get(key)
        if old is None or (old is not row and old != row):
            self._set(state, key, old, row)
        return old

    def delete(self, table: Table[K, R], key: K) -> R | None:  # hot:
        """Remove a row; give it back, or None where there was none."""
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
        """Put rows in their order: the same as one by one, in less time where all of them are new.

        ``compared``: a row is the present one itself or differs from it, as the caller knows; rows may be large.
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
        """Remove rows; keys without one are no error."""
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
        """Put a row that differs from the present one, None where there is none; the indexes follow."""
        touched = state.touched
        if touched is None:
            touched = self._touch(state)
        if key in touched:
            state.rewritten = True
        else:
            touched[key] = old
        state.rows[key] = state.latest[key] = new
        state.revision += 1
        if old is None:
            for index in state.kept:
                index.add(new)
        else:
            for index in state.kept:
                index.replace(old, new)

    def with_rows(self, table: AnyTable, index: str, values: Iterable[Hashable]) -> Set[Any]:  # hot:
        """Those of some values of an index under which there are rows: for many, of which few have some."""
        found = self._present[table.name].index(table.positions[index]).found
        return found.keys() & values

    def changed(self, table: AnyTable) -> list[tuple[Any, Any]]:
        """What this transaction has written so far: rows as they were before and are now, None for none."""
        state = self._present[table.name]
        return differing((state.touched or {}).values(), state.latest.values(), rewritten=state.rewritten)

    def _await_exactly(self, table: AnyTable, names: frozenset[str]) -> None:
        """Set which initializers of the table have not completed."""
        name, before = table.name, self._pending[table.name]
        completed = self._completed[name] = self._completed.get(name, frozenset()) | (before - names)
        self._awaited[name] = (self._awaited.get(name, frozenset()) - completed) | (names - before)
        self._pending = ByTable(self._pending)
        self._pending[name] = names

    def _pending_after(self, now: Pending) -> Pending:
        """Who is awaited once this is committed; ``now`` has the initializers registered while it was open."""
        if not self._completed:
            return now
        after = ByTable(now)
        for name, completed in self._completed.items():
            after[name] = (now[name] - completed) | self._awaited[name]
        return after if after != now else now

    def _end(self) -> None:
        """No more reads or writes."""
        self._states = self._present = self._pending = ENDED
