"""The reconciler: desired rows in, idempotent operations out.

Level-triggered, in rounds. Keys that changed and keys whose retry is due wait for a round; a round takes as many as
the target handles in half a second. A few changes at a time go into an urgent queue, masses into a bulk queue, so a
change does not wait for a backlog; each round takes a part from the bulk queue, so nothing starves. Updates precede
deletes, so an address or a name that moves between rows is always programmed; a target deletes only what still belongs
to the row. A row that fails is retried whole with a capped back-off while the others go on. Once the table is complete
and nothing waits, the target is pruned: what it really holds and no row wants is removed. Desired rows are never
rewritten to carry a status: failures are rows of a table of their own, and a key without one is done or waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from isthmus.statedb.backlog import Backlog
from isthmus.statedb.changes import set_defaults
from isthmus.statedb.database import Database
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.table import Table

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

ROUND_SECONDS: Final = 0.5
"""Seconds that a round should take: how long a change waits for the round that is under way."""
MIN_ROUND: Final = 64
MAX_ROUND: Final = 1_000
"""Rows in a round: the first has the fewest; then as many as the target handles in ROUND_SECONDS."""
URGENT_ROUNDS: Final = 4
"""Rounds' worth of changes in the urgent queue at most; of retries, one."""
TIMER_SLACK: Final = 1e-6
"""Seconds by which a timer may fire early (an event loop's clock has a resolution); what is due by then is due."""


