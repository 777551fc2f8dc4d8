"""Compares the maps with ``State``: another process may have written, deleted or flushed entries.

The kernel's own maps (affinity, counters) and the settings are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, plans, rings
from isthmus.datapath.services.batch import Leaving
from isthmus.datapath.services.installed import Installed, State, Unit
from isthmus.datapath.services.manifest import ORDER
from isthmus.model.balancing import PlanKey

AWAY = tuple(reversed(ORDER))
"""The compared maps, in the order of deletion."""


class Audit(Struct, frozen=True):
    """Differences: unknown keys by map, and the units with a missing or different entry."""

    unknown: Mapping[str, list[bytes]]
    damaged: frozenset[PlanKey]


def audit(state: State, maps: Maps, *, waiting: Collection[Leaving]) -> Audit:
    """Compare, and mark missing entries in ``state``, so that the next change of a damaged unit writes them again.

    ``waiting`` has the entries that stay in the maps until their grace period ends.
    """
    actual = {name: dict(maps.items(name)) for name in AWAY}
    expected = _expected_keys(state, waiting)
    unknown = {name: [key for key in actual[name] if key not in expected[name]] for name in AWAY}
    _note_lost(state, actual)
    return Audit(unknown, frozenset(key for key, unit in state.units.items() if _damaged(state, actual, unit)))


def _expected_keys(state: State, waiting: Collection[Leaving]) -> Mapping[str, Collection[bytes]]:
    installed = state.plans.values()
    pending_free = {name: set(map(ID.pack, numbers)) for name, numbers in state.pending_free.items()}
    services = [unit.service for unit in state.units.values()] + [number for number, _ in state.orphan_services]
    services += [number for leaving in waiting for number, _ in leaving.services]
    return {
        "frontends": state.frontends,
        "plans": {ID.pack(number) for number in state.plans},
        "slots": {codecs.SLOT_KEY.pack(*slot) for plan in installed for slot in plan.reach()}
        | {codecs.SLOT_KEY.pack(*slot) for leaving in waiting for slot in leaving.slots},
        "members": {
            codecs.MEMBER_KEY.pack(plan.id, number) for plan in installed for number in plan.possible_references()
        },
        "skips": {codecs.SKIP_KEY.pack(address, plan.id) for plan in installed for address in plan.skip},
        "consumers": {codecs.CONSUMER_KEY.pack(ns, plan.id, 0) for plan in installed for ns, _ in plan.consumers},
        "rings": {codecs.RING_KEY.pack(plan.id, chunk) for plan in installed for chunk in plan.chunks()},
        "backends": (set(map(ID.pack, state.backends)) - {ID.pack(codecs.REFUSING)}) | pending_free["backends"],
        "clusters": {ID.pack(cluster.id) for cluster in state.clusters.values()} | pending_free["clusters"],
        "services": set(map(ID.pack, services)) | pending_free["services"],
    }


def _note_lost(state: State, actual: Mapping[str, Mapping[bytes, bytes]]) -> None:
    for backend in state.backends.values():
        if backend.id == codecs.REFUSING:
            continue
        backend.written = backend.written and actual["backends"].get(ID.pack(backend.id)) == backend.value()
    for cluster in state.clusters.values():
        name = codecs.CLUSTER.pack(cluster.name.encode())
        cluster.written = cluster.written and actual["clusters"].get(ID.pack(cluster.id)) == name
    for unit in state.units.values():
        name = codecs.SERVICE.pack(str(unit.key).encode())
        unit.written = unit.written and actual["services"].get(ID.pack(unit.service)) == name
    for key, plan in list(state.frontends.items()):
        if actual["frontends"].get(key) != codecs.frontend(key, plan=plan):
            state.frontends[key] = 0


def _damaged(state: State, actual: Mapping[str, Mapping[bytes, bytes]], unit: Unit) -> bool:
    """True if an entry of a unit is missing or different. The next change then replaces the unit's plan."""
    plan = unit.current
    if plan is None:
        return False
    backends = (state.backends[number] for number in plan.references())
    written = all(backend.written and backend.cluster.written for backend in backends)
    if not (written and _whole(state, actual, plan)):
        plan.suspect()
    led = all(state.frontends.get(key) == plan.id for key in unit.frontends)
    return not (plan.doubt is None and unit.written and led)


def _whole(state: State, actual: Mapping[str, Mapping[bytes, bytes]], plan: Installed) -> bool:
    entry = actual["plans"].get(ID.pack(plan.id))
    if entry is None or entry != plan.value(codecs.PLAN.unpack(entry)[0]):
        return False
    generations = {number: state.backends[number].generation for group in plan.slots for number in group}
    slots, members, skips = actual["slots"], actual["members"], actual["skips"]
    return (
        all(
            slots.get(codecs.SLOT_KEY.pack(plan.id, g, n)) == codecs.SLOT.pack(plan.id, number, generations[number])
            for g, group in enumerate(plan.slots)
            for n, number in enumerate(group)
        )
        and all(
            members.get(codecs.MEMBER_KEY.pack(plan.id, number)) == codecs.MEMBER.pack(generations[number])
            for number in plan.members()
        )
        and all(skips.get(codecs.SKIP_KEY.pack(address, plan.id)) == codecs.SKIPPED for address in plan.skip)
        and all(actual["consumers"].get(key) == value for key, value in _consumers(state, plan))
        and all(actual["rings"].get(key) == value for key, value in rings.entries(state, plan))
    )


def _consumers(state: State, plan: Installed) -> Iterable[tuple[bytes, bytes]]:
    return (plans.consumer(state, plan, namespace, number) for namespace, number in plan.consumers)
