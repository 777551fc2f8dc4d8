"""Derived tables: rows that are a pure function of other rows, kept true as those change.

A derived table says how one *unit* of it is computed, and for each table it reads which units a change there affects.
A pass takes what changed, recomputes the dirty units in order of dependency and commits once: what depends on what is
seen whole or not at all. A pass is bounded; what is left is done in the next, and the loop breathes between them.
A unit is a primary key, or a value of an index whose rows are computed together (all plans of a service).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, Generic, TypeVar

from isthmus.statedb.changes import Changes
from isthmus.statedb.database import Database
from isthmus.statedb.errors import StateError
from isthmus.statedb.reading import Reader
from isthmus.statedb.table import AnyTable, Table
from isthmus.statedb.transaction import WriteTxn

R = TypeVar("R")

Affected = Callable[[Reader, Any, Any], Iterable[Hashable]]
"""(snapshot, old row or None, new row or None) → the units that have to be recomputed; through indexes only."""

UNITS_PER_PASS = 2_000


class Derived(Generic[R]):
    """The declaration of a derived table.

    ``compute(snapshot, unit)`` gives every row of the unit. ``reads`` has one ``affected`` function per table that
    ``compute`` looks at. ``unit`` names the index whose values are the units; without it the primary key is.
    The table waits for the sources its inputs wait for, under the same names; ``awaits`` says which of them count.
    """

    def __init__(
        self,
        table: Table[Any, R],
        *,
        compute: Callable[[Reader, Any], Iterable[R]],
        reads: Mapping[AnyTable, Affected],
        unit: str | None = None,
        awaits: Callable[[str], bool] = lambda source: True,
    ) -> None:
        if unit is not None and unit not in table.indexes:
            raise StateError(f"derived table '{table.name}': its unit '{unit}' is not an index of it")
        self.table = table
        self.compute = compute
        self.reads = dict(reads)
        self.unit = unit
        self.awaits = awaits

    def __repr__(self) -> str:
        return f"<Derived {self.table.name} from {', '.join(table.name for table in self.reads)}>"

    def present(self, txn: WriteTxn, unit: Any) -> list[R]:
        """The rows the unit has now."""
        if self.unit is not None:
            return txn.by(self.table, self.unit, unit)
        row = txn.get(self.table, unit)
        return [] if row is None else [row]


class Derivations:
    """Keeps a set of derived tables true. :meth:`step` is one pass; :meth:`run` does passes as changes come."""

    def __init__(self, database: Database, *derived: Derived[Any], units_per_pass: int = UNITS_PER_PASS) -> None:
        self._database = database
        self._limit = units_per_pass
        self._derived = _in_order(derived)
        own = {each.table.name for each in derived}
        inputs = {table.name: table for each in derived for table in each.reads if table.name not in own}
        self._readers: dict[str, Changes[Any]] = {name: database.changes(table) for name, table in inputs.items()}
        self._dirty: dict[str, dict[Hashable, None]] = {each.table.name: {} for each in derived}
        for each in derived:
            database.initializer(each.table, "derive")  # until the first pass has computed it
        self.passes = 0
        self.units = 0

    def __repr__(self) -> str:
        waiting = sum(map(len, self._dirty.values()))
        return f"<Derivations {', '.join(self._dirty)}; {self.passes} passes, {self.units} units, {waiting} dirty>"

    def step(self) -> bool:
        """Recompute what changed, at most ``units_per_pass`` units a table, in one commit; whether some are left."""
        changes = {name: reader.next()[1] for name, reader in self._readers.items()}
        with self._database.write() as txn:
            for derived in self._derived:
                self._mark(txn, derived, changes)
                self._compute(txn, derived)
            left = any(self._dirty.values())
            if not left:
                self._complete(txn)
        self.passes += 1
        return left

    async def run(self) -> None:
        """Pass after pass, for ever."""
        while True:
            while self.step():
                await asyncio.sleep(0)
            await self._changed()

    def _mark(self, txn: WriteTxn, derived: Derived[Any], changes: dict[str, list[Any]]) -> None:
        dirty = self._dirty[derived.table.name]
        for table, affected in derived.reads.items():
            if table.name in changes:
                pairs = ((change.old, change.new) for change in changes[table.name])
            else:
                pairs = ((old, txn.get(table, key)) for key, old in list(txn.touched(table).items()))
            for old, new in pairs:
                dirty.update(dict.fromkeys(affected(txn, old, new)))

    def _compute(self, txn: WriteTxn, derived: Derived[Any]) -> None:
        dirty = self._dirty[derived.table.name]
        table = derived.table
        for unit in list(islice(dirty, self._limit)):
            del dirty[unit]
            wanted = {table.key(row): row for row in derived.compute(txn, unit)}
            for row in derived.present(txn, unit):
                if (key := table.key(row)) not in wanted:
                    txn.delete(table, key)
            for row in wanted.values():
                txn.put(table, row)
            self.units += 1

    def _complete(self, txn: WriteTxn) -> None:
        """Pass on whom the inputs wait for: a derived table is as complete as what it is made of."""
        for derived in self._derived:
            awaited = (name for table in derived.reads for name in txn.pending(table) if derived.awaits(name))
            txn.await_exactly(derived.table, frozenset(awaited))

    async def _changed(self) -> None:
        """Wait for a change of any input, or of what is pending: completion of a source must be passed on too."""
        inputs = [reader._table for reader in self._readers.values()]
        readers = self._readers.values()
        before = [self._database.snapshot().pending(table) for table in inputs]
        await self._database.until(
            lambda now: any(r.unread for r in readers) or before != [now.pending(table) for table in inputs]
        )


def _in_order(derived: Iterable[Derived[Any]]) -> list[Derived[Any]]:
    by_name = {each.table.name: each for each in derived}
    graph = {name: {table.name for table in each.reads} & by_name.keys() for name, each in by_name.items()}
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as cycle:
        raise StateError(f"derived tables depend on each other in a circle: {' → '.join(cycle.args[1])}") from None
