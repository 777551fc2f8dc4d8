"""The operator's numbers of service accounts: wanted objects, as pods and time go (docs/identity.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from isthmus import kube
from isthmus.config import Config
from isthmus.desired import ApiTarget
from isthmus.identity import objects
from isthmus.identity.allocate import Account, ByNumber, allocate
from isthmus.model.identities import Identity, numbers
from isthmus.model.names import ClusterName
from isthmus.model.objects import Observed
from isthmus.model.services import ENDED, Pod
from isthmus.model.sources import is_peer
from isthmus.model.tables import FAULTS, IDENTITIES, IDENTITY_OBJECTS, IDENTITY_OBJECTS_STATUS, OBSERVED, PODS
from isthmus.statedb import Backoff, Changes, Database, Faults, Reconciler, Snapshot, rewrite

SOURCES: Final = ("pods", "identities")
"""Tables of the API server that numbers are given from, beside ``observed``."""
AWAITED: Final = (PODS, IDENTITIES, OBSERVED)
PAUSE: Final = 0.2
"""Seconds between two passes: pods that come together get their numbers together."""
LOOK: Final = 60.0
"""Longest time in seconds between two passes, since the time of day may be set."""


def _now() -> datetime:
    return datetime.now(UTC)


class Numbering:
    """Keeps the table ``identity_objects``. Nothing is given or taken before the first lists are complete."""

    def __init__(self, db: Database, cluster: ClusterName, room: range, *, now: Callable[[], datetime] = _now) -> None:
        self._db = db
        self._cluster = cluster
        self._room = room
        self._now = now
        self._pods: Changes[Pod] = db.changes(PODS)
        self._identities: Changes[Identity] = db.changes(IDENTITIES)
        self._observed: Changes[Observed] = db.changes(OBSERVED)
        self._used: Counter[Account] = Counter()
        """Number of pods of each account."""
        self._wanted: ByNumber = {}
        self._due: datetime | None = None
        self._changed = True
        """True if an account came or went since the last pass, and before the first one."""
        self._faults = Faults(db, FAULTS, IDENTITIES.name, kind="service accounts")
        self._initializer = db.initializer(IDENTITY_OBJECTS, "numbers")

    def __repr__(self) -> str:
        return f"<Numbering of {self._cluster}: {len(self._used)} accounts, {len(self._wanted)} numbers>"

    async def run(self) -> None:
        """Follow pods, objects and the time, for ever."""
        await self._db.until(_complete)
        followed: tuple[Changes[Any], ...] = (self._pods, self._identities, self._observed)
        while True:
            due = self.step()
            wait = LOOK if due is None else min(LOOK, max(0.0, (due - self._now()).total_seconds()))
            await asyncio.sleep(PAUSE)
            try:
                async with asyncio.timeout(wait):
                    await self._db.until(lambda _: any(each.ready for each in followed))
            except TimeoutError:
                pass

    def step(self) -> datetime | None:
        """Write the wanted objects; return the time of the next change by time alone, ``None`` if there is none."""
        for pod in self._pods.next()[1]:
            before, after = _account(pod.old), _account(pod.new)
            if before != after:
                self._count(before, -1)
                self._count(after, 1)
        changed = any(cluster == self._cluster for (cluster, _), _, _ in self._identities.next()[1])
        snapshot, observed = self._observed.next()
        changed |= any(kind in objects.KINDS for (kind, _), _, _ in observed)
        now = self._now()
        if not (changed or self._changed or (self._due is not None and now >= self._due)):
            return self._due
        existing: list[Identity] = snapshot.by(IDENTITIES, "cluster", self._cluster)
        allocation = allocate(
            self._used.keys(),
            existing=existing,
            before=self._wanted,
            cluster=self._cluster,
            room=self._room,
            now=now,
        )
        self._wanted, self._due, self._changed = allocation.wanted, allocation.due, False
        self._refuse(allocation.refused)
        self._write(snapshot)
        return allocation.due

    def _count(self, account: Account | None, number: int) -> None:
        if account is None:
            return
        used = self._used[account] + number
        self._changed |= not used or used == number
        if used:
            self._used[account] = used
        else:
            del self._used[account]

    def _refuse(self, accounts: tuple[Account, ...]) -> None:
        """Record the accounts that have no number."""
        names = {f"{namespace}/{account}" for namespace, account in accounts}
        full = RangeFull(f"its namespace has its share of the cluster's {len(self._room)} numbers: it gets none")
        for name in sorted(names):
            self._faults.failed(name, full, cause="malformed", message=str(full))
        self._faults.retain(names)
        self._faults.publish()

    def _write(self, snapshot: Snapshot) -> None:
        rows = list(objects.wanted(snapshot, self._wanted.values()))
        with self._db.write() as txn:
            rewrite(txn, IDENTITY_OBJECTS, list(txn.all(IDENTITY_OBJECTS)), rows)
            if not snapshot.initialized(IDENTITY_OBJECTS):
                self._initializer.complete(txn)


def _account(pod: Pod | None) -> Account | None:
    """The account that a pod runs as; ``None`` for one that has ended."""
    if pod is None or not pod.service_account or pod.phase in ENDED:
        return None
    return pod.name.partition("/")[0], pod.service_account


def _complete(snapshot: Snapshot) -> bool:
    """True if the lists of the own API server are complete; numbers of peers are not waited for."""
    return not any(not is_peer(source) for table in AWAITED for source in snapshot.pending(table))


def numbering(db: Database, config: Config) -> Numbering:
    """Return the numbering of the configured cluster."""
    room = numbers(config.cluster.id, config.clusterset.max_connected_clusters)
    return Numbering(db, ClusterName(config.cluster.name), room)


def reconciler(db: Database, client: kube.Client, backoff: Backoff) -> Reconciler[Any, Any]:
    """Return what makes the API server hold the wanted objects."""
    target = ApiTarget(client, objects.KINDS)
    return Reconciler(db, IDENTITY_OBJECTS, target, status=IDENTITY_OBJECTS_STATUS, backoff=backoff)


class RangeFull(Exception):  # noqa: N818 about the range, not about us
    """An account gets no number; the message has the reason."""
