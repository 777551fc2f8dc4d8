"""Derived tables: rows that are a pure function of other rows, recomputed as those change.

A derived table declares how one *unit* of it is computed, and for each table it reads which units a change there
affects. A unit is a primary key, or a value of an index whose rows are computed together (all plans of a service). A
pass takes the changes, recomputes the dirty units in order of dependency and commits once, so a reader sees derived
rows of one state of the inputs. A pass is bounded; what is left is done in the next, and other tasks run in between.

A derived table awaits every source that a table it reads awaits, by name, until it has computed the rows that came
with the source's completion; the initializer ``derive`` stands for its own first pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, Generic, TypeVar

from msgspec import Struct

from isthmus.statedb.changes import Changes
from isthmus.statedb.database import Database
from isthmus.statedb.errors import StateError
from isthmus.statedb.reading import Reader
from isthmus.statedb.table import AnyTable, Table
from isthmus.statedb.transaction import WriteTxn

R = TypeVar("R")

Affected = Callable[[Reader, Any, Any], Iterable[Hashable]]
"""(reader, old row or None, new row or None) → the units that have to be recomputed; through indexes only."""

UNITS_PER_PASS = 2_000
"""Units of each table recomputed in one transaction: how long other tasks wait for it."""
FIRST_PASS = "derive"
COMPARED = 8
"""Rows of a unit up to which all are compared: of more, those that are the same objects are set aside first."""


class Derived(Generic[R]):
    """The declaration of a derived table.

    ``compute(reader, unit)`` gives every row of the unit. ``reads`` has one ``affected`` function per table that
    ``compute`` reads. ``unit`` names the index whose values are the units; without it the primary key is.
    ``awaits`` selects the awaited sources that make this table incomplete; without it all do.
    ``arrived`` gives the units whose rows list the sources they await, when some of these have completed.
    """

    def __init__(
        self,
        table: Table[Any, R],
        *,
        compute: Callable[[Reader, Any], Iterable[R]],
        reads: Mapping[AnyTable, Affected],
        unit: str | None = None,
        awaits: Callable[[str], bool] = lambda source: True,
        arrived: Callable[[Reader, frozenset[str]], Iterable[Hashable]] = lambda reader, sources: (),
    ) -> None:
        if unit is not None and unit not in table.indexes:
            raise StateError(f"derived table '{table.name}': its unit '{unit}' is not an index of it")
        self.table = table
        self.compute = compute
        self.reads = dict(reads)
        self.unit = unit
        self.awaits = awaits
        self.arrived = arrived

    def __repr__(self) -> str:
        return f"<Derived {self.table.name} from {', '.join(table.name for table in self.reads)}>"

    def pending(self, reader: Reader) -> frozenset[str]:
        """Names of the sources that any table it reads awaits."""
        return frozenset(name for table in self.reads for name in reader.pending(table))

    def renew(self, txn: WriteTxn, units: Iterable[Hashable]) -> None:  # hot:
        """Make the rows of units what they are computed to be."""
        table, key, compute, unit_index = self.table, self.table.key, self.compute, self.unit
        state = txn._present[table.name]
        for unit in units:
            present: list[R]
            if unit_index is not None:
                present = txn.by(table, unit_index, unit)
            else:
                row = state.get(unit)
                present = [] if row is None else [row]
            wanted = compute(txn, unit)
            if not present:  # most units of a large change
                for row in wanted:
                    txn.put(table, row)
                continue
            if len(present) > COMPARED:
                present, wanted = _different(present, wanted)
            before = {key(row): row for row in present}
            for row in wanted:
                row_key = key(row)
                old = before.pop(row_key, None)
                if old is None:
                    txn.put(table, row)
                elif old is not row and old != row:
                    txn._set(state, row_key, old, row)
            for stale in before:
                txn.delete(table, stale)


def _different(present: Iterable[R], wanted: Iterable[R]) -> tuple[list[R], list[R]]:
    """Both without the rows that are the same object in both: of a thousand nearly all are, and need no comparison."""
    there, here = {id(row): row for row in present}, {id(row): row for row in wanted}
    return (
        [row for known, row in there.items() if known not in here],
        [row for known, row in here.items() if known not in there],
    )


class DerivationsStats(Struct, frozen=True, gc=False):
    """Passes and units computed so far; per derived table, the units that wait to be computed."""

    passes: int
    units: int
    dirty: dict[str, int]


class Derivations:
    """Recomputes a set of derived tables. :meth:`step` is one pass; :meth:`run` does passes as changes come.

    Invariant: a unit whose inputs differ from those it was last computed of is in ``_dirty``, or the change that
    makes it so is still unread in ``_readers``.
    """

    def __init__(self, database: Database, *derived: Derived[Any], units_per_pass: int = UNITS_PER_PASS) -> None:
        self._database = database
        self._limit = units_per_pass
        self._derived = _in_order(derived)
        own = {each.table.name for each in derived}
        self._inputs = list({t.name: t for each in derived for t in each.reads if t.name not in own}.values())
        self._readers: dict[str, Changes[Any]] = {table.name: database.changes(table) for table in self._inputs}
        self._dirty: dict[str, dict[Hashable, None]] = {each.table.name: {} for each in self._derived}
        self._awaited: dict[str, frozenset[str]] = {each.table.name: frozenset() for each in self._derived}
        for each in derived:
            database.initializer(each.table, FIRST_PASS)
        self.passes = 0
        self.units = 0

    def __repr__(self) -> str:
        dirty = ", ".join(f"{name} {len(units)} dirty" if units else name for name, units in self._dirty.items())
        return f"<Derivations of {dirty}; {self.passes} passes, {self.units} units>"

    def stats(self) -> DerivationsStats:
        """What has been computed, and what waits."""
        return DerivationsStats(self.passes, self.units, {name: len(units) for name, units in self._dirty.items()})

    def step(self) -> bool:
        """Recompute what changed, at most ``units_per_pass`` units a table, in one commit; whether some are left."""
        changes = {name: reader.next()[1] for name, reader in self._readers.items()}
        with self._database.write() as txn:
            for derived in self._derived:
                self._mark(txn, derived, changes)
                self._compute(txn, derived)
                self._await(txn, derived)
        self.passes += 1
        return any(self._dirty.values())

    async def run(self) -> None:
        """Pass after pass, for ever."""
        while True:
            if self.step():
                await asyncio.sleep(0)  # a pass has no other await: let other tasks run
            else:
                await self._changed()

    def _mark(self, txn: WriteTxn, derived: Derived[Any], changes: Mapping[str, list[Any]]) -> None:
        """Append the units that the changes affect; one that is dirty already keeps its place, so none starves."""
        dirty = self._dirty[derived.table.name]
        for table, affected in derived.reads.items():
            # Two cases: an input changed since the last pass; a derived table was written earlier in this one.
            if table.name in changes:
                pairs: Iterable[tuple[Any, Any]] = [(old, new) for _, old, new in changes[table.name]]
            else:
                pairs = txn.changed(table)
            for old, new in pairs:  # hot:
                for unit in affected(txn, old, new):
                    dirty[unit] = None
        dirty.update(dict.fromkeys(self._arrived(txn, derived)))

    def _arrived(self, txn: WriteTxn, derived: Derived[Any]) -> Iterable[Hashable]:
        """The units that list a source which has completed since the last pass."""
        before = self._awaited[derived.table.name]
        now = self._awaited[derived.table.name] = derived.pending(txn)
        return derived.arrived(txn, before - now) if before - now else ()

    def _compute(self, txn: WriteTxn, derived: Derived[Any]) -> None:
        dirty = self._dirty[derived.table.name]
        if len(dirty) <= self._limit:
            self._dirty[derived.table.name] = {}
            units = list(dirty)
        else:
            units = list(islice(dirty, self._limit))
            for unit in units:
                del dirty[unit]
        derived.renew(txn, units)
        self.units += len(units)

    def _await(self, txn: WriteTxn, derived: Derived[Any]) -> None:
        """Await what the inputs await; a source that has completed is awaited until no unit is dirty."""
        awaited = frozenset(filter(derived.awaits, derived.pending(txn)))
        before = txn.pending(derived.table)
        if self._dirty[derived.table.name]:
            awaited |= before
        if awaited != before:
            txn._await_exactly(derived.table, awaited)

    def await_anew(self) -> None:
        """Apply what ``awaits`` of the derived tables says by now; without a change of their inputs nothing asks it."""
        with self._database.write() as txn:
            for derived in self._derived:
                if FIRST_PASS not in txn.pending(derived.table):  # that pass asks it
                    self._await(txn, derived)

    async def _changed(self) -> None:
        """Wait for a change of an input's rows or of its pending sources: completion has to be passed on too."""
        readers = list(self._readers.values())
        before = [self._database.snapshot().pending(table) for table in self._inputs]
        await self._database.until(
            lambda now: any(r.ready for r in readers) or before != [now.pending(table) for table in self._inputs]
        )


def _in_order(derived: Iterable[Derived[Any]]) -> list[Derived[Any]]:
    by_name: dict[str, Derived[Any]] = {}
    for each in derived:
        if each.table.name in by_name:
            raise StateError(f"derived table '{each.table.name}' is declared twice")
        by_name[each.table.name] = each
    graph = {name: {table.name for table in each.reads} & by_name.keys() for name, each in by_name.items()}
    try:
        return [by_name[name] for name in TopologicalSorter(graph).static_order()]
    except CycleError as cycle:
        raise StateError(f"derived tables depend on each other in a circle: {' → '.join(cycle.args[1])}") from None
