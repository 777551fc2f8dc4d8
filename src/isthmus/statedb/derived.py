"""What a derived table is: the tables it reads, the units that a change there affects, how a unit is computed.

A unit is a primary key, or a value of an index whose rows are computed together. Units are affected and computed by
batch, so that what is constant in a batch is looked up once. Where a unit has many members that are rows of a table, a
change of one of them is passed on to whoever computes it: what it costs need not grow with the unit.
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
Affected = Callable[[Reader, Any, Any], Iterable[Hashable]]
"""(reader, old row or None, new row or None) → the units that have to be recomputed; through indexes only."""
AffectedBatch = Callable[..., Iterable[Hashable]]
"""(reader, changed rows of a table) → the same for a batch, so that what is constant is looked up once. Of tables that
are read together it takes the changed rows of each."""
Dirty = dict[Any, list[tuple[Any, Any]] | None]
"""Units to be computed, in order. A list: only these rows of the table of members have changed, in this order. None:
anything may have."""
ByChanged = Mapping[AnyTable, Pairs]
"""The changed rows of each table that has some, of those that a derived table reads."""
Awaited = Callable[[Reader], Iterable[str]]
"""The sources that make a derived table incomplete."""

NOBODY: Final[frozenset[str]] = frozenset()
COMPARED = 8
"""Rows of a unit up to which all are compared: of more, those that are the same objects are set aside first."""


class Derivation(Protocol):
    """Derived tables that are computed together, unit by unit: what :class:`Derivations` runs."""

    @property
    def tables(self) -> Sequence[AnyTable]:
        """The tables that it writes, and nothing else does."""
        ...

    @property
    def reads(self) -> Collection[AnyTable]:
        """The tables that it reads."""
        ...

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        ...

    def arrived(self, reader: Reader, sources: frozenset[str]) -> Iterable[Hashable]:
        """The units whose rows list the sources they await, of which these have completed."""
        ...

    def renew(self, txn: WriteTxn, units: Dirty) -> None:
        """Make the rows of units what they are computed to be."""
        ...

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """The sources that make one of the tables incomplete."""
        ...


class Derived(Generic[R]):
    """The declaration of one derived table by a function of a unit.

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
        self.tables = (table,)
        self.compute = compute
        self.reads = dict(reads)
        self.unit = unit
        self.awaits = awaits
        self.arrived = arrived

    def __repr__(self) -> str:
        return f"<Derived {self.table.name} from {', '.join(table.name for table in self.reads)}>"

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        for table, pairs in changed.items():
            by = self.reads[table]
            dirty.update(dict.fromkeys([unit for old, new in pairs for unit in by(reader, old, new)]))

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        """The sources that any table it reads awaits, and it too."""
        return frozenset(filter(self.awaits, pending(reader, self.reads)))

    def renew(self, txn: WriteTxn, units: Dirty) -> None:  # hot:
        """Make the rows of units what they are computed to be."""
        table, compute, unit_index = self.table, self.compute, self.unit
        for unit in units:
            present: Sequence[R]
            if unit_index is not None:
                present = txn.by(table, unit_index, unit)
            else:
                row = txn.get(table, unit)
                present = () if row is None else (row,)
            wanted = compute(txn, unit)
            if not isinstance(wanted, Sequence):
                wanted = list(wanted)
            if present or wanted:
                rewrite(txn, table, present, wanted)


