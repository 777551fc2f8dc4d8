"""A plan row → the map entries to write. Pure except for the allocation of ids.

There are two ways. In place: slots are written first, then the plan's counts; replaced backends and slots beyond a
count stay for the grace period. As a new plan: everything is written under a new id, then the frontends are pointed to
it. Either way a connect finds a backend of the old or the new plan at every moment between two writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from isthmus.datapath.core import shapes
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, rings
from isthmus.datapath.services.installed import Backend, Installed, State, Unit
from isthmus.datapath.services.moves import Edit, Many, moves
from isthmus.model.balancing import Group, Plan, Target
from isthmus.model.chunked import Chunked, difference

SMALL = 16
MOST_WEIGHT = 1 << 24
_NOBODY: frozenset[int] = frozenset()
NO_SKIP: frozenset[bytes] = frozenset()
ALONE = ((0, 1),)
"""The (tier, weight) of a single default group, shared by nearly all plans."""
Put = tuple[str, bytes, bytes]
"""Map, key, value."""


class Refused(Exception):  # noqa: N818
    """A plan that does not fit into the maps; the message is the reason."""


class Change(Struct, gc=False):
    """Change of one unit to its row: the entries to write, and the plan afterwards. The unit changes after the writes.

    Two cases. Without ``edits``, ``plan`` is a new plan and all its slots are written. With edits, one for each group,
    ``plan`` replaces the unit's current plan under the same id; it has the old slots until the edits are applied.
    """

    unit: Unit
    plan: Installed
    puts: list[Put]
    """Entries to write, except the frontends; the manifest gives the order of maps."""
    frontends: tuple[bytes, ...] = ()
    flips: Sequence[bytes] = ()
    """Frontends that do not point to the plan yet."""
    edits: tuple[Edit, ...] | None = None


def change(state: State, row: Plan) -> Change:  # hot:
    """The change from the current maps to a row; without puts if they agree. Refused leaves the state unchanged.

    Allocates ids for a new unit, plan, backend or cluster. Nothing else changes before the writes.
    """
    groups = _groups(row)
    unit = state.unit(row.key)
    awaited = _awaited(state, unit, row) if row.awaited else _NOBODY
    if awaited:
        groups = groups or (Group(()),)
    flags = codecs.PLAN_AFFINITY if row.affinity == "ClientIP" else 0
    timeout = row.affinity_timeout if flags else 0
    flags |= codecs.PLAN_DATAGRAMS if row.key.protocol == "UDP" else 0
    flags |= (codecs.PLAN_CONSISTENT if row.consistent else 0) | (codecs.PLAN_SKIP if row.skip else 0)
    flags |= (codecs.PLAN_CONSUMERS if row.consumers else 0) | (codecs.PLAN_OTHERS if row.consumers_only else 0)
    skip = frozenset(map(shapes.address, row.skip)) if row.skip else NO_SKIP
    plan = Installed(0, unit.service, flags, timeout, _shares(groups), (), skip, restored=awaited)
    plan.ejection = codecs.ejection(row.ejection or state.ejection)
    plan.consumers = _consumers(state, row) if row.consumers else ()
    targets = [group.targets for group in groups]
    result = _in_place(state, unit, plan, targets) or _anew(state, unit, plan, targets)
    result.frontends = tuple(sorted([codecs.frontend_key(key) for key in row.frontends]))
    number, frontends = result.plan.id, state.frontends
    result.flips = [key for key in result.frontends if frontends.get(key) != number]
    if not unit.written:
        result.puts.append(of_unit(unit))
    return result


def of_unit(unit: Unit) -> Put:
    """The entry that names a unit."""
    return "services", ID.pack(unit.service), codecs.SERVICE.pack(str(unit.key).encode())


def _shares(groups: Sequence[Group]) -> tuple[tuple[int, int], ...]:
    shares = tuple([(group.tier, group.weight) for group in groups])
    return ALONE if shares == ALONE else shares  # nearly all plans share this object


def _numbers(state: State, targets: Sequence[Target]) -> tuple[int, ...]:  # hot:
    """Backend ids of targets, without duplicates, in order; backends of new targets have no reference yet."""
    lookup = state.by_target.get
    if len(targets) == 1:
        return ((lookup(targets[0]) or state.backend(targets[0])).id,)
    numbers = tuple([(lookup(target) or state.backend(target)).id for target in targets])
    return numbers if len(numbers) < 2 else tuple(dict.fromkeys(numbers))


def _consumers(state: State, row: Plan) -> tuple[tuple[int, int], ...]:
    """(namespace hash, backend id) of a plan's consumers; backends of new targets have no reference yet."""
    targets = (
        (each.namespace, state.by_target.get(each.target) or state.backend(each.target)) for each in row.consumers
    )
    return tuple(sorted((codecs.namespace_hash(namespace), backend.id) for namespace, backend in targets))


