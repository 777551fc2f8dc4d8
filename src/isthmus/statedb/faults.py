"""Faults: a row for each unit or object that failed, so that a failure affects nothing else.

Code that computes units or converts objects catches the exception of a single one, keeps its last good rows and records
the fault here. Fault rows are written in the transaction of the units that succeeded.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from hashlib import blake2s
from pathlib import PurePath
from typing import Final, Literal

from msgspec import Struct

from isthmus.statedb.database import Database
from isthmus.statedb.table import Table
from isthmus.statedb.transaction import WriteTxn

MAX_ROWS: Final = 100
"""Failing units of one part with a row of their own; one more row counts the others. Groups of names (the part before
the slash, usually a namespace) share these rows evenly."""
MAX_NAME: Final = 120
"""Characters of a unit's name: a longer one ends in a hash."""
MAX_ERROR: Final = 300
FRAMES: Final = 3
"""Innermost frames of the traceback that a row shows."""
OTHERS: Final = "(others)"
"""The name in the row that counts the failing units without a row of their own."""

Cause = Literal["bug", "malformed", "unreadable"]
"""An unexpected exception; an object with invalid content; an object that cannot be decoded."""


class Fault(Struct, frozen=True, gc=False, kw_only=True):
    """A unit of a derived table, or an object, that failed. It keeps its last good rows, if it ever had any."""

    part: str
    """Tables of the unit's rows."""
    kind: str = ""
    """Meaning of the name: a kind of objects, or a table whose changed row affects unknown units. Empty for a unit of
    the part."""
    name: str
    cause: Cause
    error: str
    """Type and message of the exception."""
    where: str = ""
    """The innermost frames in which it was raised, innermost first."""
    since: float
    """Seconds since the epoch at which it first failed."""
    tries: int = 1
    """Number of failed attempts; it is tried again when its inputs change."""
    count: int = 1
    """Number of units that the row represents: more than 1 only in the row of the others."""
    uid: str = ""
    """UID of the object, if it is one of Kubernetes."""


FaultKey = tuple[str, str, str]
FaultTable = Table[FaultKey, Fault]


