"""A plan row → the map entries to write. Pure but for the ids that it allocates.

Two ways. In place: slots are written first, then the plan's counts; a backend that a slot lost and slots beyond a
count stay for the grace period. Under a new plan: everything is written under a new id, then the frontends are pointed
to it. Either way a connect finds a backend of the old plan or of the new at every moment between two writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from isthmus.datapath.core import shapes
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, rings
from isthmus.datapath.services.installed import Backend, Installed, State, Unit
from isthmus.datapath.services.moves import Edit, Many, moves
from isthmus.model.balancing import Ejection, Group, Plan, Target
from isthmus.model.chunked import Chunked, difference

SMALL = 16
MOST_WEIGHT = 1 << 24
MOST_TIME = 24 * 3600 * 1000
"""Of an ejection, in ms: the kernel doubles it in 64 bits."""
_NOBODY: frozenset[int] = frozenset()
NO_SKIP: frozenset[bytes] = frozenset()
ALONE = ((0, 1),)
"""The shares of one group, which nearly all plans have."""
Put = tuple[str, bytes, bytes]
"""Map, key, value."""


class Refused(Exception):  # noqa: N818
    """A plan that does not fit into the maps; the message is the reason."""


class Change(Struct, gc=False):
    """How one unit becomes its row: what to write, and what it is afterwards. The unit is changed when all is written.

    Two cases. Without ``edits``, ``plan`` is a new one, whose slots are written. With them, ``plan`` takes the place of
    the unit's present one under its id; its slots are the present ones until the edits are applied, one for each group.
    """

    unit: Unit
    plan: Installed
    puts: list[Put]
    """What to write; the order of maps is the manifest's."""
    frontends: tuple[bytes, ...] = ()
    edits: tuple[Edit, ...] | None = None


def change(state: State, row: Plan) -> Change:  # hot:
    """The change from the present maps to a row; no puts where they agree. Refused leaves the state unchanged.

    What has no number yet gets one: a unit, a plan, a backend, a cluster. Nothing else changes before the writes.
    """
    groups = _groups(row)
    unit = state.unit(row.key)
    awaited = _awaited(state, unit, row) if row.awaited else _NOBODY
    if awaited:
        groups = groups or (Group(()),)
    flags = codecs.PLAN_AFFINITY if row.affinity == "ClientIP" else 0
    timeout = row.affinity_timeout if flags else 0
    flags |= (codecs.PLAN_CONSISTENT if row.consistent else 0) | (codecs.PLAN_SKIP if row.skip else 0)
    skip = frozenset(map(shapes.address, row.skip)) if row.skip else NO_SKIP
    plan = Installed(0, unit.service, flags, timeout, _shares(groups), (), skip, restored=awaited)
    plan.ejection = ejection(row.ejection or state.ejection)
    targets = [group.targets for group in groups]
    found = _in_place(state, unit, plan, targets) or _anew(state, unit, plan, targets)
    found.frontends = tuple(sorted([codecs.frontend_key(key) for key in row.frontends]))
    number, known = found.plan.id, state.frontends
    for key in found.frontends:
        if known.get(key) != number:
            found.puts.append(("frontends", key, codecs.frontend(key, plan=number)))
    if not unit.written:
        found.puts.append(of_unit(unit))
    return found


def of_unit(unit: Unit) -> Put:
    """The entry that names a unit."""
    return "services", ID.pack(unit.service), codecs.SERVICE.pack(str(unit.key).encode())


@lru_cache(64)
def ejection(wanted: Ejection) -> tuple[int, int, int]:
    """As an entry has it: failures in a row, the first and the longest time in ms."""
    first, longest = (min(round(time * 1000), MOST_TIME) for time in (wanted.first, wanted.longest))
    return wanted.after, first, longest


def _shares(groups: Sequence[Group]) -> tuple[tuple[int, int], ...]:
    shares = tuple([(group.tier, group.weight) for group in groups])
    return ALONE if shares == ALONE else shares  # nearly all have one group: they share what it is


def _numbers(state: State, targets: Sequence[Target]) -> tuple[int, ...]:  # hot:
    """The backends of targets, each once and in their order; backends of new targets have no reference yet."""
    known = state.by_target.get
    if len(targets) == 1:
        return ((known(targets[0]) or state.backend(targets[0])).id,)
    numbers = tuple([(known(target) or state.backend(target)).id for target in targets])
    return numbers if len(numbers) < 2 else tuple(dict.fromkeys(numbers))


def _awaited(state: State, unit: Unit, row: Plan) -> frozenset[int]:
    """Backends that an earlier process left of clusters whose list is not complete yet: they stay until it is."""
    if unit.current is None:
        return _NOBODY
    awaited = {name.rpartition("/")[2] for name in row.awaited}
    return frozenset(n for n in unit.current.restored if state.backends[n].target.cluster in awaited)


def _wanted(state: State, plan: Installed, targets: Sequence[Sequence[Target]]) -> list[tuple[int, ...]]:
    """The backends of each group; those that are awaited are in the first, where no row has them."""
    wanted = [_numbers(state, each) for each in targets]
    if plan.restored:
        present = {number for group in wanted for number in group}
        wanted[0] = (*wanted[0], *sorted(plan.restored - present))
    return wanted


