"""Rules that select the backends a call may reach: one function each, in the order in which they apply.

Each rule returns the backends it keeps and calls ``reasons`` with each of the others, so that explaining a plan runs
the same code as making it. Nothing here reads a table, a clock or the network.

A policy's locality and a service's cluster preference leave no backend out: they order the backends in steps. Calls
reach the first step; the kernel falls back to the next when it finds the first dead before readiness or probes do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from isthmus.loadbalancer.drains import Drained, describe
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend, PlanKey, Scope
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName
from isthmus.model.policies import Locality, Policy
from isthmus.model.services import Condition, Family

Reasons = Callable[[Backend, str], None]
"""Callback that takes each backend left out, and the reason as part of a sentence."""

Backends = Sequence[Backend]
Steps = Sequence[Backends]
"""Backends in order of preference. There is at least one step, no backend is in two, and only a sole step is empty."""

READY: Final = Condition.READY
INTERNAL: Final = Scope.INTERNAL

DEAD: Final = "probes find it dead"
TERMINATING: Final = "it is terminating"
SAME_NODE: Final = "PreferSameNode"
SAME_ZONE: Final = "PreferSameZone"


class Place(Struct, frozen=True, gc=False):
    """Location of the caller: the own cluster, this node and its zone."""

    cluster: ClusterName
    node: str = ""
    zone: str = ""


class Clusters(NamedTuple):
    """The clusters that a policy may select: the own one's name, and the row of each."""

    own: ClusterName
    rows: Mapping[ClusterName, Cluster]


def ignore(backend: Backend, reason: str) -> None:
    """A collector that drops every reason."""


def select(
    key: PlanKey,
    backends: Iterable[Backend],
    *,
    service: ResolvedService,
    place: Place,
    port_name: str,
    policy: Policy | None,
    clusters: Clusters,
    drained: Drained | None,
    reasons: Reasons,
) -> Steps:
    """Return the backends that calls of a plan may reach, unordered within a step."""
    candidates: Backends = tuple(backends)
    serving = all_serve(candidates, key, port_name)
    if not serving:
        candidates = matching(candidates, key=key, port_name=port_name, reasons=reasons)
    if local_only(service, key.scope):
        candidates = on_this_node(candidates, place=place, reasons=reasons)
    if not serving:
        candidates = answering(
            usable(candidates, reasons=reasons), refuse=policy is not None and policy.refuse, reasons=reasons
        )
    if drained is not None:
        candidates = undrained(candidates, drained, reasons=reasons)
    if policy is not None and policy.locality:
        steps = nearest(candidates, policy.locality, place=place, clusters=clusters)
    else:
        candidates = near(candidates, service=service, place=place, reasons=reasons)
        ordered = policy is not None and policy.tiers  # they order the clusters themselves
        steps = (candidates,) if ordered else preferred_clusters(candidates, service=service, place=place)
    return steps if serving else ready_steps(steps, reasons=reasons)


def all_serve(backends: Backends, key: PlanKey, port_name: str) -> bool:  # hot:
    """True if every backend matches the plan, is ready and is healthy: the usual case, tested in one pass."""
    protocol, dots, either = key.protocol, key.family == "IPv4", key.family == "any"
    for backend in backends:
        backend_key = backend.key
        if backend.condition is not READY or not backend.healthy or backend_key.protocol != protocol:
            return False
        if port_name not in backend.port_names or ((":" in backend_key.address) is dots and not either):
            return False
    return True


def matching(backends: Backends, *, key: PlanKey, port_name: str, reasons: Reasons) -> Backends:
    """Keep backends with the plan's protocol, address family and port name."""
    return _keep(backends, partial(mismatch, key=key, port_name=port_name), reasons)