class DerivedTogether:
    """The declaration of several derived tables with one unit, recomputed and written by one function of a batch.

    ``renew(txn, units)`` writes every row of the units, through :func:`rewrite` or by what it knows has changed.
    ``reads`` has a function for each table, or one for several whose rows mostly change together: what is looked up
    for a row of one need not be looked up again for that of the other.
    ``members`` is the table whose rows are members of one unit each, and the function that gives a row's unit: a unit
    that only they affect is given to ``renew`` with those that changed.
    ``awaits`` has for a table the sources that make it incomplete; without it all do that any table it reads awaits.
    ``arrived`` gives the units whose rows list the sources they await, when some of these have completed.
    """

    def __init__(
        self,
        *tables: AnyTable,
        renew: Callable[[WriteTxn, Dirty], None],
        reads: Mapping[AnyTable | tuple[AnyTable, ...], AffectedBatch],
        awaits: Mapping[AnyTable, Awaited] | None = None,
        arrived: Callable[[Reader, frozenset[str]], Iterable[Hashable]] = lambda reader, sources: (),
        members: tuple[AnyTable, Callable[[Any], Hashable]] | None = None,
    ) -> None:
        self.tables = tables
        self.renew = renew
        self._members = members
        self._affected: dict[AnyTable, tuple[tuple[AnyTable, ...], AffectedBatch]] = {}
        for of, affected in reads.items():
            together = of if isinstance(of, tuple) else (of,)
            self._affected |= dict.fromkeys(together, (together, affected))
        self.reads: Collection[AnyTable] = (*self._affected, *(members[:1] if members is not None else ()))
        self.arrived = arrived
        self._awaits = awaits or {}

    def __repr__(self) -> str:
        tables, reads = (", ".join(table.name for table in of) for of in (self.tables, self.reads))
        return f"<Derived {tables} from {reads}>"

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        """Add the units that changed rows make dirty; one that is dirty already keeps its place."""
        members, known = self._members, self._affected
        for tables, affected in dict.fromkeys([known[table] for table in changed if table in known]):
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


def each(by: Affected) -> AffectedBatch:
    """A function of one changed row as a function of many."""
    return lambda reader, changed: (unit for old, new in changed for unit in by(reader, old, new))


def pending(reader: Reader, tables: Iterable[AnyTable]) -> frozenset[str]:
    """Names of the sources that any of these tables awaits."""
    found = [names for table in tables if (names := reader.pending(table))]
    return found[0].union(*found) if found else NOBODY


def rewrite(txn: WriteTxn, table: Table[Any, R], present: Sequence[R], wanted: Iterable[R]) -> None:  # hot:
    """Put and delete rows so that those that are present give way to those that are wanted."""
    writes = PendingWrites(txn, table)
    writes.exchange(present, wanted if isinstance(wanted, Sequence) else list(wanted))
    writes.flush()


class PendingWrites(Generic[R]):
    """Rows of one table that a batch of units deletes and puts: written together, deletions first."""

    def __init__(self, txn: WriteTxn, table: Table[Any, R]) -> None:
        self._txn = txn
        self._table = table
        self._key = table.key
        self._gone: list[Any] = []
        self._rows: list[R] = []

    def rewrite(self, present: Rows | None, wanted: Collection[R]) -> None:  # hot:
        """The rows of a unit that are present, as an index has them, give way to those that are wanted."""
        if present is None:  # most units that have rows at the end
            self._rows += wanted
        else:
            self.exchange(rows_of(present), wanted)

    def withdraw(self, present: Iterable[Rows | None]) -> None:  # hot:
        """Units have no rows any more: what is present of each, as an index has it, goes."""
        self._gone += map(self._key, rows_of_each(present))

    def exchange(self, present: Sequence[R], wanted: Collection[R]) -> None:  # hot:
        """Rows that are present give way to those that are wanted."""
        key = self._key
        if not wanted:
            self._gone += [key(row) for row in present]
            return
        if len(present) > COMPARED:
            present, wanted = _different(present, wanted)
        before = {key(row): row for row in present}
        self._rows += [row for row in wanted if before.pop(key(row), None) is not row]
        self._gone += before

    def flush(self) -> None:
        """Write them."""
        if self._gone:
            self._txn.delete_all(self._table, self._gone)
            self._gone = []
        if self._rows:
            self._txn.put_all(self._table, self._rows)
            self._rows = []


def _different(present: Iterable[R], wanted: Iterable[R]) -> tuple[list[R], list[R]]:
    """Both without the rows that are the same object in both: of a thousand nearly all are, and need no comparison."""
    there, here = {id(row): row for row in present}, {id(row): row for row in wanted}
    return (
        [row for known, row in there.items() if known not in here],
        [row for known, row in here.items() if known not in there],
    )
