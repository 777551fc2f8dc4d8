"""Time that a process takes to converge, from a change of its inputs until all that follows is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from isthmus import metrics
from isthmus.model import tables
from isthmus.statedb import Database, Snapshot

INPUTS: Final = (tables.SERVICES, tables.ENDPOINT_SETS, tables.EXPORT_MARKS, tables.IMPORTS, tables.POLICIES)
"""Tables of users' objects and of peers' records. Probes and nodes are left out: they change all the time."""
LOOK_EVERY: Final = 0.02
"""Seconds between looks while something is not written yet: well below the first bucket."""


class Convergence:
    """Observes from outside, so that neither a row nor a round pays for it.

    Changes that arrive before the process has converged belong to the same duration, which begins with the first.
    ``settled``: True if nothing is left to derive or to write.
    """

    def __init__(self, db: Database, settled: Callable[[], bool]) -> None:
        self._db = db
        self._settled = settled
        self._inputs = [table for table in INPUTS if table.name in db.tables]
        self.histogram = metrics.Histogram(metrics.CONVERGENCE)

    def __repr__(self) -> str:
        return f"<Convergence: {self.histogram!r}>"

    async def run(self) -> None:
        """Observe, for ever. The first lists after a start are no change."""
        loop = asyncio.get_running_loop()
        await self._db.until(lambda now: all(now.initialized(table) for table in self._inputs))
        await self._converged()
        revisions = self._revisions(self._db.snapshot())
        while True:
            await self._changed(revisions)
            began = loop.time()
            await self._converged()
            self.histogram.observe(loop.time() - began)
            revisions = self._revisions(self._db.snapshot())

    async def _changed(self, revisions: Sequence[int]) -> None:
        await self._db.until(lambda now: self._revisions(now) != revisions)

    async def _converged(self) -> None:
        while not self._settled():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY)  # a pass that changes no row commits nothing that could be awaited

    def _revisions(self, snapshot: Snapshot) -> list[int]:
        return [snapshot.revision(table) for table in self._inputs]
