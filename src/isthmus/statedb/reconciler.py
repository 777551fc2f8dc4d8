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
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from isthmus import logs
from isthmus.statedb.backlog import Backlog
from isthmus.statedb.changes import set_defaults
from isthmus.statedb.database import Database
from isthmus.statedb.faults import describe_bug
from isthmus.statedb.reading import Snapshot
from isthmus.statedb.table import Table

log = logs.get("reconciler")

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
    """The target that a reconciler drives. Operations are idempotent and return failures by key, empty if none."""

    async def update(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Make the target hold these rows as they are."""
        ...

    async def delete(self, rows: Sequence[R_contra]) -> Mapping[Any, str]:
        """Delete these rows, given in their last known state, from the target; a missing one is no failure."""
        ...

    async def prune(self, rows: Iterable[R_contra]) -> str:
        """Remove everything that no desired row requires, given all of them. Returns a sentence about the removals.

        Raises NotPruned if a removal failed; pruning is then retried after the back-off.
        """
        ...


Operation = Callable[[Sequence[R]], Awaitable[Mapping[Any, str]]]
"""``update`` or ``delete`` of a target."""


class NotPruned(Exception):  # noqa: N818
    """The target may still hold entries that no row requires; the message is for people."""


class Status(Struct, Generic[K], frozen=True, gc=False):
    """A key that could not be reconciled: the error, the number of attempts, the time of the next one in seconds.

    The type of the key is a parameter, so that a row keeps its key through JSON.
    """

    key: K
    error: str
    attempts: int
    next_try: float


class Backoff(Struct, frozen=True, gc=False):
    """Seconds before the n-th retry: doubling from ``first``, never over ``most``."""

    first: float = 0.1
    most: float = 60.0

    def delay(self, attempts: int) -> float:
        """Seconds to wait after this many failed attempts, 1 or more."""
        delay: float = min(self.most, self.first * 2.0 ** min(attempts - 1, 30))
        return delay


class ReconcilerStats(Struct, frozen=True, gc=False):
    """Progress of a reconciler: its last round as a sentence, and the numbers of waiting and failing keys."""

    outcome: str
    rounds: int
    waiting: int
    failing: int
    pruned: bool
    """True once the target was pruned by this process."""


class Done(NamedTuple):
    """Numbers of rows that a round updated, deleted and failed on."""

    updated: int
    deleted: int
    failed: int


class Reconciler(Generic[K, R]):
    """Drives one target from one table; its failures are rows of ``status``, a table keyed as the desired one.

    A row that changes while a round awaits its target belongs to the next round. ``together`` returns the group of a
    row: rows of one group that change in one transaction are reconciled in one round. A target returns its failures;
    an exception is a bug: the round is repeated group by group, and a group that raises fails as a whole.
    ``failing`` is called with the keys of each round that begins, continues or ceases to fail: for an owner that merges
    the failures of several reconcilers into one table.
    ``max_round`` bounds the rows of a round, and so the time that a target which never awaits blocks other tasks.

    Invariant: every key that changed or failed is unread in ``_changes``, in the backlog, or in ``_failed``.
    """

    def __init__(
        self,
        database: Database,
        table: Table[K, R],
        target: Operations[R],
        *,
        status: Table[K, Status[K]] | None = None,
        failing: Callable[[Collection[K]], None] | None = None,
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
        self._report = failing
        self._backoff = backoff
        self._together = together
        """``None`` if each row forms its own group."""
        self._prune_every = prune_every
        self._max_round = max_round
        self._clock = clock
        self._changes = database.changes(table)
        self._backlog: Backlog[R] = Backlog()
        self._size = MIN_ROUND
        self._held: dict[Any, R] = {}
        """The row that the target probably holds, for each key that waits or fails: the one before the change."""
        self._failed: dict[Any, Status[Any]] = {}
        self._pruned = False
        self._prune_failures = 0
        self._prune_at = 0.0
        """Time of the next pruning, once the table is complete."""
        self._read = self._seen = -1
        """Table revisions up to which changes were read, and up to which all changes were tried."""
        self._round = asyncio.Event()
        self.rounds = 0
        self.outcome = "has not run"

    def __repr__(self) -> str:
        waiting = f"; {len(self._backlog)} waiting" if self._backlog else ""
        pruned = "" if self._pruned else "; not pruned yet"
        return f"<Reconciler of {self._table.name}: {self.outcome}; {len(self._failed)} failing{waiting}{pruned}>"

    def stats(self) -> ReconcilerStats:
        """The last round's outcome, and the numbers of waiting and failing keys."""
        return ReconcilerStats(self.outcome, self.rounds, len(self._backlog), len(self._failed), self._pruned)

    @property
    def failing(self) -> Mapping[Any, Status[Any]]:
        """The keys that could not be reconciled."""
        return self._failed

    async def step(self) -> str:
        """Reconcile all keys that changed or are due, and prune if due. Returns the outcome as a sentence."""
        snapshot = self._take_in()
        rounds = [await self._work()]
        while self._backlog:
            rounds.append(await self._work())
        return await self._end(snapshot, Done(*map(sum, zip(*rounds, strict=True))))

    async def run(self) -> None:
        """Reconcile in rounds, for ever."""
        while True:
            await self._round_of_changes()
            if self._backlog:
                await asyncio.sleep(0)  # a target may do its work without awaiting anything
            else:
                await self._next_round()

    async def _round_of_changes(self) -> None:
        """Run one round. Its snapshot is dropped at the end: a snapshot held while waiting costs every transaction."""
        snapshot = self._take_in()
        await self._end(snapshot, await self._work())

    async def wait_until_reconciled(self, revision: int) -> None:
        """Return once every change up to this revision of the table was tried and no key fails."""
        while self._seen < revision or self._failed:
            await self._round.wait()

    @property
    def settled(self) -> bool:
        """True if every change of the table has been written."""
        return not (self._failed or self._backlog or self._changes.ready) and self._seen == self._read

    def _take_in(self) -> Snapshot:
        """Queue changed keys and due retries; changes have more room in the urgent queue than retries.

        Deletions are queued after puts, so updates precede deletes even across several rounds.
        """
        snapshot, changed, key_of = self._database.snapshot(), self._changes.pairs(), self._table.key
        soon = self._clock() + TIMER_SLACK
        due = [key for key, status in self._failed.items() if status.next_try <= soon]
        before: dict[Any, R] = {key_of(old): old for old, _ in changed if old is not None}
        puts: dict[Any, R] = {key_of(new): new for _, new in changed if new is not None}
        deletions = {key: old for key, old in before.items() if key not in puts} if puts else before
        set_defaults(self._held, before)  # an older row stays: the target may still hold it after a failed update
        self._wait(puts, deletions, room=URGENT_ROUNDS * self._size)
        if due:
            current = snapshot.get_all(self._table, due)
            retries = {key: row for key, row in zip(due, current, strict=True) if row is not None}
            self._wait(retries, {key: self._held[key] for key in due if key not in retries}, room=self._size)
        self._read = snapshot.revision(self._table)
        return snapshot

    def _wait(self, puts: Mapping[Any, R], deletions: Mapping[Any, R], *, room: int) -> None:
        """Queue desired rows, and the keys of deleted ones, whose last rows determine their groups."""
        rows = {**puts, **dict.fromkeys(deletions)}
        together = self._together
        groups = None if together is None else [*map(together, puts.values()), *map(together, deletions.values())]
        self._backlog.add(rows, groups, mark=self._read, room=room if len(rows) <= room else 0)

    async def _work(self) -> Done:
        """Run one round. A deletion passes the row that the target probably holds: that before a failed update."""
        rows = self._backlog.take(self._size)
        updates = {key: row for key, row in rows if row is not None}
        deleted = [key for key, row in rows if row is None] if len(updates) < len(rows) else []
        began = self._clock()
        failures = await self._contained(self._target.update, list(updates.values())) if updates else {}
        if deleted:
            failures |= await self._contained(self._target.delete, [self._held[key] for key in deleted])
        self._pace(len(rows), self._clock() - began)
        self._record([*deleted, *updates], failures)
        not_updated = sum(key in updates for key in failures)
        return Done(len(updates) - not_updated, len(deleted) + not_updated - len(failures), len(failures))

    async def _contained(self, operation: Operation[R], rows: Sequence[R]) -> dict[Any, str]:
        """Run an operation; failures by key. If it raises, repeat it for each group: operations are idempotent."""
        try:
            return dict(await operation(rows))
        except MemoryError:
            raise
        except Exception as error:
            groups = self._groups(rows)
            if len(groups) == 1:
                return dict.fromkeys(map(self._table.key, rows), describe_bug(error))
        failures: dict[Any, str] = {}
        for group in groups:
            failures |= await self._contained(operation, group)
        return failures

    def _groups(self, rows: Sequence[R]) -> list[Sequence[R]]:
        if self._together is None:
            return [[row] for row in rows]
        groups: dict[Hashable, list[R]] = {}
        for row in rows:
            groups.setdefault(self._together(row), []).append(row)
        return [*groups.values()]

    def _pace(self, rows: int, seconds: float) -> None:
        """Double the next round's size if this round was full and quick, halve it if it was slow."""
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
            log.debug("row not reconciled", table=self._table.name, key=str(key), error=error, attempts=attempts)
            self._failed[key] = Status(key, error, attempts, now + self._backoff.delay(attempts))
        if self._status is not None:
            self._publish(self._status, keys)
        if self._report is not None:
            self._report(keys)

    def _publish(self, table: Table[K, Status[K]], keys: Iterable[Any]) -> None:
        with self._database.write() as txn:
            for key in keys:
                if (status := self._failed.get(key)) is not None:
                    txn.put(table, status)
                else:
                    txn.delete(table, key)

    def _prune_is_due(self, snapshot: Snapshot) -> bool:
        """True if the table is complete, no key waits, and the last pruning is ``prune_every`` seconds old."""
        if self._backlog or not snapshot.initialized(self._table):
            return False
        return self._clock() + TIMER_SLACK >= self._prune_at

    async def _prune(self, snapshot: Snapshot) -> str:
        try:
            outcome = await self._target.prune(snapshot.all(self._table))
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, NotPruned) else describe_bug(error)
            self._prune_failures += 1
            self._prune_at = self._clock() + self._backoff.delay(self._prune_failures)
            return f"not pruned: {reason}"
        self._pruned, self._prune_failures = True, 0
        self._prune_at = self._clock() + self._prune_every
        return outcome

    async def _end(self, snapshot: Snapshot, done: Done) -> str:
        """Prune if due, and publish the outcome of the round."""
        outcome = f"{done.updated} updated, {done.deleted} deleted, {done.failed} failed"
        if self._prune_is_due(snapshot):
            outcome += f"; {await self._prune(snapshot)}"
        self._seen = self._backlog.mark(self._read)
        log.debug(
            "reconciled", table=self._table.name, outcome=outcome, waiting=len(self._backlog), revision=self._seen
        )
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
                await self._database.until(lambda snapshot: self._changes.ready or self._prune_is_due(snapshot))
        except TimeoutError:
            pass
