"""Declaration of a derived table: the tables it reads, the units that a change there affects, how a unit is computed.

A unit is a primary key, or a value of an index whose rows are computed together. Units are marked and computed in
batches, so that whatever a batch shares is looked up once. A large unit may have the rows of a table as its members:
changed members are handed to its computation, so that their cost need not grow with the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from isthmus.statedb.errors import StateError
from isthmus.statedb.index import Rows, rows_of, rows_of_each
from isthmus.statedb.reading import Reader
from isthmus.statedb.table import AnyTable, Table
from isthmus.statedb.transaction import WriteTxn

R = TypeVar("R")

Pairs = Sequence[tuple[Any, Any]]
"""Changed rows of a table: (old row or None, new row or None)."""
Affected = Callable[[Reader, Any, Any], Iterable[Any]]
"""(reader, old row or None, new row or None) → the units to recompute, found through indexes only."""
AffectedBatch = Callable[..., Iterable[Hashable]]
"""(reader, changed rows of a table, …) → the units to recompute for a whole batch; one argument for each of the tables
that are declared together."""
Dirty = dict[Any, list[tuple[Any, Any]] | None]
"""Units to recompute, in order, each with the changed rows of the members' table if nothing else changed, in order;
``None`` if anything may have changed."""
ByChanged = Mapping[AnyTable, Pairs]
"""Changed rows by table, of the tables that a derived table reads."""
Awaited = Callable[[Reader], Iterable[str]]
"""The sources that make a derived table incomplete."""

Cost = Callable[[Reader, Any], int]
"""(reader, unit) → computation time in ordinary units of some 30 µs, at least 1."""

NOBODY: Final[frozenset[str]] = frozenset()
COMPARED = 8
"""Size of a unit above which identical objects are dropped before its rows are compared."""


class Derivation(Protocol):
    """Derived tables that :class:`Derivations` computes together, unit by unit."""

    @property
    def tables(self) -> Sequence[AnyTable]:
        """The tables that it writes; it is their only writer."""
        ...

    @property
    def reads(self) -> Collection[AnyTable]:
        """The tables that it reads."""
        ...

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        ...

    def arrived(self, reader: Reader, sources: frozenset[str]) -> Iterable[Hashable]:
        """The units whose rows list one of these sources, which have completed, as awaited."""
        ...

    def renew(self, txn: WriteTxn, units: Dirty) -> None:
        """Recompute the rows of units."""
        ...

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """The sources that make one of the tables incomplete."""
        ...

    @property
    def cost(self) -> Cost | None:
        """Cost of a unit in a pass; ``None`` if each costs 1."""
        ...


class Derived(Generic[R]):
    """The declaration of one derived table by a function of a unit.

    ``compute(reader, unit)`` returns every row of the unit. ``reads`` maps each table that ``compute`` reads to its
    ``affected`` function. ``unit`` names the index whose values are the units; by default primary keys are.
    ``awaits`` selects the pending sources of the inputs that make this table incomplete; by default all do.
    ``arrived`` returns the units whose rows list completed sources as awaited.
    ``cost`` returns the cost of a unit, if some take much longer than others.
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
        cost: Cost | None = None,
    ) -> None:
        if unit is not None and unit not in table.indexes:
            raise StateError(f"derived table '{table.name}': its unit '{unit}' is not an index of it")
        self.table = table
        self.tables = (table,)
        self.compute = compute
        self.reads = dict(reads)
        self.unit = unit
        self.awaits = awaits
        self.arrived = arrived
        self.cost = cost

    def __repr__(self) -> str:
        return f"<Derived {self.table.name} from {', '.join(table.name for table in self.reads)}>"

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        for table, pairs in changed.items():
            affected = self.reads[table]
            dirty.update(dict.fromkeys([unit for old, new in pairs for unit in affected(reader, old, new)]))

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """Pending sources of its inputs, as selected by ``awaits``."""
        return frozenset(filter(self.awaits, pending(reader, self.reads)))

    def renew(self, txn: WriteTxn, units: Dirty) -> None:  # hot:
        """Recompute the rows of units."""
        table, compute, unit_index = self.table, self.compute, self.unit
        for unit in units:
            current: Sequence[R]
            if unit_index is not None:
                current = txn.by(table, unit_index, unit)
            else:
                row = txn.get(table, unit)
                current = () if row is None else (row,)
            desired = compute(txn, unit)
            if not isinstance(desired, Sequence):
                desired = list(desired)
            if current or desired:
                rewrite(txn, table, current, desired)


