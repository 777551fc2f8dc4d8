"""The reconciler: desired rows in, idempotent operations out.

Level-triggered, in rounds. What changed and what is due again waits for a round; a round takes as much as the target
does in a moment. A little at a time waits in front, what comes in masses behind: so a change does not wait for a
backlog. Those behind have a part of each round: so nothing waits for ever. Deletions go last, so that what passes from
one row to another is never nobody's: a target deletes only what is still the row's. What fails is retried whole with a
capped back-off while the rest goes on. Once the table is complete and nothing waits the target is pruned: what it
really holds and no row wants goes. Desired rows are never rewritten to carry a status: failures are rows of a table of
their own, and a key without one is done or about to be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from isthmus.statedb.backlog import Backlog
from isthmus.statedb.database import Database
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.table import Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

MOMENT: Final = 0.5
"""Seconds a round should take: how long a change waits for the round that is under way."""
LEAST: Final = 64
MOST: Final = 1_000
"""Rows in a round: it begins with the least, and has as many as the target does in a moment."""
IN_FRONT: Final = 4
"""Rounds' worth of changes that wait in front of a backlog at most, and one of retries."""
EARLY: Final = 1e-6
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


class Done(NamedTuple):
    """What became of a round's rows."""

    updated: int
    deleted: int
    failed: int


