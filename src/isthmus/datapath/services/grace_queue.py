"""Entries that a running connect may still read: kept for the grace period, then deleted, and their ids freed.

Plans are deleted first, then their slots, members, skips and rings; then references, and entries without one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from msgspec import Struct

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs
from isthmus.datapath.services.installed import Installed, State
from isthmus.model.balancing import PlanKey

FEW_SERVICES: Final = 16
"""Services up to which every key that may count their calls is deleted, there or not: of more, ``counters`` is read,
since the kernel ends a batch of deletions at each key that it has not got."""


COUNTED_BY_CLUSTER: Final = ("round_trips", "traffic")
"""What the kernel measured of a cluster: one that is given the number next starts from nothing."""


class Retired(Struct, gc=False):
    """Plans that were retired together, and the services whose last plans they are, by number."""

    due: float
    plans: Sequence[Installed]
    services: Sequence[tuple[int, PlanKey]] = ()


class Shrunk(Struct, gc=False):
    """What a change in place left behind: stale slots of a plan, as (group, n), and the references they held."""

    due: float
    plan: Installed
    stale: Sequence[tuple[int, int]]
    freed: Sequence[int]


class GraceQueue:
    """Queue of entries by the end of their grace period."""

    def __init__(self, maps: Maps, state: State, *, grace: float, clock: Callable[[], float]) -> None:
        self._maps = maps
        self._state = state
        self._grace = grace
        self._clock = clock
        self._waiting: deque[Retired | Shrunk] = deque()

    def __repr__(self) -> str:
        return f"<GraceQueue: {len(self._waiting)} waiting, {self._pending()} numbers to give back>"

    def _pending(self) -> int:
        return sum(map(len, self._state.pending_free.values()))

    def retire(self, plans: Sequence[Installed], *, services: Sequence[tuple[int, PlanKey]] = ()) -> None:
        """Queue plans that no frontend points to, with the services that they are the last plans of."""
        if plans or services:
            self._waiting.append(Retired(self._clock() + self._grace, plans, services))

    def shrink(self, plan: Installed, *, stale: Sequence[tuple[int, int]], freed: Sequence[int]) -> None:
        """Queue slots beyond a count, and references, that a change in place left behind."""
        self._waiting.append(Shrunk(self._clock() + self._grace, plan, stale, freed))

    def retired(self) -> set[int]:
        """Ids of the queued plans."""
        return {plan.id for entry in self._waiting if isinstance(entry, Retired) for plan in entry.plans}

    def stale(self) -> list[tuple[int, int, int]]:
        """The (plan, group, n) of the queued slots beyond a count."""
        return [(entry.plan.id, g, n) for entry in self._waiting if isinstance(entry, Shrunk) for g, n in entry.stale]

    def services(self) -> list[int]:
        """Numbers of the queued services."""
        return [number for entry in self._waiting if isinstance(entry, Retired) for number, _ in entry.services]

    def sweep(self) -> int:
        """Delete what is due; returns how many entries of the queue and ids."""
        due: list[Retired | Shrunk] = []
        waiting, now = self._waiting, self._clock()
        while waiting and waiting[0].due <= now:
            due.append(waiting.popleft())
        if due and not self._drop(due):
            self._waiting.extendleft(reversed(due))
        return len(due) + self._free_pending()

    def _drop(self, due: Sequence[Retired | Shrunk]) -> bool:
        """Plans, then slots and so on, then references. False: a write failed, and all of it is to be done again."""
        retired = [plan for entry in due if isinstance(entry, Retired) for plan in entry.plans]
        shrunk = [entry for entry in due if isinstance(entry, Shrunk)]
        slot_key = codecs.SLOT_KEY.pack
        alone: list[Installed] = []
        with_more: list[Installed] = []
        for plan in retired:  # hot: nearly all have one slot, and no entries in other maps
            if not plan.flags and not plan.skip and plan.doubt is None and len(plan.slots) == 1 == len(plan.slots[0]):
                alone.append(plan)
            else:
                with_more.append(plan)
        with_members = [plan for plan in with_more if plan.has_members]
        drops = {
            "plans": [ID.pack(plan.id) for plan in retired],
            "slots": [
                *[slot_key(plan.id, 0, 0) for plan in alone],
                *[slot_key(*slot) for plan in with_more for slot in plan.reach()],
                *[slot_key(*slot) for entry in shrunk for slot in self._stale(entry)],
            ],
            "members": [codecs.MEMBER_KEY.pack(plan.id, n) for plan in with_members for n in set(plan.held())],
            "skips": [codecs.SKIP_KEY.pack(address, plan.id) for plan in with_more for address in plan.skip],
            "rings": [codecs.RING_KEY.pack(plan.id, chunk) for plan in with_more for chunk in plan.chunks()],
        }
        if any(self._maps.drop(name, keys) for name, keys in drops.items() if keys):
            return False
        references = [number for plan in alone for number in plan.slots[0]]
        references += [number for plan in with_more for number in plan.held()]
        self._state.forget_plans(retired)
        self._state.release([*references, *(number for entry in shrunk for number in entry.freed)])
        self._state.forget_services([each for entry in due if isinstance(entry, Retired) for each in entry.services])
        return True

    def _stale(self, entry: Shrunk) -> list[tuple[int, int, int]]:
        """The slots that the plan has not got again since."""
        now = self._state.plans.get(entry.plan.id)
        if now is None:
            return []
        return [(now.id, g, n) for g, n in entry.stale if n >= len(now.slots[g])]

    def _free_pending(self) -> int:
        """Delete unreferenced entries and free their ids; those that the kernel refuses to delete stay pending."""
        state, before = self._state, self._pending()
        if not before:
            return 0
        services, clusters = set(state.pending_free["services"]), set(state.pending_free["clusters"])
        for name, ids in (
            ("backends", state.backend_ids),
            ("services", state.service_ids),
            ("clusters", state.cluster_ids),
        ):
            mine = state.pending_free[name]
            if not mine:
                continue
            failed = self._maps.drop(name, list(map(ID.pack, mine)))
            state.pending_free[name] = [mine[position] for position in failed]
            ids.release([number for position, number in enumerate(mine) if position not in failed] if failed else mine)
        if services or clusters:
            self._forget_counters(services, clusters)
        for name in COUNTED_BY_CLUSTER if clusters else ():
            self._maps.drop(name, list(map(ID.pack, clusters)))
        return before - self._pending()

    def _forget_counters(self, services: Set[int], clusters: Set[int]) -> None:
        """A number that is given out again starts from nothing."""
        if clusters or len(services) > FEW_SERVICES:
            unpack = codecs.COUNTER_KEY.unpack
            keys = [key for key, _ in self._maps.items("counters")]
            known = [key for key in keys if unpack(key)[0] in services or unpack(key)[1] in clusters]
        else:
            numbers = [0, *(cluster.id for cluster in self._state.clusters.values())]
            known = [key for number in services for key in _counters(number, numbers)]
        if known:
            self._maps.drop("counters", known)


def _counters(service: int, clusters: Iterable[int]) -> list[bytes]:
    """Every key that may count calls of a service."""
    pack = codecs.COUNTER_KEY.pack
    return [pack(service, cluster, verdict, 0) for cluster in clusters for verdict in range(len(codecs.VERDICTS))]
