"""Entries that a running connect may still read: kept for the grace period, then deleted, and their ids released.

Plans are deleted first, then their slots, members, skips, consumers and rings. Then their references are released, and
entries without a reference are deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.services import codecs
from isthmus.datapath.services.batch import Leaving
from isthmus.datapath.services.installed import Installed, State

FEW_SERVICES: Final = 16
"""Services up to which all their possible keys are deleted from ``counters``. For more, the map is read first: the
kernel ends a batch of deletions at each missing key."""

COUNTED_BY_SERVICE: Final = ("counters", "denied")
"""Maps of calls by service, cluster and verdict."""

COUNTED_BY_CLUSTER: Final = ("round_trips", "traffic")
"""Maps with measurements by cluster number, which are reset before the number is reused."""


class GraceQueue:
    """Queue of entries, in order of the end of their grace period."""

    def __init__(self, maps: Maps, state: State, *, grace: float, clock: Callable[[], float]) -> None:
        self._maps = maps
        self._state = state
        self._grace = grace
        self._clock = clock
        self.waiting: deque[Leaving] = deque()

    def __repr__(self) -> str:
        return f"<GraceQueue: {len(self.waiting)} waiting, {self._pending()} numbers to give back>"

    def _pending(self) -> int:
        return sum(map(len, self._state.pending_free.values()))

    def retire(self, leaving: Leaving) -> None:
        """Queue what a round left behind."""
        if leaving.plans or leaving.services or leaving.references:
            leaving.due = self._clock() + self._grace
            self.waiting.append(leaving)

    def sweep(self) -> int:
        """Delete due entries. Returns the number of queue entries and ids that were handled."""
        due: list[Leaving] = []
        waiting, now = self.waiting, self._clock()
        while waiting and waiting[0].due <= now:
            due.append(waiting.popleft())
        if due and not self._drop(due):  # ids must not be reused before their entries are deleted: try all again
            self.waiting.extendleft(reversed(due))
        return len(due) + self._free_pending()

    def _drop(self, due: Sequence[Leaving]) -> bool:
        """Delete plans, then slots and so on, then release references. False if a deletion failed: repeat all of it."""
        retired = [plan for entry in due for plan in entry.plans]
        slot_key = codecs.SLOT_KEY.pack
        simple: list[Installed] = []
        with_more: list[Installed] = []
        for plan in retired:  # hot: nearly all plans have one slot, and no entries in other maps
            if not plan.flags and not plan.skip and plan.doubt is None and len(plan.slots) == 1 == len(plan.slots[0]):
                simple.append(plan)
            else:
                with_more.append(plan)
        with_members = [plan for plan in with_more if plan.has_members]
        drops = {
            "plans": [ID.pack(plan.id) for plan in retired],
            "slots": [
                *[slot_key(plan.id, 0, 0) for plan in simple],
                *[slot_key(*slot) for plan in with_more for slot in plan.reach()],
                *[slot_key(*slot) for entry in due for slot in entry.slots if self._is_unused(*slot)],
            ],
            "members": [
                codecs.MEMBER_KEY.pack(plan.id, n) for plan in with_members for n in set(plan.possible_references())
            ],
            "skips": [codecs.SKIP_KEY.pack(address, plan.id) for plan in with_more for address in plan.skip],
            "consumers": [
                codecs.CONSUMER_KEY.pack(namespace, plan.id, 0) for plan in with_more for namespace, _ in plan.consumers
            ],
            "rings": [codecs.RING_KEY.pack(plan.id, chunk) for plan in with_more for chunk in plan.chunks()],
        }
        if any(self._maps.drop(name, keys) for name, keys in drops.items() if keys):
            return False
        references = [number for plan in simple for number in plan.slots[0]]
        references += [number for plan in with_more for number in plan.possible_references()]
        self._state.forget_plans(retired)
        self._state.release([*references, *(number for entry in due for number in entry.references)])
        self._state.forget_services([service for entry in due for service in entry.services])
        return True

    def _is_unused(self, number: int, group: int, n: int) -> bool:
        """True if a queued slot is still beyond the count: the plan may have grown again since."""
        plan = self._state.plans.get(number)
        return plan is not None and n >= len(plan.slots[group])

    def _free_pending(self) -> int:
        """Delete unreferenced entries and release their ids; entries that the kernel refuses to delete stay pending."""
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
        """Reset the counters of released numbers, before these are reused."""
        unpack, numbers = codecs.COUNTER_KEY.unpack, [0, *(cluster.id for cluster in self._state.clusters.values())]
        for name in COUNTED_BY_SERVICE:
            if clusters or len(services) > FEW_SERVICES:
                keys = [key for key, _ in self._maps.items(name)]
                counted = [key for key in keys if unpack(key)[0] in services or unpack(key)[1] in clusters]
            else:
                counted = [key for number in services for key in _counters(number, numbers)]
            if counted:
                self._maps.drop(name, counted)


def _counters(service: int, clusters: Iterable[int]) -> list[bytes]:
    """All possible keys of a service in ``counters``."""
    pack = codecs.COUNTER_KEY.pack
    return [pack(service, cluster, verdict, 0) for cluster in clusters for verdict in range(len(codecs.VERDICTS))]
