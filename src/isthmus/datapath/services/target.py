"""The reconciler's target for plans: writes changes map by map in batches; each row succeeds or fails as a whole.

A row that fails affects no other row. Entries that it wrote before it failed are not reachable from any frontend; the
sweep deletes them after the grace period. Map by map means that a failure of one map fails exactly the rows with an
entry in it, and that the maps which later ones refer to are written first (``manifest.ORDER``), the frontends last.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, new_plans, plans
from isthmus.datapath.services.audit import audit
from isthmus.datapath.services.grace_queue import GraceQueue
from isthmus.datapath.services.installed import Installed, State, Unit
from isthmus.datapath.services.manifest import ORDER
from isthmus.datapath.services.new_plans import NewPlans, is_plain
from isthmus.datapath.services.plans import Change
from isthmus.model.balancing import Plan, PlanKey
from isthmus.statedb import Growth

_LEAST_WAIT = 0.2
Entries = dict[bytes, bytes]


class PlanTarget:
    """Writes plans into the maps. ``state`` mirrors the maps' content; it is restored before the first call.

    ``beside``: the growth of the tables that the plans come from."""

    def __init__(
        self,
        maps: Maps,
        state: State,
        *,
        grace: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        beside: Growth | None = None,
    ) -> None:
        self.state = state
        self._maps = maps
        self._grace = grace
        self._growth = Growth(beside=beside)
        self._grace_queue = GraceQueue(maps, state, grace=grace, clock=clock)

    def __repr__(self) -> str:
        return f"<PlanTarget: {self.state!r}, {self._grace_queue!r}>"

    async def update(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Write these plans into the maps; returns the failures by key."""
        failures: dict[PlanKey, str] = {}
        if changes := self._changes(rows, failures):
            frontends = self._write(changes, failures)
            self._flip(frontends, changes, failures)
        self._growth.look(self.state.dicts())
        if away := [row for row in rows if not row.frontends]:
            failures.update(await self.delete(away))
        return failures

    def _changes(self, rows: Sequence[Plan], failures: dict[PlanKey, str]) -> dict[PlanKey, Change]:
        """The changes to rows that have frontends, new ones written; failures get those that are refused."""
        new: list[Plan] = []
        changed: list[Plan] = []
        for row in rows:  # hot:
            if row.frontends:
                (new if is_plain(row) and row.key not in self.state.units else changed).append(row)
        changes = self._install(new_plans.new_plans(self.state, new)) if new else {}
        for row in changed:
            try:
                changes[row.key] = plans.change(self.state, row)
            except plans.Refused as why:
                failures[row.key] = str(why)
        return changes

    def _install(self, new: NewPlans) -> dict[PlanKey, Change]:
        """Write new plans; what is left to do where a write failed: to write them as changes, and see whose it is."""
        for name in ORDER:
            if (entries := new.entries.get(name)) and self._maps.put(name, entries):
                return new_plans.changes(self.state, new)
        new_plans.commit(self.state, new)
        return {}

    async def delete(self, rows: Sequence[Plan]) -> Mapping[PlanKey, str]:
        """Delete these plans from the maps; returns the failures by key. Frontends that another plan took over stay."""
        return self._delete([row.key for row in rows])

    async def prune(self, rows: Iterable[Plan]) -> str:
        """Delete plans that no row wants and entries that ``state`` lacks; write again what another process changed."""
        wanted = {row.key: row for row in rows if row.frontends}
        unwanted = [key for key in self.state.units if key not in wanted]
        failures = self._delete(unwanted)
        known = {key for unit in self.state.units.values() for key in unit.frontends}
        self._drop_frontends([key for key in self.state.frontends if key not in known])
        orphans = self._retire_orphans()
        self.state.release_unheld()
        self.state.forget_services(self.state.strays)
        self.state.strays = []
        strays, repaired = await self._repair(wanted)
        said = f"pruned {len(unwanted)} services, {orphans} plans, {strays} entries"
        said += f", repaired {repaired}" if repaired else ""
        return f"{said}, {len(failures)} failed" if failures else said

    async def _repair(self, wanted: Mapping[PlanKey, Plan]) -> tuple[int, int]:
        """Compare the maps with ``state``: (unknown entries deleted, services written again)."""
        leaving, stale = self._grace_queue.services(), self._grace_queue.stale()
        found = audit(self.state, self._maps, leaving=leaving, stale=stale)
        for name, keys in found.strays.items():
            if keys:
                self._maps.drop(name, keys)
        damaged = [wanted[key] for key in sorted(found.damaged) if key in wanted]
        if damaged:
            await self.update(damaged)
        return sum(map(len, found.strays.values())), len(damaged)

    async def sweep(self) -> None:
        """Delete retired entries as their grace period ends, for ever."""
        while True:
            self.sweep_due()
            await asyncio.sleep(max(self._grace, _LEAST_WAIT) / 4)

    def sweep_due(self) -> int:
        """Delete the entries whose grace period has ended; returns how many."""
        return self._grace_queue.sweep()

    # Writing

    def _write(self, changes: Mapping[PlanKey, Change], failures: dict[PlanKey, str]) -> Entries:  # hot:
        """Write all but the frontends: a new plan is not reachable yet, one changed in place flips with its entry.

        Gives the frontends to write.
        """
        entries = _entries(changes, failures)
        for name in ORDER[:-1]:
            if self._put(name, entries[name], changes, failures):
                entries = _entries(changes, failures)
            if name == "services":
                self._mark_services(changes, failures)
        left: list[tuple[PlanKey, Installed, int]] = []
        held: list[int] = []
        for key, change in changes.items():
            if key in failures:
                self._abort(change)
            elif change.unit.current is None:  # a new unit: nothing of it leaves
                plan = change.unit.current = self.state.plans[change.plan.id] = change.plan
                for group in plan.slots:
                    held += group
            else:
                left += [(key, change.plan, number) for number in self._commit(change)]
        self.state.hold(held)
        if left:
            self._drop_members(left, failures)
            entries = _entries(changes, failures) if failures else entries
        return entries["frontends"]

    def _flip(self, entries: Entries, changes: Mapping[PlanKey, Change], failures: dict[PlanKey, str]) -> None:  # hot:
        """Point the frontends to their plans; then retire the plans that no frontend points to."""
        live = {key: change for key, change in changes.items() if key not in failures} if failures else changes
        failed = self._put("frontends", entries, live, failures)
        plan_of = codecs.FRONTEND.unpack
        known, installed = self.state.frontends, self.state.plans
        for entry, value in entries.items():  # what was written, and all of it before a unit drops what is not its own
            if entry not in failed:
                known[entry] = installed[plan_of(value)[-1]].id  # the plan's own number: 28 bytes less
        for key, change in live.items():
            unit, called = change.unit, change.frontends
            if key not in failures and unit.frontends in ((), called):
                unit.frontends = called
            elif why := self._settle(unit, called):
                failures[key] = why
            if unit.older and key not in failures:
                self._grace_queue.retire(unit.older)
                unit.older = ()

    def _settle(self, unit: Unit, wanted: Sequence[bytes]) -> str:
        """Drop a unit's unwanted frontends and record which it has; returns why one could not be dropped, or ""."""
        known, ours = self.state.frontends, unit.plan_ids()
        leaving = [key for key in unit.frontends if key not in wanted and known.get(key) in ours]
        left = self._drop_frontends(leaving) if leaving else {}
        unit.frontends = tuple(key for key in {*unit.frontends, *wanted} if known.get(key) in ours)
        return next(iter(left.values()), "")

    def _put(
        self, name: str, entries: Entries, changes: Mapping[PlanKey, Change], failures: dict[PlanKey, str]
    ) -> Mapping[bytes, str]:
        """Write one map's entries; returns the failures by entry. Every change with a failed entry fails."""
        if not entries:
            return {}
        keys = list(entries)
        failed = {keys[position]: why for position, why in self._maps.put(name, list(entries.items())).items()}
        if failed:
            for key, change in changes.items():
                if whys := [failed[entry] for of, entry, _ in change.puts if of == name and entry in failed]:
                    failures.setdefault(key, whys[0])
        self._mark_written(name, [key for key in keys if key not in failed] if failed else keys)
        return failed

    def _mark_written(self, name: str, held: Sequence[bytes]) -> None:
        if name == "backends":
            backends, unpack = self.state.backends, ID.unpack
            for key in held:  # hot:
                backends[unpack(key)[0]].written = True
        elif name == "clusters":
            numbers = {ID.unpack(key)[0] for key in held}
            for cluster in self.state.clusters.values():
                cluster.written = cluster.written or cluster.id in numbers

    def _mark_services(self, changes: Mapping[PlanKey, Change], failures: Mapping[PlanKey, str]) -> None:
        for key, change in changes.items():  # hot:
            unit = change.unit
            if not unit.written:
                unit.written = key not in failures

    def _commit(self, change: Change) -> Sequence[int]:
        """Make a change the unit's present; returns the backends that are no longer members."""
        unit, plan, state = change.unit, change.plan, self.state
        old, edits = unit.current, change.edits
        unit.current = state.plans[plan.id] = plan
        if edits is None or old is None:
            if old is not None:
                unit.older = (*unit.older, old)
            state.hold([number for group in plan.slots for number in group])
            return ()
        state.hold([number for edit in edits for _, number in edit.writes])
        freed = [number for edit, group in zip(edits, old.slots, strict=True) for number in edit.freed(group)]
        sizes = list(map(len, old.slots))
        plan.slots = tuple([edit.applied(group) for edit, group in zip(edits, old.slots, strict=True)])
        if freed:
            stale = [(g, n) for g, edit in enumerate(edits) for n in range(edit.size, sizes[g])]
            self._grace_queue.shrink(plan, stale=stale, freed=freed)
        return [number for number in dict.fromkeys(freed) if not plan.has(number)] if plan.has_members else ()

    def _abort(self, change: Change) -> None:
        """Take back a failed change: two cases.

        A new plan is not reachable and is retired. A plan that was changed in place may have slots of both versions:
        it keeps the references of both, until a new plan replaces it.
        """
        current, edits = change.unit.current, change.edits
        if edits is None or current is None:
            self.state.plans[change.plan.id] = change.plan
            self.state.hold([number for group in change.plan.slots for number in group])
            self._grace_queue.retire([change.plan])
        else:
            held = [number for edit in edits for _, number in edit.writes]
            self.state.hold(held)
            current.suspect(extents=[edit.size for edit in edits], extra=held)

    def _drop_members(self, left: Sequence[tuple[PlanKey, Installed, int]], failures: dict[PlanKey, str]) -> None:
        """Delete members at once, without grace: a client with affinity must not stay with a backend that has left."""
        keys = [codecs.MEMBER_KEY.pack(plan.id, number) for _, plan, number in left]
        for position, why in (self._maps.drop("members", keys) if keys else {}).items():
            key, plan, number = left[position]
            plan.suspect(extra=[number])
            self.state.hold([number])
            failures[key] = why

    # Taking away

    def _delete(self, keys: Iterable[PlanKey]) -> dict[PlanKey, str]:
        state = self.state
        units = [*filter(None, map(state.units.pop, keys, repeat(None)))]
        known = state.frontends
        owners: dict[bytes, Unit] = {}
        for unit in units:  # hot:
            current = unit.current
            ours = (current.id,) if current is not None and not unit.older else unit.plan_ids()
            for entry in unit.frontends:
                if known.get(entry) in ours:
                    owners[entry] = unit
        failed = {owners[entry]: why for entry, why in self._drop_frontends([*owners]).items()}
        state.units.update((unit.key, unit) for unit in failed)
        retired: list[Installed] = []
        services: list[tuple[int, PlanKey]] = []
        for unit in [unit for unit in units if unit not in failed] if failed else units:  # hot:
            if unit.older:
                retired += unit.older
            if unit.current is not None:
                retired.append(unit.current)
            services.append((unit.service, unit.key))
        self._grace_queue.retire(retired, services=services)
        return {unit.key: why for unit, why in failed.items()}

    def _retire_orphans(self) -> int:
        known = {number for unit in self.state.units.values() for number in unit.plan_ids()}
        known |= self._grace_queue.retired()
        orphans = [plan for plan in self.state.plans.values() if plan.id not in known]
        self._grace_queue.retire(orphans)
        return len(orphans)

    def _drop_frontends(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        """Delete frontends; returns the failures by key."""
        failed = self._maps.drop("frontends", keys) if keys else {}
        dropped = [key for position, key in enumerate(keys) if position not in failed] if failed else keys
        deque(map(self.state.frontends.pop, dropped, repeat(None)), maxlen=0)
        return {keys[position]: why for position, why in failed.items()}


def _entries(changes: Mapping[PlanKey, Change], failures: Mapping[PlanKey, str]) -> dict[str, Entries]:  # hot:
    """The entries to write, by map, of the changes that have not failed. An entry that several have is written once."""
    found: dict[str, Entries] = {name: {} for name in ORDER}
    for key, change in changes.items():
        if key not in failures:
            for name, entry, value in change.puts:
                found[name][entry] = value
    return found
