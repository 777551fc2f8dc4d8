"""New plans by batch: bulk loads are written map by map, without a Change object for each plan.

The entries are those of :func:`.plans.change`, which also handles all plans that need decisions of their own: plans
with several groups, with entries in other maps, or with an existing unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, plans
from isthmus.datapath.services.installed import Backend, Installed, State, Unit
from isthmus.datapath.services.plans import ALONE, NO_SKIP, Change
from isthmus.model.balancing import Plan, PlanKey, Target

Entry = tuple[bytes, bytes]


class NewPlans(Struct, gc=False):
    """New plans and their entries. Ids and backends are allocated; the rest of the state is unchanged until
    :func:`commit`."""

    rows: Sequence[Plan]
    services: Sequence[int]
    """Number of each plan's entry in ``services``."""
    installed: Sequence[Installed]
    frontends: Sequence[tuple[bytes, ...]]
    """Keys of each plan's frontends."""
    unwritten: dict[int, Backend]
    """Backends that are not written yet, or whose cluster is not."""
    entries: dict[str, list[Entry]]
    """Entries to write by map."""


def is_plain(row: Plan) -> bool:  # hot:
    """True if a plan has one group and needs no entries in optional maps, as nearly all plans."""
    backend_groups = row.groups
    return (
        len(backend_groups) == 1
        and 0 <= backend_groups[0].weight <= plans.MOST_WEIGHT
        and row.key.protocol != "UDP"
        and row.affinity == "None"
        and not (row.consistent or row.skip or row.awaited or row.consumers)
    )


def new_plans(state: State, rows: Sequence[Plan]) -> NewPlans:  # hot:
    """Allocate and encode plain plans that have frontends and no unit yet."""
    services, numbers = state.service_ids.take_many(len(rows)), state.plan_ids.take_many(len(rows))
    try:
        return _numbered(state, rows, services, numbers)
    except BaseException:
        state.service_ids.release(services)
        state.plan_ids.release(numbers)
        raise


def _numbered(state: State, rows: Sequence[Plan], services: list[int], numbers: list[int]) -> NewPlans:  # hot:
    pack_id, frontend_key = ID.pack, codecs.frontend_key
    usual, packed_single = codecs.ejection(state.ejection), codecs.groups(ALONE, (1,))
    chosen = [row.groups[0] for row in rows]
    answering = iter(_backends(state, [target for group in chosen for target in group.targets]))
    unwritten: dict[int, Backend] = {}
    slots: list[Entry] = []
    heads: list[Entry] = []
    frontends: list[Entry] = []
    installed: list[Installed] = []
    keys: list[tuple[bytes, ...]] = []
    generations = state.next_generations(len(rows))
    for row, group, service, number, generation in zip(rows, chosen, services, numbers, generations, strict=True):
        shares = ALONE if group.tier == 0 and group.weight == 1 else ((group.tier, group.weight),)
        ejection = usual if row.ejection is None else codecs.ejection(row.ejection)
        if len(group.targets) == 1 and shares is ALONE:  # nearly all
            backend, packed = next(answering), packed_single
            numbers_of_slots: Sequence[int] = (backend.id,)
            slots.append((codecs.SLOT_KEY.pack(number, 0, 0), codecs.SLOT.pack(number, backend.id, backend.generation)))
            if not (backend.written and backend.cluster.written):
                unwritten[backend.id] = backend
        else:
            members = {each.id: each for each in islice(answering, len(group.targets))}
            unwritten.update((n, each) for n, each in members.items() if not (each.written and each.cluster.written))
            slots += _slots(number, members.values())
            numbers_of_slots = plans.numbered(tuple(members), group.targets)
            packed = codecs.groups(shares, (len(members),))
        entry = pack_id(number)
        heads.append((entry, codecs.PLAN.pack(generation, number, service, 0, 0, *ejection, 1, packed)))
        installed.append(Installed(number, service, 0, 0, shares, (numbers_of_slots,), NO_SKIP, None, ejection))
        if len(row.frontends) == 1:
            key = frontend_key(row.frontends[0])
            keys.append((key,))
            frontends.append((key, key[12:] + entry))  # the inlined codecs.frontend
        else:
            keys.append(tuple(sorted(map(frontend_key, row.frontends))))
            frontends += [(key, key[12:] + entry) for key in keys[-1]]
    names = [codecs.SERVICE.pack(str(row.key).encode()) for row in rows]
    clusters = {each.cluster.id: each.cluster for each in unwritten.values() if not each.cluster.written}
    entries = {
        "clusters": [(pack_id(number), codecs.CLUSTER.pack(each.name.encode())) for number, each in clusters.items()],
        "services": [*zip(map(pack_id, services), names, strict=True)],
        "backends": [(pack_id(number), each.value()) for number, each in unwritten.items() if not each.written],
        "slots": slots,
        "plans": heads,
        "frontends": frontends,
    }
    return NewPlans(rows, services, installed, keys, unwritten, entries)


def _slots(plan: int, backends: Iterable[Backend]) -> list[Entry]:
    return [
        (codecs.SLOT_KEY.pack(plan, 0, n), codecs.SLOT.pack(plan, each.id, each.generation))
        for n, each in enumerate(backends)
    ]


def commit(state: State, new: NewPlans) -> None:  # hot:
    """Record new plans as installed, after all of their entries were written."""
    units, frontends, installed = state.units, state.frontends, state.plans
    for row, service, plan, keys in zip(new.rows, new.services, new.installed, new.frontends, strict=True):
        units[row.key] = Unit(row.key, service, True, plan, (), keys)
        installed[plan.id] = plan
        for key in keys:
            frontends[key] = plan.id
    for backend in new.unwritten.values():
        backend.written = backend.cluster.written = True
    state.hold([number for plan in new.installed for number in plan.slots[0]])


def changes(state: State, new: NewPlans) -> dict[PlanKey, Change]:
    """Convert a batch that could not be written to changes, each of which succeeds or fails by itself."""
    result: dict[PlanKey, Change] = {}
    for row, service, plan, keys in zip(new.rows, new.services, new.installed, new.frontends, strict=True):
        unit = state.units[row.key] = Unit(row.key, service)
        puts = plans.of_slots(state, plan, [(0, n, number) for n, number in enumerate(plan.slots[0])])
        puts.append(("plans", ID.pack(plan.id), plan.value(state.next_generation())))
        puts.append(plans.of_unit(unit))
        result[row.key] = Change(unit, plan, puts, keys, keys)
    return result


def _backends(state: State, targets: Sequence[Target]) -> Iterable[Backend]:  # hot:
    """The backend of each target; new backends have no reference yet."""
    missing = [target for target in targets if target not in state.by_target]
    state.add_backends(dict.fromkeys(missing))
    return map(state.by_target.__getitem__, targets)
