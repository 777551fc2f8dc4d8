"""One round of plan rows, decided without I/O: which entries to write, and what the maps hold once they are written.

1. :func:`prepare` computes the entries of each map. The target writes them in ``manifest.ORDER`` and reports refused
   entries to :meth:`Batch.fail`, which leaves the entries of failed changes out of the later maps.
2. :func:`settle` records in the state what was written, and returns what the round leaves behind.
3. The target deletes the members and frontends that no connect must find any more, and :func:`finish` records that.

A change fails as a whole, in one of two ways. Before its frontends: the plan that was in effect stays in effect. At a
frontend: the new plan is in effect, and the older ones stay as long as a frontend points to them. Either way the row is
tried again from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

from isthmus.datapath.services import codecs, new_plans, plans
from isthmus.datapath.services.installed import Installed, State, Unit
from isthmus.datapath.services.manifest import ORDER
from isthmus.datapath.services.new_plans import Entry, NewPlans, is_plain
from isthmus.datapath.services.plans import Change
from isthmus.model.balancing import Plan, PlanKey
from isthmus.statedb import describe_bug


class Batch:
    """The changes of one round and their entries by map."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.new: NewPlans | None = None
        """Plain new plans; converted to changes as soon as one of their writes fails."""
        self.changes: dict[PlanKey, Change] = {}
        self.failures: dict[PlanKey, str] = {}
        """Reasons for which rows were refused, or their writes failed, by key."""
        self.aborted: Collection[PlanKey] = ()
        """Changes that failed before their frontends."""
        self.unflipped: Collection[bytes] = ()
        """Frontends that could not be written."""
        self.entries: dict[str, list[Entry]] = {}

    def collect(self) -> None:  # hot:
        """Compute ``entries`` from the changes that have not failed. Changes may share an entry."""
        new = self.new.entries if self.new is not None else {}
        if not self.changes:
            self.entries = {name: new.get(name, []) for name in ORDER}
            return
        entries = {name: dict(new.get(name, ())) for name in ORDER}
        frontends = entries["frontends"]
        for key, change in self.changes.items():
            if key not in self.failures:
                for name, entry, value in change.puts:
                    entries[name][entry] = value
                for entry in change.flips:
                    frontends[entry] = codecs.frontend(entry, plan=change.plan.id)
        self.entries = {name: [*each.items()] for name, each in entries.items()}

    def fail(self, name: str, positions: Mapping[int, str]) -> None:
        """Record refused entries of a map. Every change with one of them fails."""
        refused = {self.entries[name][position][0]: reason for position, reason in positions.items()}
        if self.new is not None:
            self.changes = {**new_plans.changes(self.state, self.new), **self.changes}
            self.new = None
        for key, change in self.changes.items():
            written = change.flips if name == "frontends" else [entry for put, entry, _ in change.puts if put == name]
            for entry in written:
                if entry in refused:
                    self.failures.setdefault(key, refused[entry])
        if name == "frontends":
            self.unflipped = refused
        else:
            self.aborted = set(self.failures)
            self.collect()


class Leaving(Struct, gc=False):
    """Entries to delete after a round: members and frontends at once, the rest after the grace period."""

    failures: dict[PlanKey, str] = {}
    members: dict[bytes, tuple[Unit, int]] = {}
    """(unit, backend) by key. A client with affinity must leave a removed backend at once."""
    frontends: dict[bytes, PlanKey | None] = {}
    """Owner by key; ``None`` if it belongs to no unit."""
    changed: list[Unit] = []
    """Units with older plans or with frontends to delete."""
    withdrawn: Sequence[Unit] = ()
    plans: list[Installed] = []
    """Plans to which no frontend points."""
    services: list[tuple[int, PlanKey]] = []
    """(number, key) of the services that end with them."""
    slots: list[tuple[int, int, int]] = []
    """(plan, group, n) of slots beyond a group's count, after changes in place."""
    references: list[int] = []
    """Backends of slots that changes in place overwrote or cut off."""
    due: float = 0.0
    """End of the grace period."""

    def fail(self, name: str, positions: Mapping[int, str]) -> None:
        """Record entries that could not be deleted: their units fail and keep them."""
        keys = list(self.members if name == "members" else self.frontends)
        for position, reason in positions.items():
            if name == "members":
                unit, number = self.members[keys[position]]
                assert unit.current is not None
                unit.current.suspect(references=[number])
                self.references.remove(number)
                self.failures[unit.key] = reason
            else:
                owner = self.frontends.pop(keys[position])
                if owner is not None:
                    self.failures[owner] = reason


def prepare(state: State, rows: Iterable[Plan]) -> Batch:  # hot:
    """Compute the changes to rows with frontends. New ids are allocated; the rest of the state is unchanged."""
    batch, new, changed = Batch(state), list[Plan](), list[Plan]()
    for row in rows:
        if row.frontends:
            (new if is_plain(row) and row.key not in state.units else changed).append(row)
    if new:
        try:
            batch.new = new_plans.new_plans(state, new)
        except Exception:  # one of them caused it: handle each by itself
            changed = new + changed
    for row in changed:
        try:
            batch.changes[row.key] = plans.change(state, row)
        except plans.Refused as refusal:
            batch.failures[row.key] = str(refusal)
        except MemoryError:
            raise
        except Exception as error:
            batch.failures[row.key] = describe_bug(error)
    batch.collect()
    return batch


