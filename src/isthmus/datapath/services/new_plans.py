"""New plans by batch: what comes in masses is written map by map in the order it has, without a change for each.

The entries are those that :func:`.plans.change` gives. Whatever a batch would have to decide for a single plan is left
to that: a plan of several groups, one with entries in other maps, one whose unit is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, plans
from isthmus.datapath.services.installed import Backend, Installed, State, Unit, groups
from isthmus.datapath.services.plans import ALONE, NO_SKIP, Change
from isthmus.model.balancing import Plan, PlanKey, Target

Entry = tuple[bytes, bytes]


class NewPlans(Struct, gc=False):
    """Plans that are not there, and what to write of them. Their ids and their backends are allocated; the rest of the
    state is as it was until they are committed."""

    rows: Sequence[Plan]
    services: Sequence[int]
    """The number of each one's entry of ``services``."""
    installed: Sequence[Installed]
    frontends: Sequence[tuple[bytes, ...]]
    """The keys of each one's frontends."""
    unwritten: dict[int, Backend]
    """Backends that no write has been seen for, or not for their cluster."""
    entries: dict[str, list[Entry]]
    """What to write, by map."""


def is_plain(row: Plan) -> bool:  # hot:
    """Whether a plan is one group without anything that other maps are for: what nearly all are."""
    of = row.groups
    return (
        len(of) == 1
        and 0 <= of[0].weight <= plans.MOST_WEIGHT
        and row.affinity == "None"
        and not (row.consistent or row.skip or row.awaited)
    )


def new_plans(state: State, rows: Sequence[Plan]) -> NewPlans:  # hot:
    """What to write of plain plans with frontends, whose units are not there."""
    pack_id, called_at = ID.pack, codecs.frontend_key
    usual, alone = plans.ejection(state.ejection), groups(ALONE, (1,))
    chosen = [row.groups[0] for row in rows]
    answering = iter(_backends(state, [target for group in chosen for target in group.targets]))
    services, numbers = state.service_ids.take_many(len(rows)), state.plan_ids.take_many(len(rows))
    unwritten: dict[int, Backend] = {}
    slots: list[Entry] = []
    heads: list[Entry] = []
    frontends: list[Entry] = []
    found: list[Installed] = []
    called: list[tuple[bytes, ...]] = []
    generations = state.next_generations(len(rows))
    for row, group, service, number, generation in zip(rows, chosen, services, numbers, generations, strict=True):
        shares = ALONE if group.tier == 0 and group.weight == 1 else ((group.tier, group.weight),)
        ejection = usual if row.ejection is None else plans.ejection(row.ejection)
        if len(group.targets) == 1 and shares is ALONE:  # nearly all
            backend, packed = next(answering), alone
            of: Sequence[int] = (backend.id,)
            slots.append((codecs.SLOT_KEY.pack(number, 0, 0), codecs.SLOT.pack(number, backend.id, backend.generation)))
            if not (backend.written and backend.cluster.written):
                unwritten[backend.id] = backend
        else:
            known = {each.id: each for each in islice(answering, len(group.targets))}
            unwritten.update((n, each) for n, each in known.items() if not (each.written and each.cluster.written))
            slots += _slots(number, known.values())
            of, packed = plans.numbered(tuple(known), group.targets), groups(shares, (len(known),))
        entry = pack_id(number)
        heads.append((entry, codecs.PLAN.pack(generation, number, service, 0, 0, *ejection, 1, packed)))
        found.append(Installed(number, service, 0, 0, shares, (of,), NO_SKIP, None, ejection))
        if len(row.frontends) == 1:
            key = called_at(row.frontends[0])
            called.append((key,))
            frontends.append((key, key[12:] + entry))  # as codecs.frontend has it
        else:
            called.append(tuple(sorted(map(called_at, row.frontends))))
            frontends += [(key, key[12:] + entry) for key in called[-1]]
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
    return NewPlans(rows, services, found, called, unwritten, entries)


def _slots(plan: int, backends: Iterable[Backend]) -> list[Entry]:
    return [
        (codecs.SLOT_KEY.pack(plan, 0, n), codecs.SLOT.pack(plan, each.id, each.generation))
        for n, each in enumerate(backends)
    ]


def commit(state: State, new: NewPlans) -> None:  # hot:
    """All of it is written: the plans are there."""
    units, known, installed = state.units, state.frontends, state.plans
    for row, service, plan, called in zip(new.rows, new.services, new.installed, new.frontends, strict=True):
        units[row.key] = Unit(row.key, service, True, plan, (), called)
        installed[plan.id] = plan
        for key in called:
            known[key] = plan.id
    for backend in new.unwritten.values():
        backend.written = backend.cluster.written = True
    state.hold([number for plan in new.installed for number in plan.slots[0]])


def changes(state: State, new: NewPlans) -> dict[PlanKey, Change]:
    """The same plans as changes, whose entries fail each by itself: for a batch of which some could not be written."""
    found: dict[PlanKey, Change] = {}
    for row, service, plan, called in zip(new.rows, new.services, new.installed, new.frontends, strict=True):
        unit = state.units[row.key] = Unit(row.key, service)
        puts = plans.of_slots(state, plan, [(0, n, number) for n, number in enumerate(plan.slots[0])])
        puts.append(("plans", ID.pack(plan.id), plan.value(state.next_generation())))
        puts += [("frontends", key, codecs.frontend(key, plan=plan.id)) for key in called]
        puts.append(plans.of_unit(unit))
        found[row.key] = Change(unit, plan, puts, called)
    return found


def _backends(state: State, targets: Sequence[Target]) -> Iterable[Backend]:  # hot:
    """The backend of each target; new ones have no reference yet."""
    missing = [target for target in targets if target not in state.by_target]
    state.add_backends(dict.fromkeys(missing))
    return map(state.by_target.__getitem__, targets)
