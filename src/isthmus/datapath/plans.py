"""A plan row → the changes that bring the maps there. Pure but for numbers and references taken from the state.

Two ways. In place: slots are written first, then the plan's counts; what a hole held and what lies beyond a count
stays for the grace period. Under a new plan: all of it is written where nobody looks yet, then the frontends are
flipped. Either way a connect finds a backend of the old plan or of the new at every moment between two writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from isthmus.datapath import codecs, rings
from isthmus.datapath.installed import Backend, Installed, Named, State, Unit
from isthmus.model.balancing import Group, Plan, Target

ORDER = ("services", "clusters", "backends", "slots", "members", "skips", "rings", "plans", "frontends")
SMALL = 16
MOST_WEIGHT = 1 << 24
_YES = codecs.ID.pack(1)
Entry = tuple[bytes, bytes]


class Refused(Exception):  # noqa: N818
    """A plan that the maps cannot hold; the message says why."""


class Change(Struct, kw_only=True, gc=False):
    """What brings one unit to its row. ``held`` were taken for it; ``freed`` go back when the grace period is over."""

    unit: Unit
    plan: Installed
    puts: dict[str, list[Entry]]
    backends: list[Backend]
    """Those of its slots to write that no write has been seen for."""
    held: list[int]
    freed: list[int]
    stale: list[tuple[int, int]]
    """(group, n) of slots beyond the new counts."""
    gone: set[int]
    """Backends that are members no more."""
    frontends: tuple[bytes, ...]
    in_place: bool


def change(state: State, row: Plan) -> Change:
    """The change from what is there to a row; nothing to write where they agree. Refused leaves the state as it was."""
    groups = _groups(row)
    unit = state.unit(str(row.key))
    awaited = _awaited(state, unit, row)
    wanted = [_numbers(state, group.targets) for group in groups]
    if awaited:
        groups, wanted = groups or [Group(())], wanted or [[]]
        present = {number for group in wanted for number in group}
        wanted[0] += sorted(awaited - present)
    sticky = codecs.PLAN_AFFINITY if row.affinity == "ClientIP" else 0
    flags = sticky | (codecs.PLAN_CONSISTENT if row.consistent else 0) | (codecs.PLAN_SKIP if row.skip else 0)
    plan = Installed(
        0,
        service=unit.name.id,
        flags=flags,
        timeout=row.affinity_timeout if sticky else 0,
        shares=tuple((group.tier, group.weight) for group in groups),
        slots=wanted,
        skip=frozenset(map(codecs.address, row.skip)),
    )
    plan.restored = awaited
    found = _in_place(state, unit, plan) or _anew(state, unit, plan)
    found.frontends = tuple(sorted(map(codecs.frontend_key, row.frontends)))
    number, known = found.plan.id, state.frontends
    found.puts["frontends"] = [
        (key, codecs.frontend(key, plan=number)) for key in found.frontends if known.get(key) != number
    ]
    _names(found)
    return found


def _numbers(state: State, targets: Sequence[Target]) -> list[int]:  # hot:
    """The backends of targets, each once and in their order; those of new targets nobody holds yet."""
    known = state.by_target
    found = [known[target].id if target in known else state.backend(target).id for target in targets]
    return found if len(found) < 2 else list(dict.fromkeys(found))


def _awaited(state: State, unit: Unit, row: Plan) -> frozenset[int]:
    """What an earlier process left of clusters that have not been heard from: it stays until they have."""
    if not row.awaited or unit.current is None:
        return frozenset()
    awaited = {name.rpartition("/")[2] for name in row.awaited}
    return frozenset(n for n in unit.current.restored if state.backends[n].target.cluster in awaited)


def _groups(row: Plan) -> list[Group]:
    if len(row.groups) > codecs.MAX_GROUPS:
        raise Refused(f"{len(row.groups)} groups of backends; the datapath has room for {codecs.MAX_GROUPS}")
    if any(group.weight > MOST_WEIGHT or group.weight < 0 for group in row.groups):
        raise Refused(f"the weight of a group is not between 0 and {MOST_WEIGHT}")
    return sorted(row.groups, key=lambda group: group.tier)


def _anew(state: State, unit: Unit, plan: Installed) -> Change:
    plan.id = state.plan_ids.take()
    state.plans[plan.id] = plan
    slots = [(g, n, number) for g, group in enumerate(plan.slots) for n, number in enumerate(group)]
    for _, _, number in slots:
        state.backends[number].refs += 1
    return Change(
        unit=unit,
        plan=plan,
        puts={
            "slots": [_slot(state, plan.id, *slot) for slot in slots],
            "members": [_member(state, plan.id, number) for number in sorted(plan.members())],
            "skips": [(codecs.SKIP_KEY.pack(address, plan.id), _YES) for address in sorted(plan.skip)],
            "rings": rings.entries(state, plan),
            "plans": [(codecs.ID.pack(plan.id), plan.value(state.next_generation()))],
        },
        backends=_unwritten(state, (number for _, _, number in slots)),
        held=[],
        freed=[],
        stale=[],
        gone=set(),
        frontends=(),
        in_place=False,
    )


def _in_place(state: State, unit: Unit, plan: Installed) -> Change | None:
    """The change within the plan that is there, where that is small and known; plan becomes its successor."""
    old = unit.current
    if old is None or not old.sure or old.flags != plan.flags or old.skip != plan.skip or _tiers(old) != _tiers(plan):
        return None
    moves = [_moves(before, after) for before, after in zip(old.slots, plan.slots, strict=True)]
    writes = [(g, n, number) for g, (_, written) in enumerate(moves) for n, number in written]
    if writes and old.shares != plan.shares:
        return None  # between the two writes a backend would be called with the share another had
    same = ([slots for slots, _ in moves], plan.shares) == (old.slots, old.shares)
    if plan.flags & codecs.PLAN_CONSISTENT and not same:
        return None  # a ring changes whole
    same = same and plan.timeout == old.timeout
    if len(writes) > max(SMALL, sum(map(len, plan.slots)) // 2):
        return None
    before, after = old.members(), plan.members()
    held = [number for _, _, number in writes]
    for number in held:  # one reference for each slot written: what stays put has its own
        state.backends[number].refs += 1
    plan.slots = [slots for slots, _ in moves]
    plan.id, plan.extra = old.id, old.extra
    plan.extent = [max(e, len(g)) for e, g in zip(old.extent, plan.slots, strict=True)]
    return Change(
        unit=unit,
        plan=plan,
        puts={
            "slots": [_slot(state, plan.id, g, n, number) for g, n, number in writes],
            "members": [_member(state, plan.id, number) for number in sorted(after - before)],
            "skips": [],
            "rings": [],
            "plans": [] if same else [(codecs.ID.pack(plan.id), plan.value(state.next_generation()))],
        },
        backends=_unwritten(state, held),
        held=held,
        freed=[old.slots[g][n] for g, n, _ in writes if n < len(old.slots[g])]
        + [number for g, group in enumerate(old.slots) for number in group[len(plan.slots[g]) :]],
        stale=[(g, n) for g, group in enumerate(old.slots) for n in range(len(plan.slots[g]), len(group))],
        gone=before - after,
        frontends=(),
        in_place=True,
    )


def _tiers(plan: Installed) -> list[int]:
    return [tier for tier, _ in plan.shares]


def _moves(old: list[int], new: list[int]) -> tuple[list[int], list[tuple[int, int]]]:  # hot:
    """(the group afterwards, the slots to write): the fewest writes that make old hold exactly new, each once."""
    if old == new:
        return old, []
    present, wanted = set(old), set(new)
    added = deque([number for number in new if number not in present])
    # A number that is there twice (an earlier process died between two writes) has a hole where it is again.
    again = len(present) < len(old)
    holes = deque(_holes(old, wanted) if again else [n for n, number in enumerate(old) if number not in wanted])
    slots = list(old)
    writes: list[tuple[int, int]] = []
    while added:
        number = added.popleft()
        if holes:
            slots[holes[0]] = number
            writes.append((holes.popleft(), number))
        else:
            writes.append((len(slots), number))
            slots.append(number)
    while holes:
        last = slots.pop()
        if holes[-1] == len(slots):
            holes.pop()
        else:
            slots[holes[0]] = last
            writes.append((holes.popleft(), last))
    return slots, writes


def _holes(old: Iterable[int], wanted: set[int]) -> Iterator[int]:
    left = set(wanted)
    for n, number in enumerate(old):
        if number in left:
            left.discard(number)
        else:
            yield n


def _slot(state: State, plan: int, group: int, n: int, number: int) -> Entry:
    generation = state.backends[number].generation
    return codecs.SLOT_KEY.pack(plan, group, n), codecs.SLOT.pack(plan, number, generation)


def _member(state: State, plan: int, number: int) -> Entry:
    return codecs.MEMBER_KEY.pack(plan, number), codecs.MEMBER.pack(state.backends[number].generation)


def _unwritten(state: State, numbers: Iterable[int]) -> list[Backend]:
    backends = (state.backends[number] for number in dict.fromkeys(numbers))
    return [backend for backend in backends if not (backend.written and backend.cluster.written)]


def _names(found: Change) -> None:
    """What shall be written before the rest: names of numbers, and backends. Shared ones are in several changes."""
    clusters = {backend.cluster.id: backend.cluster for backend in found.backends}
    found.puts["services"] = _name(found.unit.name, codecs.SERVICE)
    found.puts["clusters"] = [entry for cluster in clusters.values() for entry in _name(cluster, codecs.CLUSTER)]
    found.puts["backends"] = [(codecs.ID.pack(backend.id), backend.value()) for backend in found.backends]


def _name(named: Named, shape: codecs.Shape) -> list[Entry]:
    return [] if named.written else [(codecs.ID.pack(named.id), shape.pack(named.name.encode()))]