class Operations(Protocol[R_contra]):
    """Where rows take effect. Every operation is idempotent; each gives the failures by key, empty when all held."""

    async def update(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold these rows as they are."""
        ...

    async def delete(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold none of these rows, given as they were last known; one it has not got is no failure."""
        ...

    async def prune(self, rows: Iterable[R_contra]) -> str:
        """Remove what the target holds and none of these, all desired rows, wants; give a sentence on what was removed.

        Raises NotPruned where something could not be removed; pruning is then retried after the back-off.
        """
        ...


class NotPruned(Exception):  # noqa: N818
    """The target may still hold what no row wants; the message is for people."""


class Status(Struct, frozen=True, gc=False):
    """A key that could not be reconciled: the error, the number of attempts, when the next is due (seconds)."""

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


class ReconcilerStats(Struct, frozen=True, gc=False):
    """What a reconciler has done and has not: its last round as a sentence, keys that wait, keys that fail."""

    outcome: str
    rounds: int
    waiting: int
    failing: int
    pruned: bool
    """Whether the target was pruned since the process began."""


class Done(NamedTuple):
    """How many rows of a round were updated, deleted, and failed."""

    updated: int
    deleted: int
    failed: int


class Reconciler(Generic[K, R]):
    """Drives one target from one table; its failures are rows of ``status``, a table keyed as the desired one.

    A row that changes while a round awaits its target belongs to the next round. ``together`` gives the group of a
    row: rows of one group that change in one transaction are reconciled in one round. A target returns failures and
    raises none: an exception is a bug and ends the reconciler. ``max_round`` bounds the rows of a round:
    of a target that works without awaiting anything, how long other tasks wait for it.

    Invariant: every key that changed or failed is unread in ``_changes``, in the backlog, or in ``_failed``.
    """

    def __init__(
        self,
        database: Database,
        table: Table[K, R],
        target: Operations[R],
        *,
        status: Table[K, Status] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 a frozen value
        together: Callable[[R], Hashable] | None = None,
        prune_every: float = 1800.0,
        max_round: int = MAX_ROUND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._table = table
        self._target = target
        self._status = status
        self._backoff = backoff
        self._together = together
        """None: each row is a group by itself."""
        self._prune_every = prune_every
        self._max_round = max_round
        self._clock = clock
        self._changes = database.changes(table)
        self._backlog: Backlog[R] = Backlog()
        self._size = MIN_ROUND
        self._held: dict[Any, R] = {}
        """For keys that wait or fail, the row as the target probably holds it: the last one before the change."""
        self._failed: dict[Any, Status] = {}
        self._pruned = False
        self._prune_failures = 0
        self._prune_at = 0.0
        """When the next pruning is due, once the table is complete."""
        self._read = self._seen = -1
        """Table revisions: up to which changes were taken in, and up to which all of them were tried."""
        self._round = asyncio.Event()
        self.rounds = 0
        self.outcome = "has not run"

    def __repr__(self) -> str:
        waiting = f"; {len(self._backlog)} waiting" if self._backlog else ""
        pruned = "" if self._pruned else "; not pruned yet"
        return f"<Reconciler of {self._table.name}: {self.outcome}; {len(self._failed)} failing{waiting}{pruned}>"

    def stats(self) -> ReconcilerStats:
        """What has been done, and what has not."""
        return ReconcilerStats(self.outcome, self.rounds, len(self._backlog), len(self._failed), self._pruned)

    @property
    def failing(self) -> Mapping[Any, Status]:
        """The keys that could not be reconciled."""
        return self._failed

    async def step(self) -> str:
        """Reconcile all that changed or is due, and prune when it is due. Gives a sentence on it."""
        snapshot = self._take_in()
        rounds = [await self._work()]
        while self._backlog:
            rounds.append(await self._work())
        return await self._end(snapshot, Done(*map(sum, zip(*rounds, strict=True))))

    async def run(self) -> None:
        """Rounds, for ever."""
        while True:
            await self._round_of_changes()
            if self._backlog:
                await asyncio.sleep(0)  # a target may do its work without awaiting anything
            else:
                await self._next_round()

    async def _round_of_changes(self) -> None:
        """One round. Its snapshot goes with it: held while waiting for the next, it would cost every transaction."""
        snapshot = self._take_in()
        await self._end(snapshot, await self._work())

    async def wait_until_reconciled(self, revision: int) -> None:
        """Return when everything up to this revision of the table has been tried and nothing is failing."""
        while self._seen < revision or self._failed:
            await self._round.wait()

    def _take_in(self) -> Snapshot:
        """Queue what changed and what is due again; changes have more room in the urgent queue than retries.

        Of what changed, deletions are queued last: updates precede deletes also where there are several rounds.
        """
        snapshot, changed, key_of = self._database.snapshot(), self._changes.pairs(), self._table.key
        soon = self._clock() + TIMER_SLACK
        due = [key for key, status in self._failed.items() if status.next_try <= soon]
        before: dict[Any, R] = {key_of(old): old for old, _ in changed if old is not None}
        puts: dict[Any, R] = {key_of(new): new for _, new in changed if new is not None}
        deletions = {key: old for key, old in before.items() if key not in puts} if puts else before
        set_defaults(self._held, before)
        self._wait(puts, deletions, room=URGENT_ROUNDS * self._size)
        if due:
            present = snapshot.get_all(self._table, due)
            retries = {key: row for key, row in zip(due, present, strict=True) if row is not None}
            self._wait(retries, {key: self._held[key] for key in due if key not in retries}, room=self._size)
        self._read = snapshot.revision(self._table)
        return snapshot

    def _wait(self, puts: Mapping[Any, R], deletions: Mapping[Any, R], *, room: int) -> None:
        """Queue rows that are wanted, and keys of rows that are not wanted any more, each with a row of its group."""
        rows = {**puts, **dict.fromkeys(deletions)}
        together = self._together
        groups = None if together is None else [*map(together, puts.values()), *map(together, deletions.values())]
        self._backlog.add(rows, groups, mark=self._read, room=room if len(rows) <= room else 0)

    async def _work(self) -> Done:
        """One round. The target is given a deleted row as it probably holds it: as before the update that failed."""
        rows = self._backlog.take(self._size)
        wanted = {key: row for key, row in rows if row is not None}
        deleted = [key for key, row in rows if row is None] if len(wanted) < len(rows) else []
        began = self._clock()
        failures = dict(await self._target.update(list(wanted.values()))) if wanted else {}
        if deleted:
            failures.update(await self._target.delete([self._held[key] for key in deleted]))
        self._pace(len(rows), self._clock() - began)
        self._record([*deleted, *wanted], failures)
        not_updated = sum(key in wanted for key in failures)
        return Done(len(wanted) - not_updated, len(deleted) + not_updated - len(failures), len(failures))

    def _pace(self, rows: int, seconds: float) -> None:
        """Double the next round where this one was full and quick, halve it where it was slow."""
        if seconds > ROUND_SECONDS:
            self._size = max(MIN_ROUND, self._size // 2)
        elif rows >= self._size and seconds < ROUND_SECONDS / 2:
            self._size = min(self._max_round, self._size * 2)

    def _record(self, keys: Collection[Any], failures: Mapping[Any, str]) -> None:
        """Schedule a retry of each key that failed; forget the others."""
        if not (failures or self._failed):
            if self._held:
                for key in keys:
                    self._held.pop(key, None)
            return
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
        """When the table is complete and nothing waits: once at first, then every ``prune_every`` seconds."""
        if self._backlog or not snapshot.initialized(self._table):
            return False
        return self._clock() + TIMER_SLACK >= self._prune_at

    async def _prune(self, snapshot: Snapshot) -> str:
        try:
            outcome = await self._target.prune(snapshot.all(self._table))
        except NotPruned as why:
            self._prune_failures += 1
            self._prune_at = self._clock() + self._backoff.delay(self._prune_failures)
            return f"not pruned: {why}"
        self._pruned, self._prune_failures = True, 0
        self._prune_at = self._clock() + self._prune_every
        return outcome

    async def _end(self, snapshot: Snapshot, done: Done) -> str:
        """Prune if it is due, and publish the outcome of the round."""
        outcome = f"{done.updated} updated, {done.deleted} deleted, {done.failed} failed"
        if self._prune_is_due(snapshot):
            outcome += f"; {await self._prune(snapshot)}"
        self._seen = self._backlog.mark(self._read)
        self.rounds += 1
        self.outcome = outcome
        self._round.set()
        self._round = asyncio.Event()
        return outcome

    async def _next_round(self) -> None:
        """Wait for a change, for the first retry, or until pruning is due."""
        times = [status.next_try for status in self._failed.values()]
        if self._prune_at and self._database.snapshot().initialized(self._table):
            times.append(self._prune_at)
        try:
            async with asyncio.timeout(max(0.0, min(times) - self._clock()) if times else None):
                await self._database.until(lambda now: self._changes.ready or self._prune_is_due(now))
        except TimeoutError:
            pass