def mismatch(backend: Backend, *, key: PlanKey, port_name: str) -> str:
    """Reason why a backend does not match a plan's port; empty if it does."""
    if backend.key.protocol != key.protocol:
        return f"its protocol is {backend.key.protocol}"
    if key.family not in ("any", family(backend.key.address)):
        return f"it is not {key.family}"
    if port_name not in backend.port_names:
        return f"its port is not '{port_name}'"
    return ""


def each_by_itself(service: ResolvedService, scope: Scope) -> bool:
    """True if no rule for this service compares a backend with others or with this node.

    Then, without a policy or drain, :func:`select` returns exactly the matching backends that pass :func:`serves`, as
    long as there is one.
    """
    if service.preference != "none" or (service.distribution and service.internal_policy != "Local"):
        return False
    return not local_only(service, scope)


def serves(backend: Backend) -> bool:
    """True if a backend is ready and healthy; other backends are used only if none is."""
    return backend.condition is READY and backend.healthy


def one_family_each(backends: Iterable[Backend], families: Collection[Family]) -> list[Backend]:
    """Return each cluster's backends of one family, so that each pod of a dual-stack cluster is there once.

    Neither slices nor records join the two addresses of a pod. Of ``families``, that with more serving backends is
    chosen for a cluster, and IPv4 if both have as many.
    """
    by_cluster: dict[ClusterName, dict[Family, list[Backend]]] = {}
    for backend in backends:
        if (ip_family := family(backend.key.address)) in families:
            by_cluster.setdefault(backend.key.cluster, {}).setdefault(ip_family, []).append(backend)
    chosen: list[Backend] = []
    for by_family in by_cluster.values():
        chosen += max(by_family.items(), key=lambda each: (sum(map(serves, each[1])), each[0] == "IPv4"))[1]
    return chosen


def local_only(service: ResolvedService, scope: Scope) -> bool:
    """True if the traffic policy of this scope restricts calls to endpoints of this node."""
    return (service.internal_policy if scope & INTERNAL else service.external_policy) == "Local"


def on_this_node(backends: Backends, *, place: Place, reasons: Reasons) -> Backends:
    """Traffic policy Local: keep only backends on this node."""
    return _keep(backends, lambda b: "" if _same_node(b, place) else "traffic policy Local, another node", reasons)


def usable(backends: Backends, *, reasons: Reasons) -> Backends:
    """Keep backends that are ready, or terminating and still serving."""
    reason = {Condition.NOT_READY: "it is not ready", Condition.GONE: "it has ended"}
    serving = Condition.TERMINATING
    return _keep(backends, lambda b: "" if b.condition <= serving else reason[b.condition], reasons)


def answering(backends: Backends, *, refuse: bool = False, reasons: Reasons) -> Backends:
    """Keep backends that pass their probes. If none does, keep all, unless ``refuse`` is set by a policy."""
    alive = [backend for backend in backends if backend.healthy]
    if (not alive and not refuse) or len(alive) == len(backends):
        return backends
    return _keep(backends, lambda backend: "" if backend.healthy else DEAD, reasons)


def undrained(backends: Backends, drained: Drained, *, reasons: Reasons = ignore) -> Backends:
    """Keep backends that are not fully drained; all of them if only worse ones (terminating, or none) would remain."""
    best = min((backend.condition for backend in backends), default=READY)
    if not any(backend.condition == best and drained.percent_left(backend) for backend in backends):
        return backends

    def drain(backend: Backend) -> str:
        row = drained.drain_of(backend)
        return describe(row) if row is not None and not row.left else ""

    return _keep(backends, drain, reasons)


def near(backends: Backends, *, service: ResolvedService, place: Place, reasons: Reasons) -> Backends:
    """Traffic distribution: prefer this node, else this zone by hints, if that leaves any backend."""
    if not service.distribution or service.internal_policy == "Local":
        return backends  # Kubernetes sets no hints then
    if service.distribution == SAME_NODE:
        here = [b for b in backends if _same_node(b, place) and b.condition is READY]
        if here:
            return _keep(backends, lambda b: "" if b in here else "one on this node is preferred", reasons)
    if service.distribution in (SAME_NODE, SAME_ZONE) and _hints_hold(backends, place):
        return _keep(
            backends, lambda b: "" if place.zone in b.for_zones else f"not meant for zone {place.zone}", reasons
        )
    return backends