def _groups(row: Plan) -> Sequence[Group]:
    if len(row.groups) > codecs.MAX_GROUPS:
        raise Refused(f"{len(row.groups)} groups of backends; the datapath has room for {codecs.MAX_GROUPS}")
    for group in row.groups:
        if group.weight > MOST_WEIGHT or group.weight < 0:
            raise Refused(f"the weight of a group is not between 0 and {MOST_WEIGHT}")
    return row.groups if len(row.groups) < 2 else sorted(row.groups, key=lambda group: group.tier)


def _anew(state: State, unit: Unit, plan: Installed, targets: Sequence[Sequence[Target]]) -> Change:  # hot:
    plan.id = state.plan_ids.take()
    wanted = _wanted(state, plan, targets)
    plan.slots = tuple([numbered(numbers, each) for numbers, each in zip(wanted, targets, strict=True)])
    puts: list[Put] = []
    for g, group in enumerate(plan.slots):
        puts += of_slots(state, plan, [(g, n, number) for n, number in enumerate(group)])
    if plan.has_members:
        puts += _members(state, plan, plan.members())
        puts += [("rings", *entry) for entry in rings.entries(state, plan)]
    if plan.skip:
        puts += [("skips", codecs.SKIP_KEY.pack(address, plan.id), codecs.SKIPPED) for address in sorted(plan.skip)]
    puts.append(("plans", ID.pack(plan.id), plan.value(state.next_generation())))
    return Change(unit, plan, puts)


def numbered(numbers: tuple[int, ...], targets: Sequence[Target]) -> Sequence[int]:
    """The slots of a group: large ones as Many, unless they have more than their targets."""
    many = _chunked(numbers, targets)
    return numbers if many is None else Many(list(numbers), many)


def _chunked(numbers: Sequence[int], targets: Sequence[Target]) -> Chunked[Target] | None:
    return targets if isinstance(targets, Chunked) and len(targets) == len(numbers) else None


def _in_place(state: State, unit: Unit, plan: Installed, targets: Sequence[Sequence[Target]]) -> Change | None:
    """The change within the plan that is there, where that is small and known; plan becomes its successor."""
    old = unit.current
    if old is None or old.doubt or old.flags != plan.flags or old.skip != plan.skip or _tiers(old) != _tiers(plan):
        return None
    edits = _edits(state, old, plan, targets)
    writes = [(g, n, number) for g, edit in enumerate(edits) for n, number in edit.writes]
    if writes and old.shares != plan.shares:
        return None  # between the two writes a backend would be called with the share another had
    same = old.shares == plan.shares and not any(map(Edit.changes, edits, old.slots))
    if plan.flags & codecs.PLAN_CONSISTENT and not same:
        return None  # a ring changes whole
    sizes = tuple([edit.size for edit in edits])
    if len(writes) > max(SMALL, sum(sizes) // 2):
        return None
    plan.id, plan.slots = old.id, old.slots
    puts = of_slots(state, plan, writes)
    if plan.has_members:
        puts += _members(state, plan, {number for _, _, number in writes if not old.has(number)})
    if not same or (plan.timeout, plan.ejection) != (old.timeout, old.ejection):
        puts.append(("plans", ID.pack(plan.id), plan.value(state.next_generation(), sizes)))
    return Change(unit, plan, puts, edits=edits)


def _edits(state: State, old: Installed, plan: Installed, targets: Sequence[Sequence[Target]]) -> tuple[Edit, ...]:
    """What becomes of each group. Of a large one only what differs between the targets of both is looked at."""
    [*pairs] = zip(old.slots, targets, strict=True)
    if not plan.restored and all(isinstance(a, Many) and isinstance(b, Chunked) for a, b in pairs):
        return tuple([_edit(state, group, each) for group, each in pairs])
    wanted = _wanted(state, plan, targets)
    return tuple(
        [
            moves(tuple(group), numbers, _chunked(numbers, each))
            for (group, each), numbers in zip(pairs, wanted, strict=True)
        ]
    )


def _edit(state: State, group: Any, targets: Any) -> Edit:
    """The edit of one of many. Each target that goes has a number: the group's own slot holds it."""
    removed, added = difference(group.targets, targets)
    gone = [state.by_target[target].id for target in removed]
    come = [(state.by_target.get(target) or state.backend(target)).id for target in added]
    edit: Edit = group.edit(gone, come, targets)
    return edit


def _tiers(plan: Installed) -> list[int]:
    return [tier for tier, _ in plan.shares]


def of_slots(state: State, plan: Installed, slots: Iterable[tuple[int, int, int]]) -> list[Put]:  # hot:
    """Slots (group, n, backend) to write, and backends that no write has been seen for: several changes may have one,
    and its cluster."""
    puts: list[Put] = []
    for group, n, number in slots:
        backend = state.backends[number]
        if not (backend.written and backend.cluster.written):
            puts += _backend(backend)
        value = codecs.SLOT.pack(plan.id, number, backend.generation)
        puts.append(("slots", codecs.SLOT_KEY.pack(plan.id, group, n), value))
    return puts


def _backend(backend: Backend) -> list[Put]:
    """The entry of a backend, and of its cluster where no write has been seen for it."""
    cluster = backend.cluster
    put = ("backends", ID.pack(backend.id), backend.value())
    if cluster.written:
        return [put]
    return [put, ("clusters", ID.pack(cluster.id), codecs.CLUSTER.pack(cluster.name.encode()))]


def _members(state: State, plan: Installed, numbers: Iterable[int]) -> list[Put]:
    return [
        ("members", codecs.MEMBER_KEY.pack(plan.id, number), codecs.MEMBER.pack(state.backends[number].generation))
        for number in sorted(numbers)
    ]
