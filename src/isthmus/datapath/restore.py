"""The mirror from the maps an earlier process left: numbers first, so that nothing gets a number that is in use.

Whatever stopped that process, the order of writes says what can be there: slots and backends without a plan, plans
without a frontend, a backend twice in a group. The first two wait for pruning, the last for the next change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from isthmus.datapath import codecs
from isthmus.datapath.ids import Ids
from isthmus.datapath.installed import Backend, Installed, Named, State, Unit
from isthmus.datapath.maps import Maps
from isthmus.model.balancing import Target
from isthmus.model.names import ClusterName

Slots = dict[int, dict[int, dict[int, tuple[int, int]]]]
"""(backend, generation) by plan, group and n."""


def restore(maps: Maps) -> State:
    """What the maps hold. An empty kernel gives an empty state."""
    state = State()
    _clusters(state, maps)
    _backends(state, maps)
    _plans(state, maps)
    _frontends_and_services(state, maps)
    return state


def _clusters(state: State, maps: Maps) -> None:
    found = {codecs.ID.unpack(key)[0]: codecs.text(value) for key, value in maps.items("clusters")}
    state.cluster_ids = Ids(found, most=0xFFFF)
    for number, name in sorted(found.items()):
        state.clusters.setdefault(ClusterName(name), Named(number, name, written=True))


def _backends(state: State, maps: Maps) -> None:
    names = {cluster.id: cluster for cluster in state.clusters.values()}
    found = {codecs.ID.unpack(key)[0]: codecs.BACKEND.named(value) for key, value in maps.items("backends")}
    state.backend_ids = Ids(found)
    for number, raw in sorted(found.items()):
        cluster = names.get(raw["cluster"]) or Named(raw["cluster"], "", written=True)
        target = Target(
            codecs.address_text(raw["address"]),
            int.from_bytes(raw["port"], "big"),
            codecs.PROTOCOL_NAMES[raw["protocol"]],
            ClusterName(cluster.name),
            bool(raw["flags"] & codecs.BACKEND_PROXY),
        )
        backend = Backend(number, target, generation=raw["generation"], cluster=cluster, written=True)
        cluster.refs += 1
        state.backends[number] = backend
        state.by_target.setdefault(target, backend)
        state.generation = max(state.generation, raw["generation"])


def _plans(state: State, maps: Maps) -> None:
    slots: Slots = defaultdict(lambda: defaultdict(dict))
    for key, value in maps.items("slots"):
        plan, group, n = codecs.SLOT_KEY.unpack(key)
        slots[plan][group][n] = codecs.SLOT.unpack(value)[1:]
    members: dict[int, set[int]] = defaultdict(set)
    for key, _ in maps.items("members"):
        plan, backend = codecs.MEMBER_KEY.unpack(key)
        members[plan].add(backend)
    found = {codecs.ID.unpack(key)[0]: value for key, value in maps.items("plans")}
    for number in found.keys() | slots.keys() | members.keys():
        plan = state.plans[number] = _plan(state, number, found.get(number), slots[number])
        for backend in plan.held():
            state.backends[backend].refs += 1
        plan.restored = frozenset(backend for group in plan.slots for backend in group)
        if members[number] != plan.members():
            plan.sure, plan.flags = False, plan.flags | codecs.PLAN_AFFINITY
            plan.extra += [b for b in members[number] - set(plan.held()) if b in state.backends and _held(state, b)]
    state.plan_ids = Ids(state.plans)


def _held(state: State, number: int) -> bool:
    """Take a reference for a member without a slot, so that retiring the plan finds its entry."""
    state.backends[number].refs += 1
    return True


def _plan(state: State, number: int, value: bytes | None, slots: dict[int, dict[int, tuple[int, int]]]) -> Installed:
    """One plan; without an entry (value) it is slots that nobody looks at."""
    raw: dict[str, Any] = (
        codecs.PLAN.named(value) if value else {"service": 0, "flags": 0, "affinity_timeout": 0, "size": 0}
    )
    state.generation = max(state.generation, raw.get("generation", 0))
    groups = [codecs.GROUP.unpack_from(raw["groups"], n * codecs.GROUP.size) for n in range(raw["size"])]
    counted = [
        [slots[g].get(n) for n in range(count)] if g in slots else [] for g, (_, _, count, _) in enumerate(groups)
    ]
    known = [[slot[0] for slot in group if slot and slot[0] in state.backends] for group in counted]
    plan = Installed(
        number,
        service=raw["service"],
        flags=raw["flags"],
        timeout=raw["affinity_timeout"],
        shares=tuple((tier, weight) for _, weight, _, tier in groups),
        slots=known,
    )
    extent = [
        max(slots[g], default=-1) + 1 if g in slots else 0 for g in range(max([len(known), *(g + 1 for g in slots)]))
    ]
    whole = all(slot and _agrees(state, slot) for group in counted for slot in group)
    plan.sure = bool(value) and whole and extent == [count for _, _, count, _ in groups]
    plan.extent = extent
    there = Counter(slot[0] for group in slots.values() for slot in group.values() if slot[0] in state.backends)
    plan.extra = list((there - Counter(backend for group in known for backend in group)).elements())
    return plan


def _agrees(state: State, slot: tuple[int, int]) -> bool:
    backend = state.backends.get(slot[0])
    return backend is not None and backend.generation == slot[1]


def _frontends_and_services(state: State, maps: Maps) -> None:
    pointing: dict[int, list[bytes]] = defaultdict(list)
    for key, value in maps.items("frontends"):
        state.frontends[key] = codecs.FRONTEND.unpack(value)[-1]
        pointing[state.frontends[key]].append(key)
    plans: dict[int, list[Installed]] = defaultdict(list)
    for plan in sorted(state.plans.values(), key=lambda plan: (len(pointing[plan.id]), plan.id)):
        plans[plan.service].append(plan)
    found = {codecs.ID.unpack(key)[0]: codecs.text(value) for key, value in maps.items("services")}
    state.service_ids = Ids(found)
    used = {number: sum(len(pointing[plan.id]) for plan in plans[number]) for number in found}
    for number, name in sorted(found.items(), key=lambda item: (-used[item[0]], item[0])):
        named = Named(number, name, written=True)
        if name in state.units:
            state.strays.append(named)
            continue
        unit = state.units[name] = Unit(named)
        if plans[number]:
            *unit.older, unit.current = plans[number]
        unit.frontends = frozenset(key for plan in plans[number] for key in pointing[plan.id])