def settle(batch: Batch) -> Leaving:  # hot:
    """Record in the state what was written."""
    state, leaving = batch.state, Leaving(batch.failures)
    if batch.new is not None:
        new_plans.commit(state, batch.new)
    live: list[Change] = []
    for key, change in batch.changes.items():
        if key in batch.aborted:
            _abort(state, change, leaving)
            continue
        _commit(state, change, leaving)
        live.append(change)
        for entry in change.flips:
            if entry not in batch.unflipped:
                state.frontends[entry] = change.plan.id
    for change in live:  # after all writes: a frontend that another unit took over is not deleted
        unit, current = change.unit, change.frontends
        if unit.frontends not in ((), current) or unit.key in batch.failures:
            plan_ids = unit.plan_ids()
            owned = [entry for entry in {*unit.frontends, *current} if state.frontends.get(entry) in plan_ids]
            leaving.frontends.update((entry, unit.key) for entry in owned if entry not in current)
            current = tuple(owned)
        if unit.previous or current is not change.frontends:
            leaving.changed.append(unit)
        unit.frontends = current
    return leaving


def _commit(state: State, change: Change, leaving: Leaving) -> None:  # hot:
    """Make a change the unit's current state."""
    unit, plan, edits, old = change.unit, change.plan, change.edits, change.unit.current
    unit.current = state.plans[plan.id] = plan
    unit.written = True
    if edits is None or old is None:
        if old is not None:
            unit.previous = (*unit.previous, old)
        state.hold_written(plan.references())
        return
    state.hold_written([number for edit in edits for _, number in edit.writes])
    released = [number for edit, group in zip(edits, old.slots, strict=True) for number in edit.released(group)]
    sizes = list(map(len, old.slots))
    plan.slots = tuple([edit.applied(group) for edit, group in zip(edits, old.slots, strict=True)])
    leaving.references += released
    leaving.slots += [(plan.id, g, n) for g, edit in enumerate(edits) for n in range(edit.size, sizes[g])]
    if plan.has_members:
        member = codecs.MEMBER_KEY.pack
        leaving.members.update((member(plan.id, n), (unit, n)) for n in dict.fromkeys(released) if not plan.has(n))


def _abort(state: State, change: Change, leaving: Leaving) -> None:
    """Undo a change that failed before its frontends. Two cases:

    A new plan is not reachable and is retired. A plan that was changed in place may have slots of both versions: it
    keeps the references of both until a new plan replaces it.
    """
    current, edits = change.unit.current, change.edits
    if edits is None or current is None:
        state.plans[change.plan.id] = change.plan
        state.hold(change.plan.references())
        leaving.plans.append(change.plan)
    else:
        references = [number for edit in edits for _, number in edit.writes]
        state.hold(references)
        current.suspect(extents=[edit.size for edit in edits], references=references)


def withdraw(state: State, keys: Iterable[PlanKey]) -> Leaving:  # hot:
    """Take units out of the state. Frontends that another unit took over stay."""
    frontends = state.frontends
    leaving = Leaving(withdrawn=[*filter(None, map(state.units.pop, keys, repeat(None)))])
    for unit in leaving.withdrawn:
        current = unit.current
        plan_ids = (current.id,) if current is not None and not unit.previous else unit.plan_ids()
        for entry in unit.frontends:
            if frontends.get(entry) in plan_ids:
                leaving.frontends[entry] = unit.key
    return leaving


def orphans(state: State, waiting: Iterable[Leaving]) -> Leaving:
    """Frontends and plans without a unit, except those that wait for the end of their grace period."""
    units = state.units.values()
    owned = {entry for unit in units for entry in unit.frontends}
    retained = {number for unit in units for number in unit.plan_ids()}
    retained.update(plan.id for leaving in waiting for plan in leaving.plans)
    return Leaving(
        frontends=dict.fromkeys([entry for entry in state.frontends if entry not in owned]),
        plans=[plan for plan in state.plans.values() if plan.id not in retained],
    )


def finish(state: State, leaving: Leaving) -> None:  # hot:
    """Record the deletions of members and frontends, and add the plans and services of units that have not failed."""
    frontends, failures = state.frontends, leaving.failures
    deque(map(frontends.pop, leaving.frontends, repeat(None)), maxlen=0)
    for unit in leaving.changed:
        unit.frontends = tuple([entry for entry in unit.frontends if entry in frontends])
        if unit.previous and unit.key not in failures:
            leaving.plans += unit.previous
            unit.previous = ()
    for unit in leaving.withdrawn:
        if failures and unit.key in failures:
            state.units[unit.key] = unit
            continue
        if unit.previous:
            leaving.plans += unit.previous
        if unit.current is not None:
            leaving.plans.append(unit.current)
        leaving.services.append((unit.service, unit.key))
