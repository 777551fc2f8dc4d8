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

from isthmus.statedb.database import Database
from isthmus.statedb.table import Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

BATCH = 1_000


class Target(Protocol[R_contra]):
    """Where rows take effect. Every operation is idempotent; each gives the failures by key, empty when all held."""

    async def update(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold these rows as they are."""
        ...

    async def delete(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold none of these rows, given as they were last known; one it has not got is no failure."""
        ...

    async def prune(self, rows: Iterable[R_contra]) -> str:
        """Remove what the target holds and none of these, all desired rows, wants; give a sentence on what went."""
        ...


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
    """Drives one target from one table; its failures are rows of ``status``, a table keyed as the desired one."""

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
        self._last: dict[Any, R] = {}
        self._failed: dict[Any, Status] = {}
        self._pruned_at: float | None = None
        self._seen = -1
        self.outcome = "has not run"

    def __repr__(self) -> str:
        return f"<Reconciler of {self._table.name}: {self.outcome}; {len(self._failed)} failing>"

    @property
    def failing(self) -> Mapping[Any, Status]:
        """What could not be reconciled, by key."""
        return self._failed

    async def step(self) -> str:
        """One round: what changed, what is due again, and pruning when its time has come. Gives a sentence."""
        snapshot, changes = self._changes.next()
        now = self._clock()
        due = {key for key, status in self._failed.items() if status.next_try <= now}
        work = {change.key: change.new for change in changes} | {k: snapshot.get(self._table, k) for k in due}
        for change in changes:
            if change.old is not None:
                self._last.setdefault(change.key, change.old)
        gone = [self._last.get(key) for key, row in work.items() if row is None]
        wanted = [row for row in work.values() if row is not None]
        failures: dict[Any, str] = {}
        failures.update(await self._target.delete([row for row in gone if row is not None]) if gone else {})
        for start in range(0, len(wanted), BATCH):
            failures.update(await self._target.update(wanted[start : start + BATCH]))
        self._record(work, failures, now)
        self._seen = max(self._seen, snapshot.revision(self._table))
        said = f"{len(wanted)} updated, {len(gone)} deleted, {len(failures)} failed"
        if snapshot.initialized(self._table) and self._prune_is_due(now):
            said += f"; {await self._target.prune(snapshot.all(self._table))}"
            self._pruned_at = now
        self.outcome = said
        return said

    async def run(self) -> None:
        """Round after round, for ever."""
        while True:
            await self.step()
            await self._next_round()

    async def wait_until_reconciled(self, revision: int) -> None:
        """Return when everything up to this revision of the table has been tried and nothing is failing."""
        while self._seen < revision or self._failed:
            await asyncio.sleep(0.005)

    def _prune_is_due(self, now: float) -> bool:
        return self._pruned_at is None or now - self._pruned_at >= self._prune_every

    def _record(self, work: Iterable[Any], failures: Mapping[Any, str], now: float) -> None:
        if not failures and not self._failed:
            self._last.clear()
            return
        for key in work:
            if (error := failures.get(key)) is None:
                self._failed.pop(key, None)
                self._last.pop(key, None)
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

    async def _next_round(self) -> None:
        """Wait for a change, for the first retry that is due, for the table's completion or for the next pruning."""
        now = self._clock()
        times = [status.next_try for status in self._failed.values()]
        if self._pruned_at is not None:
            times.append(self._pruned_at + self._prune_every)
        complete = self._database.snapshot().initialized(self._table)
        try:
            async with asyncio.timeout(max(0.0, min(times) - now) if times else None):
                await self._database.until(
                    lambda s: bool(self._changes.unread) or s.initialized(self._table) != complete
                )
        except TimeoutError:
            pass
