"""Builds the State from the maps that an earlier process left: ids first, so that none in use is allocated again.

Wherever that process stopped, the order of writes limits the damage to slots and backends without a plan, plans without
a frontend, and a backend twice in a group. Pruning removes the first two, the next change the last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from isthmus.datapath.core.ids import UNBOUNDED, Ids
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID, address_text, text
from isthmus.datapath.services import codecs
from isthmus.datapath.services.installed import Backend, Cluster, Installed, State, Unit
from isthmus.model.balancing import PlanKey, Target
from isthmus.model.names import ClusterName

Slots = dict[int, dict[int, tuple[int, int]]]
"""(backend, generation) of a plan's slots by group and n."""


def restore(maps: Maps, *, backends: int = UNBOUNDED) -> State:
    """The content of the maps; an empty state for empty maps. ``backends`` is the size of the map ``backends``."""
    state = State()
    _clusters(state, maps)
    _backends(state, maps, most=backends)
    _plans(state, maps)
    _frontends_and_services(state, maps)
    return state


def _clusters(state: State, maps: Maps) -> None:
    names = {ID.unpack(key)[0]: text(value) for key, value in maps.items("clusters")}
    state.cluster_ids = Ids(names, most=codecs.MAX_CLUSTERS - 1)
    for number, name in sorted(names.items()):
        state.clusters.setdefault(ClusterName(name), Cluster(number, ClusterName(name), written=True))


def _backends(state: State, maps: Maps, *, most: int) -> None:
    names = {cluster.id: cluster for cluster in state.clusters.values()}
    entries = {ID.unpack(key)[0]: codecs.BACKEND.named(value) for key, value in maps.items("backends")}
    state.backend_ids = Ids(entries, most=most)
    for number, raw in sorted(entries.items()):
        cluster = names.get(raw["cluster"]) or Cluster(raw["cluster"], ClusterName(""), written=True)
        target = Target(
            address_text(raw["address"]),
            int.from_bytes(raw["port"], "big"),
            codecs.PROTOCOL_NAMES[raw["protocol"]],
            cluster.name,
            bool(raw["flags"] & codecs.BACKEND_PROXY),
        )
        backend = Backend(number, target, generation=raw["generation"], cluster=cluster, written=True)
        cluster.refs += 1
        state.backends[number] = backend
        state.by_target.setdefault(target, backend)
        state.generation = max(state.generation, raw["generation"])


def _plans(state: State, maps: Maps) -> None:
    slots: dict[int, Slots] = defaultdict(lambda: defaultdict(dict))
    for key, value in maps.items("slots"):
        plan, group, n = codecs.SLOT_KEY.unpack(key)
        slots[plan][group][n] = codecs.SLOT.unpack(value)[1:]
    members: dict[int, set[int]] = defaultdict(set)
    for key, _ in maps.items("members"):
        plan, backend = codecs.MEMBER_KEY.unpack(key)
        members[plan].add(backend)
    rings: dict[int, set[int]] = defaultdict(set)
    for key, _ in maps.items("rings"):
        plan, chunk = codecs.RING_KEY.unpack(key)
        rings[plan].add(chunk)
    skips: dict[int, set[bytes]] = defaultdict(set)
    for key, _ in maps.items("skips"):
        address, plan = codecs.SKIP_KEY.unpack(key)
        skips[plan].add(address)
    consumers: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for key, value in maps.items("consumers"):
        namespace, plan, _ = codecs.CONSUMER_KEY.unpack(key)
        consumers[plan].append((namespace, *codecs.SLOT.unpack(value)[1:]))
    entries = {ID.unpack(key)[0]: codecs.PLAN.named(value) for key, value in maps.items("plans")}
    for number in entries.keys() | slots.keys() | members.keys() | skips.keys() | consumers.keys() | rings.keys():
        plan = state.plans[number] = _plan(state, number, entries.get(number), slots[number])
        plan.skip = frozenset(skips[number])
        plan.consumers = tuple(
            sorted((ns, chosen) for ns, chosen, made in consumers[number] if _agrees(state, chosen, made))
        )
        if len(plan.consumers) != len(consumers[number]):
            plan.suspect()
        plan.restored = frozenset(backend for group in plan.slots for backend in group)
        if members[number] != plan.members():
            plan.flags |= codecs.PLAN_AFFINITY
            plan.suspect(references=sorted((members[number] & state.backends.keys()) - set(plan.possible_references())))
        if rings[number] != {chunk for chunk in plan.chunks() if plan.members()}:
            plan.flags |= codecs.PLAN_CONSISTENT
            plan.suspect()
        for backend in plan.possible_references():
            state.backends[backend].refs += 1
        state.generation = max(state.generation, entries.get(number, {}).get("generation", 0))
    state.plan_ids = Ids(state.plans)


