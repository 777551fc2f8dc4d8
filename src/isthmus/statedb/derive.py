"""Derived tables: rows that are a pure function of other rows, recomputed as those change.

A derived table declares how one *unit* of it is computed, and for each table it reads which units a change there
affects. A unit is a primary key, or a value of an index whose rows are computed together (all plans of a service). A
pass takes the changes, recomputes the dirty units in order of dependency and commits once, so a reader sees derived
rows of one state of the inputs. A pass is bounded; what is left is done in the next, and other tasks run in between.

A derived table awaits, by name, every source that one of its inputs awaits, until it has computed the rows written by
the source's completion. The initializer ``derive`` represents its own first pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any

from msgspec import Struct

from isthmus import logs
from isthmus.statedb.changes import Changes
from isthmus.statedb.containment import Contained
from isthmus.statedb.database import Database
from isthmus.statedb.derived import ByChanged, Cost, Derivation, Dirty, pending
from isthmus.statedb.errors import StateError
from isthmus.statedb.faults import FaultTable
from isthmus.statedb.reading import Pending
from isthmus.statedb.table import AnyTable
from isthmus.statedb.transaction import WriteTxn

UNITS_PER_PASS = 256
"""Cost of the units of each table that one transaction recomputes. Bounds the time for which other tasks wait, to some
ms; larger batches are not faster."""
FIRST_PASS = "derive"
SHOWN = 8
"""Units of a pass that a debug message names."""

log = logs.get("derivations")


class DerivationsStats(Struct, frozen=True, gc=False):
    """Passes and units computed so far, and the number of dirty units by derived table."""

    passes: int
    units: int
    dirty: dict[str, int]


class Derivations:
    """Recomputes a set of derived tables. :meth:`step` makes one pass; :meth:`run` makes passes as inputs change.

    With a table of ``faults``, a unit that raises affects no other unit (:mod:`.containment`). Without one, an
    exception rolls the pass back, and the next pass repeats it together with later changes.

    Invariant: a unit whose inputs have changed since it was last computed is in ``_dirty``, or the change that affects
    it is unread in ``_readers``.
    """

    def __init__(
        self,
        database: Database,
        *derivations: Derivation,
        faults: FaultTable | None = None,
        units_per_pass: int = UNITS_PER_PASS,
    ) -> None:
        self._database = database
        self._limit = units_per_pass
        self._contained = (
            [Contained(derivation, database, faults) for derivation in derivations] if faults is not None else []
        )
        derived: Sequence[Derivation] = self._contained or derivations
        self._derived = _in_order(derived)
        own = {table.name for derivation in derived for table in derivation.tables}
        self._inputs = list(
            {t.name: t for derivation in derived for t in derivation.reads if t.name not in own}.values()
        )
        self._readers: dict[AnyTable, Changes[Any]] = {table: database.changes(table) for table in self._inputs}
        self._of_inputs = {
            derivation: {t for t in derivation.reads if t.name not in own} for derivation in self._derived
        }
        """Inputs that each derivation reads; ``_of_derived`` has the derived tables it reads, computed before it."""
        self._of_derived = {derivation: [t for t in derivation.reads if t.name in own] for derivation in self._derived}
        self._dirty: dict[Derivation, Dirty] = {derivation: {} for derivation in self._derived}
        self._awaited: dict[Derivation, frozenset[str]] = {derivation: frozenset() for derivation in self._derived}
        for derivation in derived:
            for table in derivation.tables:
                database.initializer(table, FIRST_PASS)
        self._computed: list[tuple[Derivation, Dirty]] = []
        """Units of the current pass, until it is committed."""
        self._failed: dict[AnyTable, dict[Any, tuple[Any, Any]]] = {}
        """Changes by key that a pass had read when it raised."""
        self._settled: Pending | None = None
        """Pending sources of all tables after a pass that left no dirty unit; ``None`` if the last pass left some."""
        self.passes = 0
        self.units = 0

    def __repr__(self) -> str:
        dirty = ", ".join(f"{name} {units} dirty" if units else name for name, units in self.stats().dirty.items())
        return f"<Derivations of {dirty}; {self.passes} passes, {self.units} units>"

    def stats(self) -> DerivationsStats:
        """Passes and units so far, and the dirty units of each table."""
        dirty = {table.name: len(units) for each, units in self._dirty.items() for table in each.tables}
        return DerivationsStats(self.passes, self.units, dirty)

    @property
    def settled(self) -> bool:
        """True if every change of the inputs has been taken in."""
        return not any(self._dirty.values()) and not any(reader.ready for reader in self._readers.values())

    def step(self) -> bool:
        """Recompute at most ``units_per_pass`` dirty units of each table in one commit; True if dirty units remain."""
        changes: dict[AnyTable, Sequence[tuple[Any, Any]]] = {
            table: pairs for table, reader in self._readers.items() if reader.ready and (pairs := reader.pairs())
        }
        if self._failed:
            changes = {table: [*each.values()] for table, each in self._with_failed(changes).items()}
        try:
            self._pass(changes)
        except BaseException:
            self._take_back(changes)
            raise
        self.passes += 1
        if self._computed and log.is_enabled_for(logging.DEBUG):
            waiting = sum(map(len, self._dirty.values()))
            for derived, units in self._computed:
                table, some = derived.tables[0].name, [*map(str, islice(units, SHOWN))]
                log.debug("derived", table=table, count=len(units), units=some, waiting=waiting)
        unfinished = any(self._dirty.values())
        self._settled = None if unfinished else self._database.pending
        return unfinished

    def _pass(self, changes: ByChanged) -> None:
        self._computed.clear()
        # The pending sources are those of the last pass that left nothing dirty: nearly always, once all have started.
        settled = self._database.pending is self._settled
        with self._database.write() as txn:
            for derived in self._derived:
                self._mark(txn, derived, changes)
                if not settled:
                    self._mark_arrived(txn, derived)
                self._compute(txn, derived)
                if not settled or self._dirty[derived]:
                    self._await(txn, derived)
            for contained in self._contained:
                contained.write(txn)
        self._failed.clear()

    def _take_back(self, changes: ByChanged) -> None:
        """Keep the changes and units of a pass that raised: it committed nothing."""
        self._failed = self._with_failed(changes)
        for derived, units in self._computed:
            self._dirty[derived] = {**units, **self._dirty[derived]}
        for derived, dirty in self._dirty.items():  # the next pass marks members again: recompute whole units
            self._dirty[derived] = dict.fromkeys(dirty)
        self._settled = None

    def _with_failed(self, changes: ByChanged) -> dict[AnyTable, dict[Any, tuple[Any, Any]]]:
        """Changes by key, each from the row before the first pass that raised."""
        merged = {table: dict(pairs) for table, pairs in self._failed.items()}
        for table, pairs in changes.items():
            by_key = merged.setdefault(table, {})
            for old, new in pairs:
                key = table.key(new if new is not None else old)
                first = by_key.pop(key, (old, None))[0]
                if first is not None or new is not None:  # else inserted and deleted before it had any effect
                    by_key[key] = (first, new)
        return merged

    async def run(self) -> None:
        """Make passes as inputs change, for ever."""
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
        """Append the units whose rows list a source that has completed since the last pass."""
        before = self._awaited[derived]
        awaited = self._awaited[derived] = pending(txn, derived.reads)
        if before - awaited:
            self._dirty[derived].update(dict.fromkeys(derived.arrived(txn, before - awaited)))

    def _compute(self, txn: WriteTxn, derived: Derivation) -> None:
        dirty = self._dirty[derived]
        if not dirty:
            return
        count = self._limit if derived.cost is None else self._affordable(txn, derived.cost, dirty)
        if len(dirty) <= count:
            self._dirty[derived] = {}
            units = dirty
        else:
            units = dict(islice(dirty.items(), count))
            for unit in units:
                del dirty[unit]
        self._computed.append((derived, units))
        derived.renew(txn, units)
        self.units += len(units)

    def _affordable(self, txn: WriteTxn, cost: Cost, dirty: Dirty) -> int:
        """Number of dirty units whose costs fit into a pass; at least one."""
        budget = self._limit
        for count, unit in enumerate(dirty):
            budget -= cost(txn, unit)
            if budget < 0:
                return max(1, count)
        return len(dirty)

    def _await(self, txn: WriteTxn, derived: Derivation) -> None:
        """Await the pending sources of the inputs; a completed source stays awaited until no unit is dirty."""
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
        """Wait until an input's rows or pending sources change: a completed source must be propagated too."""
        readers = list(self._readers.values())
        before = [self._database.snapshot().pending(table) for table in self._inputs]
        await self._database.until(
            lambda snapshot: (
                any(r.ready for r in readers) or before != [snapshot.pending(table) for table in self._inputs]
            )
        )


def _in_order(derived: Iterable[Derivation]) -> list[Derivation]:
    by_name: dict[str, Derivation] = {}
    for derivation in derived:
        for table in derivation.tables:
            if table.name in by_name:
                raise StateError(f"derived table '{table.name}' is declared twice")
            by_name[table.name] = derivation
    graph = {
        derivation: {by_name[table.name] for table in derivation.reads if table.name in by_name}
        for derivation in by_name.values()
    }
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as cycle:
        circle = " → ".join(derivation.tables[0].name for derivation in cycle.args[1])
        raise StateError(f"derived tables depend on each other in a circle: {circle}") from None