def _awaited(state: State, unit: Unit, row: Plan) -> frozenset[int]:
    """Restored backends of clusters whose first list is not complete yet; they stay until it is."""
    if unit.current is None:
        return _NOBODY
    awaited = {name.rpartition("/")[2] for name in row.awaited}
    return frozenset(n for n in unit.current.restored if state.backends[n].target.cluster in awaited)


def _desired(state: State, plan: Installed, targets: Sequence[Sequence[Target]]) -> list[tuple[int, ...]]:
    """The backend ids of each group. Restored backends that no group has are appended to the first."""
    desired = [_numbers(state, each) for each in targets]
    if plan.restored:
        listed = {number for group in desired for number in group}
        desired[0] = (*desired[0], *sorted(plan.restored - listed))
    return desired


def _groups(row: Plan) -> Sequence[Group]:
    if len(row.groups) > codecs.MAX_GROUPS:
        raise Refused(f"{len(row.groups)} groups of backends; the datapath has room for {codecs.MAX_GROUPS}")
    for group in row.groups:
        if group.weight > MOST_WEIGHT or group.weight < 0:
            raise Refused(f"the weight of a group is not between 0 and {MOST_WEIGHT}")
    return row.groups if len(row.groups) < 2 else sorted(row.groups, key=lambda group: group.tier)


def _anew(state: State, unit: Unit, plan: Installed, targets: Sequence[Sequence[Target]]) -> Change:  # hot:
    plan.id = state.plan_ids.take()
    try:
        return Change(unit, plan, _all_puts(state, plan, targets))
    except BaseException:
        state.plan_ids.release([plan.id])
        raise


def _all_puts(state: State, plan: Installed, targets: Sequence[Sequence[Target]]) -> list[Put]:  # hot:
    """Every entry of a new plan; sets its slots."""
    desired = _desired(state, plan, targets)
    plan.slots = tuple([numbered(numbers, each) for numbers, each in zip(desired, targets, strict=True)])
    puts: list[Put] = []
    for g, group in enumerate(plan.slots):
        puts += of_slots(state, plan, [(g, n, number) for n, number in enumerate(group)])
    if plan.has_members:
        puts += _members(state, plan, plan.members())
        puts += [("rings", *entry) for entry in rings.entries(state, plan)]
    if plan.skip:
        puts += [("skips", codecs.SKIP_KEY.pack(address, plan.id), codecs.SKIPPED) for address in sorted(plan.skip)]
    for namespace, number in plan.consumers:
        puts += _unwritten(state.backends[number])
        puts.append(("consumers", *consumer(state, plan, namespace, number)))
    puts.append(("plans", ID.pack(plan.id), plan.value(state.next_generation())))
    return puts


def numbered(numbers: tuple[int, ...], targets: Sequence[Target]) -> Sequence[int]:
    """The slots of a group: a Many for a large group, unless it also has restored backends."""
    many = _chunked(numbers, targets)
    return numbers if many is None else Many(list(numbers), many)


