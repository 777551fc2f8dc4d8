"""Keeps the table ``draining``: what drains ask for, as time passes. The decisions are ``loadbalancer.drains``.

Whoever reads the table waits for the first list of drains: a process that starts must not call what is drained, nor
publish that nothing is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
    IMPORTS,
    NODES,
    OBSERVED,
    SERVICES,
)
from isthmus.statedb import Changes, Database, Snapshot

LOOK: Final = 30.0
"""Seconds after which the time is looked at again at the latest: the system's clock may have been set."""


COMPLETE_WITH: Final = (DRAINS, NODES, CLUSTERS)
"""Tables whose first lists have to be whole: objects, nodes, and the description of every peer that can be read."""

REPORT_EVERY: Final = 1.0
"""Seconds between two computations of what stands in the status of drains: each looks at all services."""


def _now() -> datetime:
    return datetime.now(UTC)


class DrainClock:
    """One per process. ``cordoned``: whether a cordon drains a node."""

    def __init__(
        self, db: Database, cluster: ClusterName, *, cordoned: bool, now: Callable[[], datetime] = _now
    ) -> None:
        self._db = db
        self._cluster = cluster
        self._cordoned = cordoned
        self._now = now
        self._initializer = db.initializer(DRAINING, "drains")
        self._gone: set[str] = set()
        """Nodes that were deleted as we looked, and that endpoints may still name."""

    def __repr__(self) -> str:
        return f"<DrainClock of {self._cluster}: {self._db.snapshot().count(DRAINING)} in force>"

    async def run(self) -> None:
        """Follow drains, nodes, peers and the time, for ever."""
        nodes = self._db.changes(NODES)
        others: list[Changes[Any]] = [self._db.changes(DRAINS), self._db.changes(CLUSTERS)]
        while True:
            _, changed = nodes.next()
            for each in others:
                each.next()
            self.deleted([change.old.name for change in changed if change.old is not None and change.new is None])
            due = self.step()
            wait = LOOK if due is None else min(LOOK, max(0.0, (due - self._now()).total_seconds()))
            try:
                async with asyncio.timeout(wait):
                    await self._db.until(
                        lambda now: any(each.ready for each in (nodes, *others)) or self._completes(now)
                    )
            except TimeoutError:
                pass

    def deleted(self, names: Sequence[str]) -> None:
        """Nodes were deleted. Endpoints there go when the cluster removes the pods, which takes a while."""
        if not names:
            return
        sets = self._db.snapshot().by(ENDPOINT_SETS, "cluster", self._cluster)
        named = {endpoint.node for row in sets for endpoint in row.endpoints}
        self._gone = (self._gone | {*names}) & named

    def step(self) -> datetime | None:
        """Write what is in force now; when time alone changes it next."""
        snapshot, now = self._db.snapshot(), self._now()
        asked = self._asked(snapshot)
        wanted = {row.key: row for row in drains.in_force(asked, cluster=self._cluster, now=now)}
        present = {row.key: row for row in snapshot.all(DRAINING)}
        if wanted != present or self._completes(snapshot):
            with self._db.write() as txn:
                for key in present.keys() - wanted.keys():
                    txn.delete(DRAINING, key)
                for key, row in wanted.items():
                    if present.get(key) != row:
                        txn.put(DRAINING, row)
                if snapshot.initialized(*COMPLETE_WITH):
                    self._initializer.complete(txn)
        every = [drain for each in asked.values() for drain in each]
        return drains.next_change(every, now)

    def _completes(self, snapshot: Snapshot) -> bool:
        """Whether the first lists are whole, and this table is not called so yet."""
        return snapshot.initialized(*COMPLETE_WITH) and not snapshot.initialized(DRAINING)

    def _asked(self, snapshot: Snapshot) -> dict[ClusterName, Sequence[Drain]]:
        """The drains of each cluster that asks for some. The own cluster's come first, and from here alone."""
        self._gone -= {row.name for row in snapshot.all(NODES)}
        implied = drains.of_nodes(snapshot.all(NODES), gone=sorted(self._gone), cordoned=self._cordoned)
        own = drains.own(snapshot.all(DRAINS), implied)
        peers = {row.name: row.drains for row in snapshot.all(CLUSTERS) if row.drains and not row.own}
        return {self._cluster: own, **peers}


def sentences(snapshot: Snapshot) -> tuple[str, ...]:
    """What is drained now, a line for each, as ``isthmus status`` shows it."""
    rows: list[Draining] = sorted(snapshot.all(DRAINING), key=lambda row: row.key)
    return tuple(drains.describe(row) for row in rows)


async def report(db: Database, cluster: ClusterName) -> None:
    """Keep the wanted status of Drain objects, for ever."""
    reads: list[Changes[Any]] = [
        db.changes(table) for table in (DRAINS, DRAINING, OBSERVED, ENDPOINT_SETS, SERVICES, IMPORTS)
    ]
    while True:
        for each in reads:
            each.next()
        snapshot = db.snapshot()
        wanted = {DRAIN_OBJECTS.key(row): row for row in drain_objects.compute(snapshot, cluster=cluster)}
        present = {DRAIN_OBJECTS.key(row): row for row in snapshot.all(DRAIN_OBJECTS)}
        del snapshot
        if wanted != present:
            with db.write() as txn:
                for key in present.keys() - wanted.keys():
                    txn.delete(DRAIN_OBJECTS, key)
                for row in wanted.values():
                    txn.put(DRAIN_OBJECTS, row)
        await asyncio.sleep(REPORT_EVERY)
        await db.until(lambda _: any(each.ready for each in reads))
