"""The content of the maps as objects: changes are computed against these, not against the kernel.

Each slot entry that may exist in the kernel holds a reference to its backend, so a backend's entry is deleted only when
no connect can reach it any more. References are taken after the writes of a change. A plan whose content is uncertain
after a failed write has a ``doubt``; the next change replaces it by a new plan instead of changing it in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct

from isthmus.datapath.core.ids import Ids
from isthmus.datapath.services import codecs
from isthmus.datapath.services.moves import Group
from isthmus.model.balancing import REFUSAL, Ejection, PlanKey, Target
from isthmus.model.names import ClusterName

Slots = tuple[Group, ...]

MOST_GENERATION: Final = 0xFFFF_FFFF
RETIRED: Final = 20_000
"""Bound of the released service numbers whose names are kept until the flow reader has taken them."""


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


class Uncertainty(Struct, frozen=True, gc=False):
    """Entries of a plan that may exist beyond its slots, since a write failed or another process died."""

    extents: tuple[int, ...] = ()
    """Number of slots of each group that may exist, if more than it has."""
    references: tuple[int, ...] = ()
    """Backends to which those slots may refer."""


class Installed(Struct, eq=False, gc=False):
    """An entry of ``plans`` with its slots and members. Every change replaces it by a new object; but a large group is
    mutated and handed on to that object."""

    id: int
    service: int
    flags: int
    timeout: int
    shares: tuple[tuple[int, int], ...]
    """(tier, weight) of each group."""
    slots: Slots
    """Backend ids of each group, up to its count."""
    skip: frozenset[bytes] = frozenset()
    """Addresses of the pods to which the redirect does not apply; fixed for the life of the plan."""
    doubt: Uncertainty | None = None
    """``None`` if the kernel has exactly these entries, apart from slots that the sweep will delete."""
    ejection: tuple[int, int, int] = (0, 0, 0)
    """Failures in a row, and the first and longest time of an ejection in ms."""
    restored: frozenset[int] = frozenset()
    """Backends that an earlier process wrote and that no complete row has confirmed yet."""
    consumers: tuple[tuple[int, int], ...] = ()
    """(namespace hash, backend for its callers), sorted; fixed for the life of the plan."""

    def suspect(self, *, extents: Iterable[int] = (), references: Iterable[int] = ()) -> None:
        """Mark the plan to be replaced by the next change; ``extents`` and ``references`` are added to its doubt."""
        doubt = self.doubt or Uncertainty()
        pairs = zip_longest(doubt.extents, extents, fillvalue=0)
        self.doubt = Uncertainty(tuple([max(pair) for pair in pairs]), (*doubt.references, *references))

    def extents(self) -> list[int]:
        """Number of slots of each group that may exist."""
        sizes = list(map(len, self.slots))
        if self.doubt is None or not self.doubt.extents:
            return sizes
        return [max(pair) for pair in zip_longest(sizes, self.doubt.extents, fillvalue=0)]

    def references(self) -> list[int]:
        """The backend of each slot and of each consumer."""
        numbers = [number for group in self.slots for number in group]
        return [*numbers, *(number for _, number in self.consumers)] if self.consumers else numbers

    def possible_references(self) -> list[int]:
        """The backend of each entry that may refer to one, including uncertain entries."""
        numbers = self.references()
        return numbers if self.doubt is None else [*numbers, *self.doubt.references]

    def reach(self) -> Iterator[tuple[int, int, int]]:
        """The (plan, group, n) of every slot that may exist."""
        return ((self.id, g, n) for g, size in enumerate(self.extents()) for n in range(size))

    def has(self, number: int) -> bool:
        """True if a slot refers to the backend."""
        return any(number in group for group in self.slots)

    @property
    def has_members(self) -> bool:
        """True if its backends have entries in ``members`` too."""
        return bool(self.flags & (codecs.PLAN_AFFINITY | codecs.PLAN_CONSISTENT | codecs.PLAN_DATAGRAMS))

    def members(self) -> set[int]:
        """Backends to which an affinity entry, a cell of the ring or a UDP socket may refer. None is refused twice for
        having been refused once."""
        if not self.has_members:
            return set()
        return {number for group in self.slots for number in group} - {codecs.REFUSING}

    def chunks(self) -> range:
        """The chunks of its ring."""
        return range(-(-codecs.RING_CELLS // codecs.RING_CHUNK) if self.flags & codecs.PLAN_CONSISTENT else 0)

    def value(self, generation: int, sizes: tuple[int, ...] | None = None) -> bytes:
        """The bytes of the entry; ``sizes`` are its groups' counts after a change, by default the current ones."""
        counts = tuple(map(len, self.slots)) if sizes is None else sizes
        packed = codecs.groups(self.shares, counts)
        return codecs.PLAN.pack(
            generation, self.id, self.service, self.flags, self.timeout, *self.ejection, len(counts), packed
        )


