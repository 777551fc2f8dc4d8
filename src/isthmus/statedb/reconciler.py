"""The reconciler: desired rows in, idempotent operations out.

Level-triggered. What changed since the last round is handed to the target in one batch, deletions first, to make
room; what fails is retried whole with a capped back-off while the rest goes on. Once the table is complete the target
is pruned: what it really holds and no row wants goes. Desired rows are never rewritten to carry a status: failures
are rows of a table of their own, and a key without one is done or about to be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from isthmus.statedb.changes import Change
from isthmus.statedb.database import Database
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.table import Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

BATCH = 1_000
EARLY = 1e-6
"""Seconds by which a timer may fire early (an event loop's clock has a resolution): what is due then is due now."""


class Target(Protocol[R_contra]):
    """Where rows take effect. Every operation is idempotent; each gives the failures by key, empty when all held."""

    async def update(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold these rows as they are."""
        ...

    async def delete(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold none of these rows, given as they were last known; one it has not got is no failure."""
        ...

    async def prune(self, rows: Iterable[R_contra]) -> str:
        """Remove what the target holds and none of these, all desired rows, wants; give a sentence on what went.

        NotPruned says why not all of it went, and is tried again after the back-off.
        """
        ...


class NotPruned(Exception):  # noqa: N818
    """A target may still hold what no row wants; the message is for people."""


class Status(Struct, frozen=True, gc=False):
    """A key that could not be reconciled: what for, how often it was tried, when it is tried again (seconds)."""

    key: Any
    error: str
    attempts: int
    next_try: float


class Backoff(Struct, frozen=True, gc=False):
    """Seconds before the n-th retry: doubling from ``first``, never over ``most``."""

    first: float = 0.1
    most: float = 60.0

    def delay(self, attempts: int) -> float:
        """Seconds to wait after this many failed attempts, 1 or more."""
        return float(min(self.most, self.first * 2.0 ** min(attempts - 1, 30)))


class Reconciler(Generic[K, R]):
    """Drives one target from one table; its failures are rows of ``status``, a table keyed as the desired one.

    What changes while a round awaits its target is the next round's. A target gives failures and raises none: an
    exception is a bug and ends the reconciler.
    """

    def __init__(
        self,
        database: Database,
        table: Table[K, R],
        target: Target[R],
        *,
        status: Table[K, Status] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 a frozen value
        prune_every: float = 1800.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._table = table
        self._target = target
        self._status = status
        self._backoff = backoff
        self._prune_every = prune_every
        self._clock = clock
        self._changes = database.changes(table)
        self._held: dict[Any, R] = {}
        self._failed: dict[Any, Status] = {}
        self._pruned = False
        self._prune_failures = 0
        self._prune_at = 0.0
        """When the next pruning is due, once the table is complete."""
        self._seen = -1
        self._round = asyncio.Event()
        self.rounds = 0
        self.outcome = "has not run"

    def __repr__(self) -> str:
        pruned = "" if self._pruned else "; not pruned yet"
        return f"<Reconciler of {self._table.name}: {self.outcome}; {len(self._failed)} failing{pruned}>"

    @property
    def failing(self) -> Mapping[Any, Status]:
        """What could not be reconciled, by key."""
        return self._failed

    async def step(self) -> str:
        """One round: what changed, what is due again, and pruning when its time has come. Gives a sentence."""
        snapshot, changes = self._changes.next()
        wanted, gone = self._work(snapshot, changes)
        failures = dict(await self._target.delete(list(gone.values()))) if gone else {}
        rows = list(wanted.values())
        for start in range(0, len(rows), BATCH):
            failures.update(await self._target.update(rows[start : start + BATCH]))
        self._record(wanted, gone, failures)
        updated, deleted = (len(work) - sum(key in work for key in failures) for work in (wanted, gone))
        said = f"{updated} updated, {deleted} deleted, {len(failures)} failed"
        if self._prune_is_due(snapshot):
            said += f"; {await self._prune(snapshot)}"
        self._end(snapshot, said)
        return said

    async def run(self) -> None:
        """Round after round, for ever."""
        while True:
            await self.step()
            await self._next_round()

    async def wait_until_reconciled(self, revision: int) -> None:
        """Return when everything up to this revision of the table has been tried and nothing is failing."""
        while self._seen < revision or self._failed:
            await self._round.wait()

    def _work(self, snapshot: Snapshot, changes: Sequence[Change[R]]) -> tuple[dict[Any, R], dict[Any, R]]:
        """The rows to update and those to delete, by key: what changed, and what failed and is due again.

        A row to delete is given as the target is likely to hold it: as it was before what failed.
        """
        wanted: dict[Any, R] = {}
        gone: dict[Any, R] = {}
        for key, old, new in changes:
            if new is not None:
                wanted[key] = new
                if old is not None and key not in self._held:
                    self._held[key] = old
            elif old is not None:
                gone[key] = self._held.setdefault(key, old)
        soon = self._clock() + EARLY
        for key in [key for key, status in self._failed.items() if status.next_try <= soon]:
            if (row := snapshot.get(self._table, key)) is not None:
                wanted[key] = row
            elif key not in gone:
                gone[key] = self._held[key]
        return wanted, gone

    def _record(self, wanted: Mapping[Any, R], gone: Mapping[Any, R], failures: Mapping[Any, str]) -> None:
        """Who failed is tried again after its back-off; of who did not, nothing is kept."""
        if not failures and not self._failed:
            self._held.clear()
            return
        now = self._clock()
        for key in (*gone, *wanted):
            if (error := failures.get(key)) is None:
                self._failed.pop(key, None)
                self._held.pop(key, None)
                continue
            attempts = self._failed[key].attempts + 1 if key in self._failed else 1
            self._failed[key] = Status(key, error, attempts, now + self._backoff.delay(attempts))
        if self._status is not None:
            self._publish(self._status)

    def _publish(self, table: Table[K, Status]) -> None:
        with self._database.write() as txn:
            for row in txn.all(table):
                if row.key not in self._failed:
                    txn.delete(table, row.key)
            for status in self._failed.values():
                txn.put(table, status)

    def _prune_is_due(self, snapshot: Snapshot) -> bool:
        """Only a complete table says what nobody wants; then once at first, and now and then."""
        if not snapshot.initialized(self._table):
            return False
        return self._clock() + EARLY >= self._prune_at

    async def _prune(self, snapshot: Snapshot) -> str:
        try:
            said = await self._target.prune(snapshot.all(self._table))
        except NotPruned as why:
            self._prune_failures += 1
            self._prune_at = self._clock() + self._backoff.delay(self._prune_failures)
            return f"not pruned: {why}"
        self._pruned, self._prune_failures = True, 0
        self._prune_at = self._clock() + self._prune_every
        return said

    def _end(self, snapshot: Snapshot, said: str) -> None:
        self._seen = snapshot.revision(self._table)
        self.rounds += 1
        self.outcome = said
        self._round.set()
        self._round = asyncio.Event()

    async def _next_round(self) -> None:
        """Wait for a change, for the first retry that is due, or for a pruning: that of completion or the next one."""
        times = [status.next_try for status in self._failed.values()]
        if self._prune_at and self._database.snapshot().initialized(self._table):
            times.append(self._prune_at)
        try:
            async with asyncio.timeout(max(0.0, min(times) - self._clock()) if times else None):
                await self._database.until(lambda now: self._changes.ready or self._prune_is_due(now))
        except TimeoutError:
            pass
