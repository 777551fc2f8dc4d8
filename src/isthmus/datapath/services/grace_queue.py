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
    """A whole retired plan; or stale slots of a plan, and the references that its overwritten slots released."""

    due: float
    plan: Installed
    retired: bool = False
    stale: Sequence[tuple[int, int]] = ()
    freed: Sequence[int] = ()
    last_of: PlanKey | None = None
    """The service to delete with the plan, which is its last."""


class GraceQueue:
    """Queue of entries by the end of their grace period."""

    def __init__(self, maps: Maps, state: State, *, grace: float, clock: Callable[[], float]) -> None:
        self._maps = maps
        self._state = state
        self._grace = grace
        self._clock = clock
        self._waiting: deque[Retired] = deque()

    def __repr__(self) -> str:
        return f"<GraceQueue: {len(self._waiting)} waiting, {self._pending()} numbers to give back>"

    def _pending(self) -> int:
        return sum(map(len, self._state.pending_free.values()))

    def retire(self, plans: Sequence[Installed], *, all_of: PlanKey | None = None) -> None:
        """Queue plans that no frontend points to; the service that they are all of is deleted with the last of them."""
        due = self._clock() + self._grace
        for plan in plans:
            last = plan is plans[-1]
            self._waiting.append(Retired(due, plan, retired=True, last_of=all_of if last else None))

    def retire_last(self, plans: Iterable[tuple[Installed, PlanKey]]) -> None:  # hot:
        """Queue plans that no frontend points to, each the last of its service."""
        due = self._clock() + self._grace
        self._waiting += [Retired(due, plan, True, (), (), key) for plan, key in plans]

    def shrink(self, plan: Installed, *, stale: Sequence[tuple[int, int]], freed: Sequence[int]) -> None:
        """Queue slots beyond a count, and references, that a change in place left behind."""
        self._waiting.append(Retired(self._clock() + self._grace, plan, stale=stale, freed=freed))

    def retired(self) -> set[int]:
        """Ids of the queued plans."""
        return {entry.plan.id for entry in self._waiting if entry.retired}

    def stale(self) -> list[tuple[int, int, int]]:
        """The (plan, group, n) of the queued slots beyond a count."""
        return [(entry.plan.id, g, n) for entry in self._waiting for g, n in entry.stale]

    def services(self) -> list[int]:
        """Numbers of the queued services."""
        return [entry.plan.service for entry in self._waiting if entry.last_of is not None]

    def sweep(self) -> int:
        """Delete what is due; returns how many entries of the queue and ids."""
        due: list[Retired] = []
        waiting, now = self._waiting, self._clock()
        while waiting and waiting[0].due <= now:
            due.append(waiting.popleft())
        if due and not self._drop(due):
            self._waiting.extendleft(reversed(due))
        return len(due) + self._free_pending()

    def _drop(self, due: Sequence[Retired]) -> bool:
        """Plans, then slots and members, then references. False: a write failed, and all of it is to be done again."""
        retired = [entry.plan for entry in due if entry.retired]
        plans = list(map(ID.pack, [plan.id for plan in retired]))
        beyond = [plan for plan in retired if plan.flags or plan.skip]  # few: those with entries in other maps
        drops = {
            "plans": plans,
            "slots": self._slots(due),
            "members": [
                codecs.MEMBER_KEY.pack(plan.id, number)
                for plan in beyond
                if plan.has_members
                for number in set(plan.held())
            ],
            "skips": [codecs.SKIP_KEY.pack(address, plan.id) for plan in beyond for address in plan.skip],
            "rings": [codecs.RING_KEY.pack(plan.id, chunk) for plan in beyond for chunk in plan.chunks()],
        }
        if any(self._maps.drop(name, keys) for name, keys in drops.items() if keys):
            return False
        self._release(due, retired)
        return True

    def _slots(self, due: Iterable[Retired]) -> list[bytes]:  # hot:
        pack = codecs.SLOT_KEY.pack
        found: list[bytes] = []
        for entry in due:
            plan = entry.plan
            if entry.retired and plan.doubt is None and len(plan.slots) == 1 == len(plan.slots[0]):  # nearly all
                found.append(pack(plan.id, 0, 0))
            else:
                found += [pack(*slot) for slot in self._stale(entry)]
        return found

    def _stale(self, entry: Retired) -> list[tuple[int, int, int]]:
        plan = entry.plan
        if entry.retired:
            return list(plan.reach())
        now = self._state.plans.get(plan.id)
        if now is None:
            return []
        return [(plan.id, g, n) for g, n in entry.stale if n >= len(now.slots[g])]

    def _release(self, due: Sequence[Retired], retired: Sequence[Installed]) -> None:  # hot:
        state = self._state
        for plan in retired:
            state.plans.pop(plan.id, None)
        state.plan_ids.release([plan.id for plan in retired])
        freed: list[int] = []
        gone: list[tuple[int, PlanKey | str]] = []
        for entry in due:
            plan = entry.plan
            if not entry.retired:
                freed += entry.freed
            elif plan.doubt is None and len(plan.slots) == 1:  # nearly all
                freed += plan.slots[0]
            else:
                freed += plan.held()
            if entry.last_of is not None:
                gone.append((plan.service, entry.last_of))
        state.release(freed)
        state.forget_services(gone)

    def _free_pending(self) -> int:
        """Delete unreferenced entries and free their ids; those that the kernel refuses to delete stay pending."""
        state, before = self._state, self._pending()
        services, clusters = set(state.pending_free["services"]), set(state.pending_free["clusters"])
        for name, ids in (
            ("backends", state.backend_ids),
            ("services", state.service_ids),
            ("clusters", state.cluster_ids),
        ):
            mine = state.pending_free[name]
            failed = self._maps.drop(name, list(map(ID.pack, mine))) if mine else {}
            state.pending_free[name] = [mine[position] for position in failed]
            ids.release([number for position, number in enumerate(mine) if position not in failed] if failed else mine)
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
