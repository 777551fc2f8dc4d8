"""Writing: any tables, all or nothing."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, TypeVar, cast

from isthmus.statedb.reading import Reader
from isthmus.statedb.states import ENDED, Draft, States
from isthmus.statedb.table import AnyTable, Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class WriteTxn(Reader):
    """Writes to any tables, seen by its own reads at once and by everybody else at commit."""

    __slots__ = ("_drafts",)

    def __init__(self, root: States) -> None:
        super().__init__(States(root))
        self._drafts: dict[str, Draft] = {}

    def __repr__(self) -> str:
        written = ", ".join(f"{name}: {len(draft.touched)} rows" for name, draft in self._drafts.items())
        return f"<WriteTxn {written or 'so far empty'}>"

    def put(self, table: Table[Any, R], row: R) -> R | None:  # hot:
        """Insert or replace a row; give the one it replaced. A row equal to the present one changes nothing."""
        state = self._states[table.name]
        key = table.key(row)
        old = state.rows.get(key)
        if old is None or (old is not row and old != row):
            draft = state if isinstance(state, Draft) else self._draft(table)
            draft.put(key, old, row)
        return cast("R | None", old)

    def delete(self, table: Table[K, R], key: K) -> R | None:  # hot:
        """Remove a row; give it back, or None where there was none."""
        old = self._states[table.name].rows.get(key)
        if old is not None:
            self._draft(table).delete(key, old)
        return cast("R | None", old)

    def all(self, table: Table[Any, R]) -> Iterator[R]:
        """Every row as it is at this moment, in no order; writing while iterating is fine."""
        state = self._states[table.name]
        return iter((state.present() if isinstance(state, Draft) else state.rows).values())

    def changed(self, table: AnyTable) -> list[tuple[Any, Any]]:
        """What this transaction has written so far: rows as they were before and are now, None for none."""
        state = self._states[table.name]
        if not isinstance(state, Draft):
            return []
        get = state.rows.get
        pairs = [(old, get(key)) for key, old in state.touched.items()]
        return [pair for pair in pairs if pair != (None, None)]

    def await_exactly(self, table: AnyTable, names: frozenset[str]) -> None:
        """Say which sources the table waits for; for whoever computes it."""
        if self.pending(table) != names:
            self._draft(table).await_exactly(names)

    def _await_exactly(self, table: AnyTable, names: frozenset[str]) -> None:
        """These initializers of the table, and no others, have not completed."""
        self._draft(table).await_exactly(names)

    def _draft(self, table: AnyTable) -> Draft:
        state = self._states[table.name]
        if isinstance(state, Draft):
            return state
        draft = self._states[table.name] = self._drafts[table.name] = Draft(table, state)
        return draft

    def _end(self) -> dict[str, Draft]:
        """No more reads or writes; what there is to commit, by table."""
        self._states = ENDED
        return {name: draft for name, draft in self._drafts.items() if draft.changed}