class Faults:
    """The failing units of one part and kind; the only writer of their rows.

    In a database without the table of faults, recording a bug raises it, and nothing is written.

    Invariant: a unit is in ``_rows`` or ``_rest`` if and only if its last attempt failed.
    """

    def __init__(
        self,
        database: Database,
        table: FaultTable,
        part: str,
        *,
        kind: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.part = part
        self._kind = kind
        self._database = database
        self._table = table
        self._has_table = table.name in database.tables
        self._clock = clock
        self._rows: dict[Hashable, Fault] = {}
        self._rest: dict[Hashable, Cause] = {}
        self._rest_causes: Counter[Cause] = Counter()
        self._rest_since = 0.0
        self._unwritten: dict[FaultKey, Fault | None] = {}

    def __repr__(self) -> str:
        return f"<Faults of {self.part}: {len(self)}>"

    def __len__(self) -> int:
        return len(self._rows) + len(self._rest)

    def __contains__(self, unit: object) -> bool:
        return unit in self._rows or unit in self._rest

    def failed(
        self,
        unit: Hashable,
        error: Exception,
        *,
        kind: str = "",
        name: str = "",
        cause: Cause = "bug",
        message: str = "",
        uid: str = "",
    ) -> bool:
        """Record a failure; True if it differs from the unit's last one.

        ``name`` replaces the unit's own text, ``message`` the exception's type and text.
        """
        if cause == "bug" and not self._has_table:
            raise error
        before, name = self._rows.get(unit), name or unit_text(unit)
        if before is None and len(self._rows) >= MAX_ROWS and not self._made_room(name):
            counted = unit in self._rest
            self._add_rest(unit, cause)
            return not counted
        self._discard_rest(unit)
        row = Fault(
            part=self.part,
            kind=kind or self._kind,
            name=name,
            cause=cause,
            error=_bounded(message or described(error), MAX_ERROR),
            where=raised_at(error) if cause == "bug" else "",
            since=before.since if before is not None else self._clock(),
            tries=before.tries + 1 if before is not None else 1,
            uid=uid,
        )
        self._rows[unit] = self._unwritten[self._table.key(row)] = row
        return before is None or before.error != row.error

    @contextmanager
    def attempt(self, unit: Hashable, *, name: str = "") -> Iterator[None]:
        """Run a block for one unit: an exception is recorded as the unit's failure and suppressed."""
        try:
            yield
        except MemoryError:
            raise
        except Exception as error:
            self.failed(unit, error, name=name)
        else:
            if self._rows or self._rest:
                self.succeeded(unit)

    def succeeded(self, unit: Hashable) -> None:
        """Forget a unit that succeeded or no longer exists."""
        row = self._rows.pop(unit, None)
        if row is not None:
            self._unwritten[self._table.key(row)] = None
        else:
            self._discard_rest(unit)

    def retain(self, units: Collection[Hashable]) -> None:
        """Forget all units but these."""
        for unit in [each for each in (*self._rows, *self._rest) if each not in units]:
            self.succeeded(unit)

    def write(self, txn: WriteTxn) -> None:
        """Write the rows that have changed since the last call."""
        for key, row in self._unwritten.items():
            if not self._has_table:
                break
            if row is None:
                txn.delete(self._table, key)
            else:
                txn.put(self._table, row)
        self._unwritten.clear()

    def publish(self) -> None:
        """Write changed rows, if any, in a transaction of their own."""
        if self._unwritten:
            with self._database.write() as txn:
                self.write(txn)

    def clear(self, txn: WriteTxn) -> None:
        """Delete all rows of this part and kind, including those that an earlier instance wrote."""
        for row in txn.all(self._table) if self._has_table else ():
            if (row.part, row.kind) == (self.part, self._kind):
                txn.delete(self._table, self._table.key(row))
        self._rows.clear()
        self._rest.clear()
        self._rest_causes.clear()
        self._unwritten.clear()

    def _made_room(self, name: str) -> bool:
        """Free a row for a name: move the newest row of the largest group to the rest. False if that group is hardly
        larger than the name's own."""
        counts = Counter(_group(row.name) for row in self._rows.values())
        largest, number = counts.most_common(1)[0]
        if number <= counts[_group(name)] + 1:
            return False
        unit, row = next(each for each in reversed(self._rows.items()) if _group(each[1].name) == largest)
        del self._rows[unit]
        self._unwritten[self._table.key(row)] = None
        self._add_rest(unit, row.cause)
        return True

    def _add_rest(self, unit: Hashable, cause: Cause) -> None:
        self._discard_rest(unit)
        self._rest[unit] = cause
        self._rest_causes[cause] += 1
        self._count_rest()

    def _discard_rest(self, unit: Hashable) -> None:
        if unit in self._rest:
            self._rest_causes[self._rest.pop(unit)] -= 1
            self._count_rest()

    def _count_rest(self) -> None:
        """Queue the row that counts the others; its cause is the gravest of theirs."""
        number = len(self._rest)
        if number <= 1:
            self._rest_since = self._clock()
        causes: tuple[Cause, ...] = ("bug", "unreadable", "malformed")
        row = Fault(
            part=self.part,
            kind=self._kind,
            name=OTHERS,
            cause=next((each for each in causes if self._rest_causes[each]), "malformed"),
            error=f"{number} more, of which only the number is kept",
            since=self._rest_since,
            count=number,
        )
        self._unwritten[self._table.key(row)] = row if number else None


def _group(name: str) -> str:
    return name.partition("/")[0]


def unit_text(unit: Hashable) -> str:
    """A unit as bounded, printable text: a string itself, a tuple by its parts, anything else by ``str``."""
    if isinstance(unit, str):
        text = unit
    elif isinstance(unit, tuple):
        text = " ".join(map(unit_text, unit))
    else:
        text = str(unit)
    return _bounded(text, MAX_NAME)


def _bounded(text: str, most: int) -> str:
    """Printable text of at most ``most`` characters. Cut text ends in a hash, so that distinct texts stay distinct."""
    plain = text if text.isprintable() else ascii(text)[1:-1]
    if len(plain) <= most:
        return plain
    return f"{plain[: most - 17]}~{blake2s(text.encode(errors='replace'), digest_size=8).hexdigest()}"


def describe_bug(error: Exception) -> str:
    """Describe an unexpected exception in one line."""
    return _bounded(f"{described(error)} (a bug, at {raised_at(error)})", MAX_ERROR)


def described(error: Exception) -> str:
    """Type and message of an exception."""
    try:
        text = str(error)
    except Exception:  # an exception whose message raises is a fault, too
        text = "(its message cannot be written)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raised_at(error: Exception) -> str:
    """The innermost frames as file:line, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return " < ".join(f"{'/'.join(PurePath(each.filename).parts[-2:])}:{each.lineno}" for each in reversed(frames))