def _plan(state: State, number: int, raw: dict[str, Any] | None, slots: Slots) -> Installed:
    """One plan; without an entry in ``plans`` its slots are unreachable."""
    if raw is None:
        plan = Installed(number, service=0, flags=0, timeout=0, shares=(), slots=())
    else:
        groups = [codecs.GROUP.unpack_from(raw["groups"], n * codecs.GROUP.size) for n in range(raw["size"])]
        plan = Installed(
            number,
            service=raw["service"],
            flags=raw["flags"],
            timeout=raw["affinity_timeout"],
            shares=tuple((tier, weight) for _, weight, _, tier in groups),
            slots=tuple(_counted(state, slots.get(g, {}), count) for g, (_, _, count, _) in enumerate(groups)),
        )
        plan.ejection = (raw["eject_after"], raw["eject_first"], raw["eject_longest"])
        if [len(group) for group in plan.slots] != [count for _, _, count, _ in groups]:
            plan.suspect()
    existing = [[slots[g].get(n) for n in range(max(slots[g]) + 1)] if g in slots else [] for g in range(_most(slots))]
    extents = [len(group) for group in existing]
    references = Counter(slot[0] for group in existing for slot in group if slot and slot[0] in state.backends)
    surplus = list((references - Counter(plan.possible_references())).elements())
    if raw is None or extents != plan.extents()[: len(existing)] or surplus:
        plan.suspect(extents=extents, references=surplus)
    return plan


def _counted(state: State, group: Mapping[int, tuple[int, int]], count: int) -> tuple[int, ...]:
    """The backends of a group's slots, without those whose generation differs from the slot's."""
    slots = (group.get(n, (0, 0)) for n in range(count))
    return tuple(number for number, generation in slots if _agrees(state, number, generation))


def _most(slots: Slots) -> int:
    return max(slots, default=-1) + 1


def _agrees(state: State, number: int, generation: int) -> bool:
    backend = state.backends.get(number)
    return backend is not None and backend.generation == generation


def _frontends_and_services(state: State, maps: Maps) -> None:
    pointing: dict[int, list[bytes]] = defaultdict(list)
    for key, value in maps.items("frontends"):
        state.frontends[key] = codecs.FRONTEND.unpack(value)[-1]
        pointing[state.frontends[key]].append(key)
    plans: dict[int, list[Installed]] = defaultdict(list)
    for plan in sorted(state.plans.values(), key=lambda plan: (len(pointing[plan.id]), plan.id)):
        plans[plan.service].append(plan)
    names = {ID.unpack(key)[0]: text(value) for key, value in maps.items("services")}
    state.service_ids = Ids(names)
    used = {number: sum(len(pointing[plan.id]) for plan in plans[number]) for number in names}
    for number, name in sorted(names.items(), key=lambda item: (-used[item[0]], item[0])):
        plan_key = PlanKey.parse(name)
        if plan_key is None or plan_key in state.units:
            state.orphan_services.append((number, name))
            continue
        unit = state.units[plan_key] = Unit(plan_key, number, written=True)
        if plans[number]:
            unit.previous, unit.current = tuple(plans[number][:-1]), plans[number][-1]
        unit.frontends = tuple(key for plan in plans[number] for key in pointing[plan.id])