class Reconciler(Generic[K, R]):
    """Drives one target from one table; its failures are rows of ``status``, a table keyed as the desired one.

    What changes while a round awaits its target is the next round's. Rows that are ``together`` of one group are never
    in two rounds when they change at once. A target gives failures and raises none: an exception is a bug and ends the
    reconciler.
    """

    def __init__(
        self,
        database: Database,
        table: Table[K, R],
        target: Target[R],
        *,
        status: Table[K, Status] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 a frozen value
        together: Callable[[R], Hashable] | None = None,
        prune_every: float = 1800.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._table = table
        self._target = target
        self._status = status
        self._backoff = backoff
        self._together = together or table.key
        self._prune_every = prune_every
        self._clock = clock
        self._changes = database.changes(table)
        self._backlog = Backlog()
        self._size = LEAST
        self._held: dict[Any, R] = {}
        """Rows as the target is likely to hold them, of keys that wait or fail."""
        self._failed: dict[Any, Status] = {}
        self._pruned = False
        self._prune_failures = 0
        self._prune_at = 0.0
        """When the next pruning is due, once the table is complete."""
        self._read = self._seen = -1
        """Revisions: of what was taken in, and up to which all of it was tried."""
        self._round = asyncio.Event()
        self.rounds = 0
        self.outcome = "has not run"

    def __repr__(self) -> str:
        waiting = f"; {len(self._backlog)} waiting" if self._backlog else ""
        pruned = "" if self._pruned else "; not pruned yet"
        return f"<Reconciler of {self._table.name}: {self.outcome}; {len(self._failed)} failing{waiting}{pruned}>"

    @property
    def failing(self) -> Mapping[Any, Status]:
        """What could not be reconciled, by key."""
        return self._failed

    async def step(self) -> str:
        """All that changed and is due again, and pruning when its time has come. Gives a sentence."""
        snapshot = self._take_in()
        rounds = [await self._work(snapshot)]
        while self._backlog:
            rounds.append(await self._work(snapshot))
        return await self._end(snapshot, Done(*map(sum, zip(*rounds, strict=True))))

    async def run(self) -> None:
        """Round after round, for ever."""
        while True:
            await self._round_of_changes()
            if self._backlog:
                await asyncio.sleep(0)  # a target may do its work without awaiting anything
            else:
                await self._next_round()

    async def _round_of_changes(self) -> None:
        """One round. Its snapshot goes with it: held while waiting for the next, it would cost every transaction."""
        snapshot = self._take_in()
        await self._end(snapshot, await self._work(snapshot))

    async def wait_until_reconciled(self, revision: int) -> None:
        """Return when everything up to this revision of the table has been tried and nothing is failing."""
        while self._seen < revision or self._failed:
            await self._round.wait()

    def _take_in(self) -> Snapshot:
        """Let wait for a round what is due again and what changed, for which there is more room in front.

        Of what changed, rows to delete wait behind all others: as in a round, so where there are several.
        """
        snapshot, changes = self._changes.next()
        soon = self._clock() + EARLY
        due = [key for key, status in self._failed.items() if status.next_try <= soon]
        for key, old, new in sorted(changes, key=lambda change: change.new is None):
            if old is not None:
                self._held.setdefault(key, old)
            self._wait(key, old if new is None else new, beside=len(changes), room=IN_FRONT * self._size)
        for key in due:
            row = snapshot.get(self._table, key)
            self._wait(key, self._held[key] if row is None else row, beside=len(due), room=self._size)
        self._read = snapshot.revision(self._table)
        return snapshot

    def _wait(self, key: Any, row: R | None, *, beside: int, room: int) -> None:
        if row is not None:  # else it came and went
            group = self._together(row)
            self._backlog.add(key, group=group, mark=self._read, room=room if beside <= room else 0)

    async def _work(self, snapshot: Snapshot) -> Done:
        """One round. A row to delete is given as the target is likely to hold it: as it was before what failed."""
        wanted: dict[Any, R] = {}
        gone: dict[Any, R] = {}
        for key in self._backlog.take(self._size):
            if (row := snapshot.get(self._table, key)) is not None:
                wanted[key] = row
            else:
                gone[key] = self._held[key]
        began = self._clock()
        failures = dict(await self._target.update(list(wanted.values()))) if wanted else {}
        if gone:
            failures.update(await self._target.delete(list(gone.values())))
        self._pace(len(wanted) + len(gone), self._clock() - began)
        self._record((*gone, *wanted), failures)
        updated, deleted = (len(work) - sum(key in work for key in failures) for work in (wanted, gone))
        return Done(updated, deleted, len(failures))

    def _pace(self, rows: int, seconds: float) -> None:
        """The next round has twice as many rows where this one was quick, and half as many where it was slow."""
        if seconds > MOMENT:
            self._size = max(LEAST, self._size // 2)
        elif rows >= self._size and seconds < MOMENT / 2:
            self._size = min(MOST, self._size * 2)

    def _record(self, keys: Sequence[Any], failures: Mapping[Any, str]) -> None:
        """Who failed is tried again after its back-off; of who did not, nothing is kept."""
        now = self._clock()
        for key in keys:
            if (error := failures.get(key)) is None:
                self._failed.pop(key, None)
                self._held.pop(key, None)
                continue
            attempts = self._failed[key].attempts + 1 if key in self._failed else 1
            self._failed[key] = Status(key, error, attempts, now + self._backoff.delay(attempts))
        if self._status is not None:
            self._publish(self._status, keys)

    def _publish(self, table: Table[K, Status], keys: Iterable[Any]) -> None:
        with self._database.write() as txn:
            for key in keys:
                if (status := self._failed.get(key)) is not None:
                    txn.put(table, status)
                else:
                    txn.delete(table, key)

    def _prune_is_due(self, snapshot: Snapshot) -> bool:
        """Only a complete table says what nobody wants; then once at first, and now and then, when nothing waits."""
        if self._backlog or not snapshot.initialized(self._table):
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

    async def _end(self, snapshot: Snapshot, done: Done) -> str:
        """Prune if it is time to, and let it be known what was done."""
        said = f"{done.updated} updated, {done.deleted} deleted, {done.failed} failed"
        if self._prune_is_due(snapshot):
            said += f"; {await self._prune(snapshot)}"
        self._seen = self._backlog.mark(self._read)
        self.rounds += 1
        self.outcome = said
        self._round.set()
        self._round = asyncio.Event()
        return said

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
