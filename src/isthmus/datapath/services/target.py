"""The reconciler's target for plans: writes changes map by map in batches; each row succeeds or fails as a whole.

What to write, and what the maps hold afterwards, is decided by ``batch``. A row that fails affects no other row. Maps
are written one after the other: a failed entry fails exactly its own rows, and entries are written after the entries
that they refer to (``manifest.ORDER``), frontends last. Entries that a row wrote before it failed are not reachable
from any frontend; the sweep deletes them after the grace period.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from isthmus import logs
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.services.audit import audit
from isthmus.datapath.services.batch import Leaving, finish, orphans, prepare, settle, withdraw
from isthmus.datapath.services.grace_queue import GraceQueue
from isthmus.datapath.services.installed import State
from isthmus.datapath.services.manifest import ORDER
from isthmus.model.balancing import Plan, PlanKey

log = logs.get("datapath")

SHORTEST_GRACE: Final = 0.2
"""Shortest grace period that the interval of sweeps follows, in seconds."""


class PlanTarget:
    """Writes plans into the maps. ``state`` has the maps' content; it is restored before the first call."""

    def __init__(
        self,
        maps: Maps,
        state: State,
        *,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self._maps = maps
        self._grace = grace
        self._grace_queue = GraceQueue(maps, state, grace=grace, clock=clock)

    def __repr__(self) -> str:
        return f"<PlanTarget: {self.state!r}, {self._grace_queue!r}>"

    async def update(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Write these plans into the maps. Returns failures by key."""
        batch = prepare(self.state, rows)
        for name in ORDER:
            if (entries := batch.entries[name]) and (refused := self._maps.put(name, entries)):
                batch.fail(name, refused)
        failures = self._release(settle(batch))
        if away := [row.key for row in rows if not row.frontends]:
            failures.update(self._release(withdraw(self.state, away)))
        if log.is_enabled_for(logging.DEBUG):
            self._log_written(rows, failures)
        return failures

    async def delete(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Delete these plans from the maps. Returns failures by key. Frontends that another plan took over stay."""
        failures = self._release(withdraw(self.state, [row.key for row in rows]))
        log.debug("plans deleted", plans=len(rows), failed=len(failures))
        return failures

    def _release(self, leaving: Leaving) -> dict[PlanKey, str]:
        """Delete what no connect must find any more, and queue the rest. Returns failures by key."""
        for name, entries in (("members", leaving.members), ("frontends", leaving.frontends)):
            if entries and (refused := self._maps.drop(name, list(entries))):
                leaving.fail(name, refused)
        finish(self.state, leaving)
        self._grace_queue.retire(leaving)
        return leaving.failures

    async def prune(self, rows: Iterable[Plan]) -> str:
        """Delete plans without a row and entries that ``state`` lacks; restore entries that another process changed."""
        desired = {row.key: row for row in rows if row.frontends}
        unwanted = [key for key in self.state.units if key not in desired]
        failures = self._release(withdraw(self.state, unwanted))
        unowned = orphans(self.state, self._grace_queue.waiting)
        self._release(unowned)
        self.state.forget_orphans()
        removed, repaired = await self._repair(desired)
        outcome = f"pruned {len(unwanted)} services, {len(unowned.plans)} plans, {removed} entries"
        outcome += f", repaired {repaired}" if repaired else ""
        return f"{outcome}, {len(failures)} failed" if failures else outcome

    async def _repair(self, desired: Mapping[PlanKey, Plan]) -> tuple[int, int]:
        """Compare the maps with ``state``. Returns (unknown entries deleted, services written again)."""
        result = audit(self.state, self._maps, waiting=self._grace_queue.waiting)
        for name, keys in result.unknown.items():
            if keys:
                self._maps.drop(name, keys)
        damaged = [desired[key] for key in sorted(result.damaged) if key in desired]
        if damaged:
            await self.update(damaged)
        return sum(map(len, result.unknown.values())), len(damaged)

    async def sweep(self) -> None:
        """Delete retired entries as their grace period ends, for ever."""
        while True:
            self.sweep_due()
            await asyncio.sleep(max(self._grace, SHORTEST_GRACE) / 4)

    def sweep_due(self) -> int:
        """Delete the entries whose grace period has ended. Returns their number."""
        return self._grace_queue.sweep()

    def _log_written(self, rows: Sequence[Plan], failures: Mapping[PlanKey, str]) -> None:
        for row in rows:
            unit = self.state.units.get(row.key)
            plan = unit.current if unit is not None else None
            if unit is None or plan is None or row.key in failures:
                log.debug("plan not written", plan=str(row.key), error=failures.get(row.key, "it has no frontends"))
                continue
            sizes = [len(group) for group in plan.slots]
            log.debug("plan written", plan=str(row.key), service_id=unit.service, plan_id=plan.id, groups=sizes)