def nearest(backends: Backends, locality: Locality, *, place: Place, clusters: Clusters) -> Steps:
    """A policy's locality: ready backends by distance, from the named step outwards, then all others."""
    own = clusters.rows.get(clusters.own)
    region = own.region if own is not None else ""

    def in_region(backend: Backend) -> bool:
        row = clusters.rows.get(backend.key.cluster)
        return backend.key.cluster == place.cluster or (row is not None and bool(region) and row.region == region)

    within: dict[Locality, Callable[[Backend], bool]] = {
        "Node": lambda backend: _same_node(backend, place),
        "Zone": lambda backend: bool(place.zone) and backend.zone == place.zone,
        "Cluster": lambda backend: backend.key.cluster == place.cluster,
        "Region": in_region,
    }
    steps: list[Backends] = []
    for step in list(within)[list(within).index(locality) :]:
        here, backends = _parted(backends, partial(_ready_in, within[step]))
        steps.append(here)
    return _filled([*steps, backends])


def _ready_in(step: Callable[[Backend], bool], backend: Backend) -> bool:
    return backend.condition is READY and step(backend)


def preferred_clusters(backends: Backends, *, service: ResolvedService, place: Place) -> Steps:
    """Cluster affinity of a global Service (Cilium: service.cilium.io/affinity): own or other clusters first."""
    if service.preference == "none":
        return (backends,)
    own, other = _parted(backends, lambda backend: backend.key.cluster == place.cluster)
    if service.preference == "local" and any(backend.condition is READY for backend in own):
        return _filled([own, other])
    return _filled([other, own]) if service.preference == "remote" else (backends,)


def ready_steps(steps: Steps, *, reasons: Reasons) -> Steps:
    """Apply :func:`ready_first` to the first step and keep only ready backends in the fallbacks."""
    first, *fallbacks = steps
    behind = [_keep(step, lambda b: "" if b.condition is READY else TERMINATING, reasons) for step in fallbacks]
    return (ready_first(first, reasons=reasons), *filter(None, behind))


def ready_first(backends: Backends, *, reasons: Reasons) -> Backends:
    """Use terminating backends only if none is ready (KEP-1669)."""
    ready = [b for b in backends if b.condition is READY]
    if not ready or len(ready) == len(backends):
        return backends
    return _keep(backends, lambda b: "" if b.condition is READY else TERMINATING, reasons)


def _parted(backends: Backends, first: Callable[[Backend], bool]) -> tuple[Backends, Backends]:
    """Split backends into those that ``first`` accepts and the others."""
    parts: tuple[list[Backend], list[Backend]] = ([], [])
    for backend in backends:
        parts[not first(backend)].append(backend)
    return parts


def _filled(steps: Steps) -> Steps:
    """Drop empty steps; return one empty step if all are empty."""
    return [step for step in steps if step] or ((),)


def _keep(backends: Backends, why_not: Callable[[Backend], str], reasons: Reasons) -> Backends:
    kept = [backend for backend in backends if not why_not(backend)]
    if len(kept) < len(backends) and reasons is not ignore:
        for backend in backends:
            if reason := why_not(backend):
                reasons(backend, reason)
    return kept


def _same_node(backend: Backend, place: Place) -> bool:
    return backend.node == place.node and backend.key.cluster == place.cluster and bool(place.node)


def _hints_hold(backends: Backends, place: Place) -> bool:
    """Kubernetes' safeguards: the zone is known, every ready endpoint has hints, and one of them is for this zone."""
    ready = [b for b in backends if b.condition is READY]
    return bool(place.zone) and all(b.for_zones for b in ready) and any(place.zone in b.for_zones for b in ready)
