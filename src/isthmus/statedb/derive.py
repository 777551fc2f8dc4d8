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
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from msgspec import Struct

from isthmus.statedb.changes import Changes
from isthmus.statedb.database import Database
from isthmus.statedb.derived import ByChanged, Derivation, Dirty, pending
from isthmus.statedb.errors import StateError
from isthmus.statedb.reading import Pending
from isthmus.statedb.table import AnyTable
from isthmus.statedb.transaction import WriteTxn

UNITS_PER_PASS = 256
"""Units of each table recomputed in one transaction: how long other tasks wait for it, some ms. More at once are
not computed faster."""
FIRST_PASS = "derive"


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

    def __init__(self, database: Database, *derived: Derivation, units_per_pass: int = UNITS_PER_PASS) -> None:
        self._database = database
        self._limit = units_per_pass
        self._derived = _in_order(derived)
        own = {table.name for each in derived for table in each.tables}
        self._inputs = list({t.name: t for each in derived for t in each.reads if t.name not in own}.values())
        self._readers: dict[AnyTable, Changes[Any]] = {table: database.changes(table) for table in self._inputs}
        self._of_inputs = {each: {t for t in each.reads if t.name not in own} for each in self._derived}
        """The inputs that a derived table reads; and the derived ones, which are written before it."""
        self._of_derived = {each: [t for t in each.reads if t.name in own] for each in self._derived}
        self._dirty: dict[Derivation, Dirty] = {each: {} for each in self._derived}
        self._awaited: dict[Derivation, frozenset[str]] = {each: frozenset() for each in self._derived}
        for each in derived:
            for table in each.tables:
                database.initializer(table, FIRST_PASS)
        self._settled: Pending | None = None
        """What was awaited of all tables when a pass left nothing dirty; None where the last one did not."""
        self.passes = 0
        self.units = 0

    def __repr__(self) -> str:
        dirty = ", ".join(f"{name} {units} dirty" if units else name for name, units in self.stats().dirty.items())
        return f"<Derivations of {dirty}; {self.passes} passes, {self.units} units>"

    def stats(self) -> DerivationsStats:
        """What has been computed, and what waits."""
        dirty = {table.name: len(units) for each, units in self._dirty.items() for table in each.tables}
        return DerivationsStats(self.passes, self.units, dirty)

    def step(self) -> bool:
        """Recompute what changed, at most ``units_per_pass`` units a table, in one commit; whether some are left."""
        changes = {
            table: pairs for table, reader in self._readers.items() if reader.ready and (pairs := reader.pairs())
        }
        # Nothing is awaited otherwise than after a pass that left nothing dirty: nearly always, once all have started.
        settled = self._database.pending is self._settled
        with self._database.write() as txn:
            for derived in self._derived:
                self._mark(txn, derived, changes)
                if not settled:
                    self._mark_arrived(txn, derived)
                self._compute(txn, derived)
                if not settled or self._dirty[derived]:
                    self._await(txn, derived)
        self.passes += 1
        left = any(self._dirty.values())
        self._settled = None if left else self._database.pending
        return left

    async def run(self) -> None:
        """Pass after pass, for ever."""
        while True:
            if self.step():
                await asyncio.sleep(0)  # a pass has no other await: let other tasks run
            else:
                await self._changed()

    def _mark(self, txn: WriteTxn, derived: Derivation, changes: ByChanged) -> None:
        """Append the units that the changes affect; one that is dirty already keeps its place, so none starves."""
        inputs = self._of_inputs[derived]
        changed = {table: pairs for table, pairs in changes.items() if table in inputs}
        for table in self._of_derived[derived]:
            if pairs := txn.changed(table):
                changed[table] = pairs
        if changed:
            derived.mark(self._dirty[derived], txn, changed)

    def _mark_arrived(self, txn: WriteTxn, derived: Derivation) -> None:
        """Append the units that list a source which has completed since the last pass."""
        before = self._awaited[derived]
        now = self._awaited[derived] = pending(txn, derived.reads)
        if before - now:
            self._dirty[derived].update(dict.fromkeys(derived.arrived(txn, before - now)))

    def _compute(self, txn: WriteTxn, derived: Derivation) -> None:
        dirty = self._dirty[derived]
        if not dirty:
            return
        if len(dirty) <= self._limit:
            self._dirty[derived] = {}
            units = dirty
        else:
            units = dict(islice(dirty.items(), self._limit))
            for unit in units:
                del dirty[unit]
        derived.renew(txn, units)
        self.units += len(units)

    def _await(self, txn: WriteTxn, derived: Derivation) -> None:
        """Await what the inputs await; a source that has completed is awaited until no unit is dirty."""
        for table in derived.tables:
            awaited, before = derived.awaited(txn, table), txn.pending(table)
            if self._dirty[derived]:
                awaited |= before
            if awaited != before:
                txn._await_exactly(table, awaited)

    def await_anew(self) -> None:
        """Evaluate ``awaits`` of the derived tables again, which otherwise happens only when their inputs change."""
        with self._database.write() as txn:
            for derived in self._derived:
                if not any(FIRST_PASS in txn.pending(table) for table in derived.tables):  # that pass evaluates it
                    self._await(txn, derived)

    async def _changed(self) -> None:
        """Wait for a change of an input's rows or of its pending sources: completion has to be passed on too."""
        readers = list(self._readers.values())
        before = [self._database.snapshot().pending(table) for table in self._inputs]
        await self._database.until(
            lambda now: any(r.ready for r in readers) or before != [now.pending(table) for table in self._inputs]
        )


def _in_order(derived: Iterable[Derivation]) -> list[Derivation]:
    by_name: dict[str, Derivation] = {}
    for each in derived:
        for table in each.tables:
            if table.name in by_name:
                raise StateError(f"derived table '{table.name}' is declared twice")
            by_name[table.name] = each
    graph = {each: {by_name[table.name] for table in each.reads if table.name in by_name} for each in by_name.values()}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as cycle:
        circle = " → ".join(each.tables[0].name for each in cycle.args[1])
        raise StateError(f"derived tables depend on each other in a circle: {circle}") from None
