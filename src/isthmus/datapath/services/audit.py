"""Compares the maps with the mirrored state: another process may have written, deleted or flushed entries.

Pure. The kernel's own maps (affinity, counters) and the settings are not the mirror's to judge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs, rings
from isthmus.datapath.services.installed import Installed, State, Unit
from isthmus.datapath.services.manifest import ORDER
from isthmus.model.balancing import PlanKey

AWAY = tuple(reversed(ORDER))
"""Every map that is compared, in the order in which entries are deleted."""


class Audit(Struct, frozen=True):
    """What differs: unknown keys, by map, and keys of units with an entry that is missing or has another value."""

    strays: Mapping[str, list[bytes]]
    damaged: frozenset[PlanKey]


def audit(state: State, maps: Maps, *, leaving: Iterable[int], stale: Iterable[tuple[int, int, int]]) -> Audit:
    """Compare, and note in the mirror what is gone, so that the next change of a damaged unit writes it again.

    ``leaving`` and ``stale``: services and slots that are in the maps until their grace period ends.
    """
    found = {name: dict(maps.items(name)) for name in AWAY}
    known = _known(state, leaving, stale)
    strays = {name: [key for key in found[name] if key not in known[name]] for name in AWAY}
    _note_lost(state, found)
    return Audit(strays, frozenset(key for key, unit in state.units.items() if _damaged(state, found, unit)))


def _known(
    state: State, leaving: Iterable[int], stale: Iterable[tuple[int, int, int]]
) -> Mapping[str, Collection[bytes]]:
    plans = state.plans.values()
    pending_free = {name: set(map(ID.pack, numbers)) for name, numbers in state.pending_free.items()}
    services = [unit.service for unit in state.units.values()] + [number for number, _ in state.strays] + [*leaving]
    return {
        "frontends": state.frontends,
        "plans": {ID.pack(number) for number in state.plans},
        "slots": {codecs.SLOT_KEY.pack(*slot) for plan in plans for slot in plan.reach()}
        | {codecs.SLOT_KEY.pack(*slot) for slot in stale},
        "members": {codecs.MEMBER_KEY.pack(plan.id, number) for plan in plans for number in plan.held()},
        "skips": {codecs.SKIP_KEY.pack(address, plan.id) for plan in plans for address in plan.skip},
        "rings": {codecs.RING_KEY.pack(plan.id, chunk) for plan in plans for chunk in plan.chunks()},
        "backends": {ID.pack(number) for number in state.backends} | pending_free["backends"],
        "clusters": {ID.pack(cluster.id) for cluster in state.clusters.values()} | pending_free["clusters"],
        "services": set(map(ID.pack, services)) | pending_free["services"],
    }


def _note_lost(state: State, found: Mapping[str, Mapping[bytes, bytes]]) -> None:
    for backend in state.backends.values():
        backend.written = backend.written and found["backends"].get(ID.pack(backend.id)) == backend.value()
    for cluster in state.clusters.values():
        name = codecs.CLUSTER.pack(cluster.name.encode())
        cluster.written = cluster.written and found["clusters"].get(ID.pack(cluster.id)) == name
    for unit in state.units.values():
        name = codecs.SERVICE.pack(str(unit.key).encode())
        unit.written = unit.written and found["services"].get(ID.pack(unit.service)) == name
    for key, plan in list(state.frontends.items()):
        if found["frontends"].get(key) != codecs.frontend(key, plan=plan):
            state.frontends[key] = 0


def _damaged(state: State, found: Mapping[str, Mapping[bytes, bytes]], unit: Unit) -> bool:
    """Whether anything a unit needs is gone or other; its plan is then not to be trusted."""
    plan = unit.current
    if plan is None:
        return False
    backends = (state.backends[number] for group in plan.slots for number in group)
    written = all(backend.written and backend.cluster.written for backend in backends)
    if not (written and _whole(state, found, plan)):
        plan.suspect()
    led = all(state.frontends.get(key) == plan.id for key in unit.frontends)
    return not (plan.doubt is None and unit.written and led)


def _whole(state: State, found: Mapping[str, Mapping[bytes, bytes]], plan: Installed) -> bool:
    entry = found["plans"].get(ID.pack(plan.id))
    if entry is None or entry != plan.value(codecs.PLAN.unpack(entry)[0]):
        return False
    generations = {number: state.backends[number].generation for group in plan.slots for number in group}
    slots, members, skips = found["slots"], found["members"], found["skips"]
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
        and all(found["rings"].get(key) == value for key, value in rings.entries(state, plan))
    )
