"""A derivation whose failures cost one unit each.

A batch that raises is rolled back and repeated unit by unit. A unit that raises keeps its rows and is a fault until it
is recomputed, which happens when its inputs change; it is then computed outside the batch, which it would spoil.

A unit that is a whole table is computed in parts (:func:`part`): a part that raises keeps its last value, as a fault.

If the units that a changed row affects cannot be determined, the row before the change is kept. Whenever any input
changes, the deletion of that row and the insertion of the current one are tried: not the change from one to the other,
which affects no unit if they are equal. Units computed in between may have read the row, and may have written rows that
were another unit's. So they are recomputed when it changes again: by then it may no longer affect them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from isthmus.statedb.database import Database
from isthmus.statedb.derived import ByChanged, Cost, Derivation, Dirty
from isthmus.statedb.faults import Faults, FaultTable, unit_text
from isthmus.statedb.reading import Reader
from isthmus.statedb.table import AnyTable
from isthmus.statedb.transaction import WriteTxn

T = TypeVar("T")

RETRIED_PER_PASS: Final = 64
"""Changed rows with unknown effects that one pass tries again: each costs an exception."""

Source = tuple[AnyTable, Any]
"""A table that the derivation reads, and the key of a changed row."""


Parts = dict[str, Exception]
"""Parts that raised, by name, of the units being computed."""
_parts: Parts | None = None
"""``None`` unless a contained derivation is being computed, which never awaits: a module variable suffices."""


def part(name: str, compute: Callable[[], T], *, last: Callable[[], T]) -> T:
    """Compute one part of a unit that is a whole table; ``last()`` if that raises: other parts are unaffected."""
    try:
        return compute()
    except MemoryError:
        raise
    except Exception as error:
        if _parts is None:
            raise
        _parts[name] = error
        return last()


class Contained:
    """Wraps a derivation to contain its failures; itself a :class:`.derived.Derivation`."""

    def __init__(self, derivation: Derivation, database: Database, table: FaultTable) -> None:
        tables = ", ".join(each.name for each in derivation.tables)
        self._derivation = derivation
        self._faults = Faults(database, table, tables)
        self._unmarked: dict[Source, Any] = {}
        """Sources whose change affects unknown units, with the row whose effects were last known, ``None`` for none."""
        self._meanwhile: Dirty = {}
        """Units computed since a row of ``_unmarked`` last changed: they may have read it."""
        self._faults_of_rows = Faults(database, table, tables, kind="changed rows")
        self._faults_of_parts = Faults(database, table, tables, kind="part")

    def __repr__(self) -> str:
        return repr(self._derivation)

    @property
    def tables(self) -> Sequence[AnyTable]:
        """The tables that it writes."""
        return self._derivation.tables

    @property
    def reads(self) -> Collection[AnyTable]:
        """The tables that it reads."""
        return self._derivation.reads

    @property
    def cost(self) -> Cost | None:
        """Cost of a unit in a pass; 1 if its computation raises."""
        cost = self._derivation.cost
        return partial(_cost, cost) if cost is not None else None

    def arrived(self, reader: Reader, sources: frozenset[str]) -> Iterable[Hashable]:
        """The units whose rows list sources that have completed."""
        return self._derivation.arrived(reader, sources)

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """The sources that make one of the tables incomplete."""
        return self._derivation.awaited(reader, table)

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; a row that raises adds none and is tried again later."""
        if self._unmarked:
            changed = self._mark_again(dirty, reader, changed)
        try:
            self._derivation.mark(dirty, reader, changed)
        except MemoryError:
            raise
        except Exception:
            for source, old, new in _sources(changed):
                self._mark_alone(dirty, reader, source, old, (old, new))
            _whole(dirty)

    def _mark_again(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> ByChanged:
        """Try rows that raised earlier, oldest first. Returns the changed rows without them."""
        rest: dict[AnyTable, list[tuple[Any, Any]]] = {}
        for source, old, new in _sources(changed):
            if source not in self._unmarked:
                rest.setdefault(source[0], []).append((old, new))
            elif self._meanwhile:
                dirty.update(self._meanwhile)
                self._meanwhile = {}
        for source in [*islice(self._unmarked, RETRIED_PER_PASS)]:
            old, new = self._unmarked.pop(source), reader.get(*source)
            self._mark_alone(dirty, reader, source, old, (old, None), (None, new))
        _whole(dirty)
        return rest

    def _mark_alone(self, dirty: Dirty, reader: Reader, source: Source, old: Any, *changes: tuple[Any, Any]) -> None:
        table, key = source
        try:
            for change in changes:
                if change != (None, None):
                    self._derivation.mark(dirty, reader, {table: [change]})
        except MemoryError:
            raise
        except Exception as error:
            self._unmarked[source] = old
            self._faults_of_rows.failed(source, error, kind=table.name, name=unit_text(key))
        else:
            self._faults_of_rows.succeeded(source)

    def renew(self, txn: WriteTxn, units: Dirty) -> None:
        """Recompute the rows of units; a unit that raises keeps its rows."""
        faults = self._faults
        if self._unmarked:
            self._meanwhile.update(units)
        apart = [unit for unit in units if unit in faults] if faults else []
        together = {unit: rows for unit, rows in units.items() if unit not in faults} if apart else units
        try:
            self._attempt(txn, together)
        except MemoryError:
            raise
        except Exception:
            apart = [*units]
        for unit in apart:
            self._renew_alone(txn, unit)

    def _renew_alone(self, txn: WriteTxn, unit: Hashable) -> None:
        """Compute a whole unit: an update from its changed members may have stopped half-way."""
        try:
            self._attempt(txn, {unit: None})
        except MemoryError:
            raise
        except Exception as error:
            self._faults.failed(unit, error)
        else:
            self._faults.succeeded(unit)

    def _attempt(self, txn: WriteTxn, units: Dirty) -> None:
        global _parts
        _parts = failed = Parts()
        try:
            with txn.savepoint(self.tables):
                self._derivation.renew(txn, units)
        finally:
            _parts = None
        if failed or self._faults_of_parts:  # of the one unit that has parts
            self._faults_of_parts.retain(failed)
            for name, error in failed.items():
                self._faults_of_parts.failed(name, error)

    def write(self, txn: WriteTxn) -> None:
        """Write the faults that have changed."""
        for faults in (self._faults, self._faults_of_rows, self._faults_of_parts):
            faults.write(txn)


def _cost(cost: Cost, reader: Reader, unit: Hashable) -> int:
    try:
        return cost(reader, unit)
    except MemoryError:
        raise
    except Exception:
        return 1


def _sources(changed: ByChanged) -> Iterator[tuple[Source, Any, Any]]:
    """Changed rows one by one: the source, the old row and the new row."""
    for table, pairs in changed.items():
        for old, new in pairs:
            yield (table, table.key(new if new is not None else old)), old, new


def _whole(dirty: Dirty) -> None:
    """Mark every unit for a full recomputation: its list no longer has each member's change once and in order."""
    for unit in dirty:
        dirty[unit] = None
