"""Keeps the table ``draining``: the drains in force as time passes. ``loadbalancer.drains`` decides which.

Readers of the table await the first list of drains: a process that starts must not call a drained backend, nor publish
that nothing is drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from isthmus.loadbalancer import drain_objects, drains
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName
from isthmus.model.tables import (
    CLUSTERS,
    DRAIN_OBJECTS,
    DRAINING,
    DRAINS,
    ENDPOINT_SETS,
    FAULTS,
    IMPORTS,
    NODES,
    OBSERVED,
    SERVICES,
)
from isthmus.statedb import Changes, Database, Faults, Snapshot

LOOK: Final = 30.0
"""Seconds: longest wait before the time is read again, since the system's clock may have been set."""


COMPLETE_WITH: Final = (DRAINS, NODES, CLUSTERS)
"""Tables whose first lists have to be whole: objects, nodes, and the description of every peer that can be read."""

REPORT_EVERY: Final = 1.0
"""Seconds between two computations of what stands in the status of drains: each looks at all services."""


def _now() -> datetime:
    return datetime.now(UTC)


class DrainClock:
    """Writes the table ``draining``, one per process. ``cordoned`` is true if a cordon drains a node."""

    def __init__(
        self, db: Database, cluster: ClusterName, *, cordoned: bool, now: Callable[[], datetime] = _now
    ) -> None:
        self._db = db
        self._cluster = cluster
        self._cordoned = cordoned
        self._now = now
        self._initializer = db.initializer(DRAINING, "drains")
        self._faults = Faults(db, FAULTS, DRAINING.name, kind="drains")
        self._gone: set[str] = set()
        """Nodes that were deleted since the start and that endpoints may still name."""

    def __repr__(self) -> str:
        return f"<DrainClock of {self._cluster}: {self._db.snapshot().count(DRAINING)} in force>"

    async def run(self) -> None:
        """Follow drains, nodes, peers and the time, for ever."""
        nodes = self._db.changes(NODES)
        followed: list[Changes[Any]] = [self._db.changes(DRAINS), self._db.changes(CLUSTERS)]
        while True:
            _, changed = nodes.next()
            for each in followed:
                each.next()
            self.deleted([change.old.name for change in changed if change.old is not None and change.new is None])
            due = self.step()
            wait = LOOK if due is None else min(LOOK, max(0.0, (due - self._now()).total_seconds()))
            try:
                async with asyncio.timeout(wait):
                    await self._db.until(
                        lambda now: any(each.ready for each in (nodes, *followed)) or self._completes(now)
                    )
            except TimeoutError:
                pass

    def deleted(self, names: Sequence[str]) -> None:
        """Remember deleted nodes, until the cluster has removed their pods and so their endpoints."""
        if not names:
            return
        sets = self._db.snapshot().by(ENDPOINT_SETS, "cluster", self._cluster)
        named = {endpoint.node for row in sets for endpoint in row.endpoints}
        self._gone = (self._gone | {*names}) & named

    def step(self) -> datetime | None:
        """Write the drains in force; return the time of the next change by time alone, ``None`` if there is none."""
        snapshot, now = self._db.snapshot(), self._now()
        before = {row.key: row for row in snapshot.all(DRAINING)}
        asked = self._sound(self._asked(snapshot), now)
        rows = {key: row for key, row in before.items() if key in self._faults}
        rows |= {row.key: row for row in drains.in_force(asked, cluster=self._cluster, now=now)}
        self._faults.publish()
        if rows != before or self._completes(snapshot):
            with self._db.write() as txn:
                for key in before.keys() - rows.keys():
                    txn.delete(DRAINING, key)
                for key, row in rows.items():
                    if before.get(key) != row:
                        txn.put(DRAINING, row)
                if snapshot.initialized(*COMPLETE_WITH):
                    self._initializer.complete(txn)
        every = [drain for each in asked.values() for drain in each]
        return drains.next_change(every, now)

    def _sound(self, asked: Mapping[ClusterName, Sequence[Drain]], now: datetime) -> dict[ClusterName, list[Drain]]:
        """The drains without those for which it cannot be computed how far they have come: they stay as they were."""
        sound: dict[ClusterName, list[Drain]] = {cluster: [] for cluster in asked}
        keys: set[Hashable] = set()
        for cluster, requested in asked.items():
            for drain in requested:
                key = Draining(by=cluster, drain=drain, left=0, closing=False).key
                keys.add(key)
                with self._faults.attempt(key):
                    drains.step(drain, now)
                    sound[cluster].append(drain)
        self._faults.retain(keys)
        return sound

    def _completes(self, snapshot: Snapshot) -> bool:
        """True if the first lists are complete and this table is not yet initialised."""
        return snapshot.initialized(*COMPLETE_WITH) and not snapshot.initialized(DRAINING)

    def _asked(self, snapshot: Snapshot) -> dict[ClusterName, Sequence[Drain]]:
        """The drains of each cluster that asks for some. The own cluster's come first, and from here alone."""
        self._gone -= {row.name for row in snapshot.all(NODES)}
        implied = drains.of_nodes(snapshot.all(NODES), deleted=sorted(self._gone), cordoned=self._cordoned)
        own = drains.own(snapshot.all(DRAINS), implied)
        peers = {row.name: row.drains for row in snapshot.all(CLUSTERS) if row.drains and not row.own}
        return {self._cluster: own, **peers}


def sentences(snapshot: Snapshot) -> tuple[str, ...]:
    """Describe each present drain in a line of ``isthmus status``."""
    rows: list[Draining] = sorted(snapshot.all(DRAINING), key=lambda row: row.key)
    return tuple(drains.describe(row) for row in rows)


async def report(db: Database, cluster: ClusterName) -> None:
    """Keep the wanted status of Drain objects, for ever."""
    reads: list[Changes[Any]] = [
        db.changes(table) for table in (DRAINS, DRAINING, OBSERVED, ENDPOINT_SETS, SERVICES, IMPORTS)
    ]
    faults = Faults(db, FAULTS, DRAIN_OBJECTS.name)
    while True:
        for each in reads:
            each.next()
        snapshot = db.snapshot()
        before = {DRAIN_OBJECTS.key(row): row for row in snapshot.all(DRAIN_OBJECTS)}
        computed = drain_objects.compute(snapshot, cluster=cluster, faults=faults)
        rows = {DRAIN_OBJECTS.key(row): row for row in computed}
        rows |= {key: row for key, row in before.items() if row.name in faults}
        del snapshot
        faults.publish()
        if rows != before:
            with db.write() as txn:
                for key in before.keys() - rows.keys():
                    txn.delete(DRAIN_OBJECTS, key)
                for row in rows.values():
                    txn.put(DRAIN_OBJECTS, row)
        await asyncio.sleep(REPORT_EVERY)
        await db.until(lambda _: any(each.ready for each in reads))