class Unit(Struct, eq=False, gc=False):
    """Everything in the maps that belongs to one plan row."""

    key: PlanKey
    service: int
    """Number of its entry in ``services``."""
    written: bool = False
    """True once that entry is written."""
    current: Installed | None = None
    previous: tuple[Installed, ...] = ()
    """Older plans to which a frontend may still point."""
    frontends: tuple[bytes, ...] = ()

    def plan_ids(self) -> set[int]:
        """Ids of its plans."""
        return {plan.id for plan in self.plans()}

    def plans(self) -> tuple[Installed, ...]:
        """Its plans; the current one last."""
        return (*self.previous, self.current) if self.current is not None else self.previous


class State:
    """The content of the maps, and the allocators of ids."""

    def __init__(self) -> None:
        self.units: dict[PlanKey, Unit] = {}
        self.frontends: dict[bytes, int] = {}
        """Plan id by frontend key."""
        self.plans: dict[int, Installed] = {}
        refusing = Backend(codecs.REFUSING, REFUSAL, codecs.REFUSED, Cluster(0, REFUSAL.cluster, True), True, refs=1)
        self.backends: dict[int, Backend] = {refusing.id: refusing}
        """The one that refuses is always there and has no entry."""
        self.by_target: dict[Target, Backend] = {REFUSAL: refusing}
        self.clusters: dict[ClusterName, Cluster] = {}
        self.orphan_services: list[tuple[int, str]] = []
        """(number, name) of restored services that are duplicates or have an invalid name, for pruning."""
        self.pending_free: dict[str, list[int]] = {"backends": [], "services": [], "clusters": []}
        """Ids of unreferenced entries by map; they are released once the kernel has deleted the entries."""
        self.retired_services: deque[tuple[int, PlanKey | str]] = deque(maxlen=RETIRED)
        """Released numbers with their names, to which late flow records may refer."""
        self.service_ids = Ids()
        self.plan_ids = Ids()
        self.backend_ids = Ids()
        self.cluster_ids = Ids(most=codecs.MAX_CLUSTERS - 1)
        self.generation = 0
        self.ejection = Ejection()
        """Default for plans without settings of their own."""

    def __repr__(self) -> str:
        return (
            f"<State: {len(self.units)} services, {len(self.frontends)} frontends, {len(self.plans)} plans, "
            f"{len(self.backends) - 1} backends>"
        )

    def next_generation(self) -> int:
        """A generation that no value in the maps has."""
        self.generation = self.generation % MOST_GENERATION + 1
        return self.generation

    def next_generations(self, count: int) -> Iterable[int]:
        """The next ``count`` generations."""
        first = self.generation + 1
        if first + count > MOST_GENERATION:
            return [self.next_generation() for _ in range(count)]
        self.generation += count
        return range(first, first + count)

    def backend(self, target: Target) -> Backend:
        """Add a backend for a target, without references and not written yet."""
        self.add_backends((target,))
        return self.by_target[target]

    def add_backends(self, targets: Collection[Target]) -> None:  # hot:
        """Add backends for distinct targets that have none, without references and not written yet."""
        backends, by_target, clusters = self.backends, self.by_target, self.clusters
        numbers, generations = self.backend_ids.take_many(len(targets)), self.next_generations(len(targets))
        for number, target, generation in zip(numbers, targets, generations, strict=True):
            cluster = clusters.get(target.cluster) or self._cluster(target.cluster)
            cluster.refs += 1
            backends[number] = by_target[target] = Backend(number, target, generation, cluster)

    def _cluster(self, name: ClusterName) -> Cluster:
        """Add a cluster, without references and not written yet."""
        cluster = self.clusters[name] = Cluster(self.cluster_ids.take(), name)
        return cluster

    def hold(self, numbers: Iterable[int]) -> None:  # hot:
        """Take a reference for each slot, given by its backend."""
        backends = self.backends
        for number in numbers:
            backends[number].refs += 1

    def hold_written(self, numbers: Iterable[int]) -> None:  # hot:
        """Take a reference for each written slot; its backend's entry and its cluster's are written too."""
        backends = self.backends
        for number in numbers:
            backend = backends[number]
            backend.refs += 1
            backend.written = backend.cluster.written = True

    def release(self, references: Iterable[int]) -> None:  # hot:
        """Release references; a backend without any is deleted by the next sweep."""
        backends = self.backends
        unheld: list[Backend] = []
        for number in references:
            backend = backends[number]
            backend.refs -= 1
            if backend.refs == 0:
                unheld.append(backend)
        if unheld:
            self._forget(unheld)

    def forget_orphans(self) -> None:
        """Forget restored entries that no plan references, and invalid services; the next sweep deletes them."""
        self._forget([backend for backend in self.backends.values() if backend.refs <= 0])
        for cluster in [cluster for cluster in self.clusters.values() if cluster.refs <= 0]:
            self._forget_cluster(cluster)
        self.forget_services(self.orphan_services)
        self.orphan_services = []

    def _forget(self, unheld: Sequence[Backend]) -> None:  # hot:
        backends, by_target, numbers = self.backends, self.by_target, self.pending_free["backends"]
        for backend in unheld:
            del backends[backend.id]
            other = by_target.pop(backend.target, None)
            if other is not backend and other is not None:
                by_target[other.target] = other  # a newer backend has the target
            numbers.append(backend.id)
            cluster = backend.cluster
            cluster.refs -= 1
            if cluster.refs <= 0:
                self._forget_cluster(cluster)

    def _forget_cluster(self, cluster: Cluster) -> None:
        if self.clusters.pop(cluster.name, None) is not None:
            self.pending_free["clusters"].append(cluster.id)

    def forget_plans(self, plans: Iterable[Installed]) -> None:
        """Forget plans and release their ids."""
        numbers = [plan.id for plan in plans]
        for number in numbers:
            self.plans.pop(number, None)
        self.plan_ids.release(numbers)

    def forget_services(self, services: Sequence[tuple[int, PlanKey | str]]) -> None:
        """Forget services, given as (number, name); the next sweep deletes their entries."""
        self.retired_services += services
        self.pending_free["services"] += [number for number, _ in services]

    def unit(self, key: PlanKey) -> Unit:
        """The unit of a plan row, created if needed."""
        unit = self.units.get(key)
        if unit is None:
            unit = self.units[key] = Unit(key, self.service_ids.take())
        return unit

    def sizes(self) -> Mapping[str, int]:
        """Counts of plans, backends and so on; all zero once everything is deleted and swept."""
        return {
            "units": len(self.units),
            "frontends": len(self.frontends),
            "plans": len(self.plans),
            "backends": len(self.backends) - 1,
            "clusters": len(self.clusters),
            "service_ids": len(self.service_ids),
            "plan_ids": len(self.plan_ids),
            "backend_ids": len(self.backend_ids),
            "cluster_ids": len(self.cluster_ids),
        }