def _chunked(numbers: Sequence[int], targets: Sequence[Target]) -> Chunked[Target] | None:
    return targets if isinstance(targets, Chunked) and len(targets) == len(numbers) else None


def _in_place(state: State, unit: Unit, plan: Installed, targets: Sequence[Sequence[Target]]) -> Change | None:
    """The change of the current plan in place, or ``None`` if a new plan is needed; ``plan`` becomes its successor."""
    old = unit.current
    if old is None or old.doubt or old.flags != plan.flags or old.skip != plan.skip or _tiers(old) != _tiers(plan):
        return None
    if old.consumers != plan.consumers:
        return None
    edits = _edits(state, old, plan, targets)
    writes = [(g, n, number) for g, edit in enumerate(edits) for n, number in edit.writes]
    if writes and old.shares != plan.shares:
        return None  # between the two writes a backend would get another one's share of calls
    same = old.shares == plan.shares and not any(map(Edit.changes, edits, old.slots))
    if plan.flags & codecs.PLAN_CONSISTENT and not same:
        return None  # a ring is only replaced as a whole
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
    """The edit of each group. For a large group only the difference between old and new targets is examined."""
    [*pairs] = zip(old.slots, targets, strict=True)
    if not plan.restored and all(isinstance(a, Many) and isinstance(b, Chunked) for a, b in pairs):
        return tuple([_edit(state, group, each) for group, each in pairs])
    desired = _desired(state, plan, targets)
    return tuple(
        [
            moves(tuple(group), numbers, _chunked(numbers, each))
            for (group, each), numbers in zip(pairs, desired, strict=True)
        ]
    )


def _edit(state: State, group: Any, targets: Any) -> Edit:
    """The edit of a large group. Every removed target still has a backend id, held by its slot."""
    removed, added = difference(group.targets, targets)
    leaving = [state.by_target[target].id for target in removed]
    joining = [(state.by_target.get(target) or state.backend(target)).id for target in added]
    edit: Edit = group.edit(leaving, joining, targets)
    return edit


def _tiers(plan: Installed) -> list[int]:
    return [tier for tier, _ in plan.shares]


def of_slots(state: State, plan: Installed, slots: Iterable[tuple[int, int, int]]) -> list[Put]:  # hot:
    """Entries of slots (group, n, backend), and of their backends and clusters that are not written yet, which several
    changes may share."""
    puts: list[Put] = []
    for group, n, number in slots:
        backend = state.backends[number]
        if not (backend.written and backend.cluster.written):
            puts += _unwritten(backend)
        value = codecs.SLOT.pack(plan.id, number, backend.generation)
        puts.append(("slots", codecs.SLOT_KEY.pack(plan.id, group, n), value))
    return puts


def _unwritten(backend: Backend) -> list[Put]:
    """The entries of a backend and its cluster that are not written yet; a cluster's entry implies its backend's."""
    cluster = backend.cluster
    if backend.written and cluster.written:
        return []
    put = ("backends", ID.pack(backend.id), backend.value())
    if cluster.written:
        return [put]
    return [put, ("clusters", ID.pack(cluster.id), codecs.CLUSTER.pack(cluster.name.encode()))]


def consumer(state: State, plan: Installed, namespace: int, number: int) -> tuple[bytes, bytes]:
    """The entry of ``consumers`` that gives callers of a namespace a backend of their own."""
    value = codecs.SLOT.pack(plan.id, number, state.backends[number].generation)
    return codecs.CONSUMER_KEY.pack(namespace, plan.id, 0), value


def _members(state: State, plan: Installed, numbers: Iterable[int]) -> list[Put]:
    return [
        ("members", codecs.MEMBER_KEY.pack(plan.id, number), codecs.MEMBER.pack(state.backends[number].generation))
        for number in sorted(numbers)
        if number != codecs.REFUSING
    ]