class DerivedTogether:
    """The declaration of several derived tables with a common unit, computed and written by one function of a batch.

    ``renew(txn, units)`` writes every row of the units, through :func:`rewrite` or by applying the changed members.
    ``reads`` has a function for each table, or one for several whose rows mostly change together, to share look-ups.
    ``members`` is the table whose rows are members of one unit each, and the function from a row to its unit: if only
    members of a unit changed, ``renew`` receives them with the unit.
    ``awaits`` maps a table to the sources that make it incomplete; by default all pending sources of the inputs.
    ``arrived`` returns the units whose rows list completed sources as awaited.
    ``cost`` returns the cost of a unit, if some take much longer than others.
    """

    def __init__(
        self,
        *tables: AnyTable,
        renew: Callable[[WriteTxn, Dirty], None],
        reads: Mapping[AnyTable | tuple[AnyTable, ...], AffectedBatch],
        awaits: Mapping[AnyTable, Awaited] | None = None,
        arrived: Callable[[Reader, frozenset[str]], Iterable[Hashable]] = lambda reader, sources: (),
        members: tuple[AnyTable, Callable[[Any], Hashable]] | None = None,
        cost: Cost | None = None,
    ) -> None:
        self.tables = tables
        self.cost = cost
        self.renew = renew
        self._members = members
        self._affected: dict[AnyTable, tuple[tuple[AnyTable, ...], AffectedBatch]] = {}
        for source, affected in reads.items():
            together = source if isinstance(source, tuple) else (source,)
            self._affected |= dict.fromkeys(together, (together, affected))
        self.reads: Collection[AnyTable] = (*self._affected, *(members[:1] if members is not None else ()))
        self.arrived = arrived
        self._awaits = awaits or {}

    def __repr__(self) -> str:
        tables, reads = (", ".join(table.name for table in group) for group in (self.tables, self.reads))
        return f"<Derived {tables} from {reads}>"

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        members, by_table = self._members, self._affected
        for tables, affected in dict.fromkeys([by_table[table] for table in changed if table in by_table]):
            dirty.update(dict.fromkeys(affected(reader, *[changed.get(table, ()) for table in tables])))
        if members is not None and (pairs := changed.get(members[0])):
            self._mark_members(dirty, pairs, members[1])

    def _mark_members(self, dirty: Dirty, changed: Pairs, unit_of: Callable[[Any], Hashable]) -> None:  # hot:
        for pair in changed:
            unit = unit_of(pair[1] or pair[0])
            if unit not in dirty:
                dirty[unit] = [pair]
            elif (rows := dirty[unit]) is not None:
                rows.append(pair)

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """The sources that make one of the tables incomplete."""
        return frozenset(self._awaits[table](reader)) if table in self._awaits else pending(reader, self.reads)


def per_row(affected: Affected) -> AffectedBatch:
    """Lift a function of one changed row to a function of a batch."""
    return lambda reader, changed: (unit for old, new in changed for unit in affected(reader, old, new))


def pending(reader: Reader, tables: Iterable[AnyTable]) -> frozenset[str]:
    """Names of the sources that any of these tables still awaits."""
    awaited = [names for table in tables if (names := reader.pending(table))]
    return awaited[0].union(*awaited) if awaited else NOBODY


def rewrite(txn: WriteTxn, table: Table[Any, R], current: Sequence[R], desired: Iterable[R]) -> None:  # hot:
    """Replace current rows by desired ones; rows that are the same object in both are not written."""
    writes = PendingWrites(txn, table)
    writes.exchange(current, desired if isinstance(desired, Sequence) else list(desired))
    writes.flush()


class PendingWrites(Generic[R]):
    """Collects the rows of one table that a batch of units deletes and puts; :meth:`flush` writes deletions first."""

    def __init__(self, txn: WriteTxn, table: Table[Any, R]) -> None:
        self._txn = txn
        self._table = table
        self._key = table.key
        self._gone: list[Any] = []
        self._rows: list[R] = []

    def rewrite(self, current: Rows | None, desired: Collection[R]) -> None:  # hot:
        """Replace the current rows of a unit, in an index's own form, by the desired ones."""
        if current is None:  # most units with desired rows are new
            self._rows += desired
        else:
            self.exchange(rows_of(current), desired)

    def withdraw(self, current: Iterable[Rows | None]) -> None:  # hot:
        """Delete the current rows of several units, each in an index's own form."""
        self._gone += map(self._key, rows_of_each(current))

    def exchange(self, current: Sequence[R], desired: Collection[R]) -> None:  # hot:
        """Replace current rows by desired ones."""
        key = self._key
        if not desired:
            self._gone += [key(row) for row in current]
            return
        if len(current) > COMPARED:
            current, desired = _different(current, desired)
        before = {key(row): row for row in current}
        self._rows += [row for row in desired if before.pop(key(row), None) is not row]
        self._gone += before

    def flush(self) -> None:
        """Write the collected rows."""
        if self._gone:
            self._txn.delete_all(self._table, self._gone)
            self._gone = []
        if self._rows:
            self._txn.put_all(self._table, self._rows)
            self._rows = []


def _different(current: Iterable[R], desired: Iterable[R]) -> tuple[list[R], list[R]]:
    """Drop the rows that are the same object in both: nearly all rows of a large unit, which need no comparison."""
    old, new = {id(row): row for row in current}, {id(row): row for row in desired}
    return (
        [row for identity, row in old.items() if identity not in new],
        [row for identity, row in new.items() if identity not in old],
    )
