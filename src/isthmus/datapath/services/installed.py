"""The content of the maps as objects: changes are computed against it, not against the kernel.

A slot references its backend: each slot entry that may exist in the kernel counts one reference, so a backend's entry
is deleted only when no connect can reach it any more. References are taken when the writes of a change are over. A plan
that a failed write left uncertain has a ``doubt``, and the next change then writes a new plan instead of changing it in
place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final

from msgspec import Struct

from isthmus.datapath.core.ids import Ids
from isthmus.datapath.services import codecs
from isthmus.datapath.services.moves import Group
from isthmus.model.balancing import Ejection, PlanKey, Target
from isthmus.model.names import ClusterName

Slots = tuple[Group, ...]

MOST_GENERATION: Final = 0xFFFF_FFFF
RETIRED: Final = 20_000
"""Names of services that went, between two looks of who wants them."""


class Cluster(Struct, eq=False, gc=False):
    """An entry of ``clusters``."""

    id: int
    name: ClusterName
    written: bool = False
    refs: int = 0


class Backend(Struct, eq=False, gc=False):
    """An entry of ``backends``."""

    id: int
    target: Target
    generation: int
    cluster: Cluster
    written: bool = False
    refs: int = 0

    def value(self) -> bytes:
        """The bytes of the entry."""
        return codecs.backend(self.target, generation=self.generation, cluster=self.cluster.id)


class Doubt(Struct, frozen=True, gc=False):
    """What may be in the kernel of a plan beyond its slots, since a write failed or another process died."""

    extents: tuple[int, ...] = ()
    """How many slots of each group may exist, where more than it has."""
    extra: tuple[int, ...] = ()
    """Backends referenced beyond ``slots``, by what those slots may hold."""


class Installed(Struct, eq=False, gc=False):
    """An entry of ``plans`` with its slots and members. Another takes its place with each change; but a large group is
    changed in place, and passes to the next."""

    id: int
    service: int
    flags: int
    timeout: int
    shares: tuple[tuple[int, int], ...]
    """(tier, weight) of each group."""
    slots: Slots
    """Backend ids of each group, as far as its count goes."""
    skip: frozenset[bytes] = frozenset()
    """Addresses of the pods that the redirect does not apply to; fixed for the life of the plan."""
    doubt: Doubt | None = None
    """None: the kernel has exactly this, and stale slots that the sweep deletes."""
    ejection: tuple[int, int, int] = (0, 0, 0)
    """Failures in a row, the first and the longest time in ms."""
    restored: frozenset[int] = frozenset()
    """Backends that an earlier process put here and no complete row has confirmed."""

    def suspect(self, *, extents: Iterable[int] = (), extra: Iterable[int] = ()) -> None:
        """Have it replaced by the next change; ``extents`` and ``extra`` add to its doubt."""
        known = self.doubt or Doubt()
        both = zip_longest(known.extents, extents, fillvalue=0)
        self.doubt = Doubt(tuple([max(pair) for pair in both]), (*known.extra, *extra))

    def extents(self) -> list[int]:
        """How many slots of each group may exist."""
        sizes = list(map(len, self.slots))
        if self.doubt is None or not self.doubt.extents:
            return sizes
        return [max(pair) for pair in zip_longest(sizes, self.doubt.extents, fillvalue=0)]

    def held(self) -> list[int]:
        """Every referenced backend, once for each slot that may refer to it."""
        numbers = [number for group in self.slots for number in group]
        return numbers if self.doubt is None else [*numbers, *self.doubt.extra]

    def reach(self) -> Iterator[tuple[int, int, int]]:
        """The (plan, group, n) of every slot that may exist."""
        return ((self.id, g, n) for g, extent in enumerate(self.extents()) for n in range(extent))

    def has(self, number: int) -> bool:
        """Whether a slot has a backend."""
        return any(number in group for group in self.slots)

    @property
    def has_members(self) -> bool:
        """Whether its backends are entries of ``members`` too."""
        return bool(self.flags & (codecs.PLAN_AFFINITY | codecs.PLAN_CONSISTENT))

    def members(self) -> set[int]:
        """The backends that a client with affinity, or a cell of the ring, may name."""
        return {number for group in self.slots for number in group} if self.has_members else set()

    def chunks(self) -> range:
        """The chunks of its ring."""
        return range(-(-codecs.RING_CELLS // codecs.RING_CHUNK) if self.flags & codecs.PLAN_CONSISTENT else 0)

    def value(self, generation: int, sizes: tuple[int, ...] | None = None) -> bytes:
        """The bytes of the entry; ``sizes``: of its groups, where they are to be others than now."""
        counts = tuple(map(len, self.slots)) if sizes is None else sizes
        packed = groups(self.shares, counts)
        return codecs.PLAN.pack(
            generation, self.id, self.service, self.flags, self.timeout, *self.ejection, len(counts), packed
        )


@lru_cache(1024)
def groups(of: tuple[tuple[int, int], ...], counts: tuple[int, ...]) -> bytes:
    """The groups of an entry, from their (tier, weight) and how many backends they have: mostly the same few."""
    bounds = shares([(tier, weight, n) for (tier, weight), n in zip(of, counts, strict=True)])
    pack = codecs.GROUP.pack
    return b"".join([pack(bound, weight, n, tier) for bound, (tier, weight), n in zip(bounds, of, counts, strict=True)])


def shares(groups: list[tuple[int, int, int]]) -> list[int]:
    """Each group's ``cumulative_weight``, from (tier, weight, count): the lowest tier with a backend has all calls."""
    if len(groups) == 1:
        return [codecs.CUMULATIVE_WEIGHT if groups[0][1] and groups[0][2] else 0]
    usable = [tier for tier, weight, count in groups if weight and count]
    if not usable:
        return [0] * len(groups)
    total = sum(weight for tier, weight, count in groups if count and tier == min(usable))
    bounds, so_far = [], 0
    for tier, weight, count in groups:
        mine = bool(weight and count and tier == min(usable))
        so_far += weight if mine else 0
        bounds.append(codecs.CUMULATIVE_WEIGHT * so_far // total if mine else 0)
    return bounds


class Unit(Struct, eq=False, gc=False):
    """All that one plan row has in the maps."""

    key: PlanKey
    service: int
    """The number of its entry of ``services``."""
    written: bool = False
    """Whether that entry is written."""
    current: Installed | None = None
    older: tuple[Installed, ...] = ()
    """Plans that a frontend may still point to."""
    frontends: tuple[bytes, ...] = ()

    def plan_ids(self) -> set[int]:
        """Plans that are this unit's."""
        return {plan.id for plan in self.plans()}

    def plans(self) -> tuple[Installed, ...]:
        """Its plans; the current one last."""
        return (*self.older, self.current) if self.current is not None else self.older


class State:
    """The mirror, and the allocators."""

    def __init__(self) -> None:
        self.units: dict[PlanKey, Unit] = {}
        self.frontends: dict[bytes, int] = {}
        """Plan id by frontend key."""
        self.plans: dict[int, Installed] = {}
        self.backends: dict[int, Backend] = {}
        self.by_target: dict[Target, Backend] = {}
        self.clusters: dict[ClusterName, Cluster] = {}
        self.strays: list[tuple[int, str]] = []
        """Numbers and names of services that were restored twice or are no plan's, for pruning."""
        self.pending_free: dict[str, list[int]] = {"backends": [], "services": [], "clusters": []}
        """By map: entries that go as soon as the kernel lets them, and numbers that are free then."""
        self.retired_services: deque[tuple[int, PlanKey | str]] = deque(maxlen=RETIRED)
        """Numbers that were given back, and the names they had: records of calls may still come with them."""
        self.service_ids = Ids()
        self.plan_ids = Ids()
        self.backend_ids = Ids()
        self.cluster_ids = Ids(most=codecs.MAX_CLUSTERS - 1)
        self.generation = 0
        self.ejection = Ejection()
        """Of plans that have none of their own."""

    def __repr__(self) -> str:
        return (
            f"<State: {len(self.units)} services, {len(self.frontends)} frontends, {len(self.plans)} plans, "
            f"{len(self.backends)} backends>"
        )

    def next_generation(self) -> int:
        """A number no value in the maps carries."""
        self.generation = self.generation % MOST_GENERATION + 1
        return self.generation

    def next_generations(self, count: int) -> Iterable[int]:
        """The next of them, for so many values."""
        first = self.generation + 1
        if first + count > MOST_GENERATION:
            return [self.next_generation() for _ in range(count)]
        self.generation += count
        return range(first, first + count)

    def backend(self, target: Target) -> Backend:
        """A new backend for a target, without references and not written yet."""
        self.add_backends((target,))
        return self.by_target[target]

    def add_backends(self, targets: Collection[Target]) -> None:  # hot:
        """The same for some targets, each once, that have none."""
        backends, by_target, clusters = self.backends, self.by_target, self.clusters
        numbers, generations = self.backend_ids.take_many(len(targets)), self.next_generations(len(targets))
        for number, target, generation in zip(numbers, targets, generations, strict=True):
            cluster = clusters.get(target.cluster) or self._cluster(target.cluster)
            cluster.refs += 1
            backends[number] = by_target[target] = Backend(number, target, generation, cluster)

    def _cluster(self, name: ClusterName) -> Cluster:
        """A new cluster, without references and not written yet."""
        cluster = self.clusters[name] = Cluster(self.cluster_ids.take(), name)
        return cluster

    def hold(self, numbers: Iterable[int]) -> None:  # hot:
        """Take references, one for each slot."""
        backends = self.backends
        for number in numbers:
            backends[number].refs += 1

    def release(self, held: Iterable[int]) -> None:  # hot:
        """Release references; a backend without any is deleted by the next sweep."""
        backends = self.backends
        unheld: list[Backend] = []
        for number in held:
            backend = backends[number]
            backend.refs -= 1
            if backend.refs == 0:
                unheld.append(backend)
        if unheld:
            self._forget(unheld)

    def release_unheld(self) -> None:
        """Doom restored entries that no plan references."""
        self._forget([backend for backend in self.backends.values() if backend.refs <= 0])
        for cluster in [cluster for cluster in self.clusters.values() if cluster.refs <= 0]:
            self._forget_cluster(cluster)

    def _forget(self, unheld: Sequence[Backend]) -> None:  # hot:
        backends, by_target, numbers = self.backends, self.by_target, self.pending_free["backends"]
        for backend in unheld:
            del backends[backend.id]
            known = by_target.pop(backend.target, None)
            if known is not backend and known is not None:
                by_target[known.target] = known  # another has the target by now
            numbers.append(backend.id)
            cluster = backend.cluster
            cluster.refs -= 1
            if cluster.refs <= 0:
                self._forget_cluster(cluster)

    def _forget_cluster(self, cluster: Cluster) -> None:
        if self.clusters.pop(cluster.name, None) is not None:
            self.pending_free["clusters"].append(cluster.id)

    def forget_plans(self, plans: Iterable[Installed]) -> None:
        """These plans, and their numbers, are not needed any more."""
        numbers = [plan.id for plan in plans]
        for number in numbers:
            self.plans.pop(number, None)
        self.plan_ids.release(numbers)

    def forget_services(self, gone: Sequence[tuple[int, PlanKey | str]]) -> None:
        """Numbers of services, with their names, are not needed any more."""
        self.retired_services += gone
        self.pending_free["services"] += [number for number, _ in gone]

    def unit(self, key: PlanKey) -> Unit:
        """The unit of a plan row, made where there is none."""
        unit = self.units.get(key)
        if unit is None:
            unit = self.units[key] = Unit(key, self.service_ids.take())
        return unit

    def dicts(self) -> tuple[dict[Any, Any], ...]:
        """The dicts that grow with the number of plans and backends."""
        return self.units, self.frontends, self.plans, self.backends, self.by_target

    def sizes(self) -> Mapping[str, int]:
        """Counts of plans, backends and so on; all zero once everything is deleted and swept."""
        return {
            "units": len(self.units),
            "frontends": len(self.frontends),
            "plans": len(self.plans),
            "backends": len(self.backends),
            "clusters": len(self.clusters),
            "service_ids": len(self.service_ids),
            "plan_ids": len(self.plan_ids),
            "backend_ids": len(self.backend_ids),
            "cluster_ids": len(self.cluster_ids),
        }
