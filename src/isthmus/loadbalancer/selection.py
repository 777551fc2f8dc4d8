"""Which backends a call may reach: every rule of selection, one function each, in the order they are applied.

Each rule takes backends and returns those it keeps, and calls ``reasons`` with each of the others, so that explaining a
plan runs the same code as making it. Nothing here reads a table, a clock or the network.

A policy's locality and a service's preference of clusters leave none out: they order the backends in steps. Calls reach
the first; the others are fallbacks for the kernel, which finds all of the first dead before readiness or probes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from isthmus.loadbalancer.drains import Drained, describe
from isthmus.loadbalancer.services import ResolvedService
from isthmus.model.balancing import Backend, PlanKey, Scope
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.policies import Locality, Policy
from isthmus.model.services import Condition

Reasons = Callable[[Backend, str], None]
"""Called with each backend that is left out, and why, as a part of a sentence."""

Backends = Sequence[Backend]
Steps = Sequence[Backends]
"""Backends in order of preference, at least one step. None is in two steps, and none is empty if another is not."""

READY: Final = Condition.READY
INTERNAL: Final = Scope.INTERNAL

DEAD: Final = "probes find it dead"
TERMINATING: Final = "it is terminating"
SAME_NODE: Final = "PreferSameNode"
SAME_ZONE: Final = "PreferSameZone"


class Place(Struct, frozen=True, gc=False):
    """Where the decision is taken: the own cluster, this node and its zone."""

    cluster: ClusterName
    node: str = ""
    zone: str = ""


class Clusters(NamedTuple):
    """The clusters that a policy may mean: the own one's name, and what is known of each."""

    own: ClusterName
    known: Mapping[ClusterName, Cluster]


def ignore(backend: Backend, reason: str) -> None:
    """A collector that drops every reason."""


def select(
    key: PlanKey,
    backends: Iterable[Backend],
    *,
    of: ResolvedService,
    at: Place,
    port_name: str,
    policy: Policy | None,
    clusters: Clusters,
    drained: Drained | None,
    reasons: Reasons,
) -> Steps:
    """The backends that calls of a plan may reach, in no order within a step."""
    left: Backends = tuple(backends)
    serving = all_serve(left, key, port_name)
    if not serving:
        left = matching(left, key=key, port_name=port_name, reasons=reasons)
    if local_only(of, key.scope):
        left = on_this_node(left, at=at, reasons=reasons)
    if not serving:
        left = answering(usable(left, reasons=reasons), refuse=policy is not None and policy.refuse, reasons=reasons)
    if drained is not None:
        left = undrained(left, drained, reasons=reasons)
    if policy is not None and policy.locality:
        steps = nearest(left, policy.locality, at=at, clusters=clusters)
    else:
        left = near(left, of=of, at=at, reasons=reasons)
        ordered = policy is not None and policy.tiers  # they order the clusters themselves
        steps = (left,) if ordered else preferred_clusters(left, of=of, at=at)
    return steps if serving else ready_steps(steps, reasons=reasons)


def all_serve(backends: Backends, key: PlanKey, port_name: str) -> bool:  # hot:
    """Whether no rule leaves any backend out for what it is by itself: nearly always so, and quick to see."""
    protocol, dots = key.protocol, key.family == "IPv4"
    for backend in backends:
        at = backend.key
        if backend.condition is not READY or not backend.healthy or at.protocol != protocol:
            return False
        if port_name not in backend.port_names or (":" in at.address) is dots:
            return False
    return True


def matching(backends: Backends, *, key: PlanKey, port_name: str, reasons: Reasons) -> Backends:
    """The same protocol, address family and port name."""

    return _keep(backends, partial(mismatch, key=key, port_name=port_name), reasons)


def mismatch(backend: Backend, *, key: PlanKey, port_name: str) -> str:
    """Why a backend is none of a plan's, empty where it is one."""
    if backend.key.protocol != key.protocol:
        return f"its protocol is {backend.key.protocol}"
    if (":" in backend.key.address) != (key.family == "IPv6"):
        return f"it is not {key.family}"
    if port_name not in backend.port_names:
        return f"its port is not '{port_name}'"
    return ""


def each_by_itself(of: ResolvedService, scope: Scope) -> bool:
    """Whether, without a policy and a drain, :func:`select` gives exactly what is the plan's and :func:`serves`,
    as long as there is one: no rule compares it with the others, or with this node."""
    if of.preference != "none" or (of.distribution and of.internal_policy != "Local"):
        return False
    return not local_only(of, scope)


def serves(backend: Backend) -> bool:
    """Whether a backend is as good as one can be by itself: others count only where there is none."""
    return backend.condition is READY and backend.healthy


def local_only(of: ResolvedService, scope: Scope) -> bool:
    """Whether the traffic policy for calls from inside, or from outside, wants endpoints of this node only."""
    return (of.internal_policy if scope & INTERNAL else of.external_policy) == "Local"


def on_this_node(backends: Backends, *, at: Place, reasons: Reasons) -> Backends:
    """Traffic policy Local: only what runs on this node."""
    return _keep(backends, lambda b: "" if _same_node(b, at) else "traffic policy Local, another node", reasons)


def usable(backends: Backends, *, reasons: Reasons) -> Backends:
    """What serves: ready, or terminating and still serving."""
    reason = {Condition.NOT_READY: "it is not ready", Condition.GONE: "it has ended"}
    serving = Condition.TERMINATING
    return _keep(backends, lambda b: "" if b.condition <= serving else reason[b.condition], reasons)


def answering(backends: Backends, *, refuse: bool = False, reasons: Reasons) -> Backends:
    """What probes find alive. Where they find nothing alive all count, unless a policy has calls refused then."""
    alive = [backend for backend in backends if backend.healthy]
    if (not alive and not refuse) or len(alive) == len(backends):
        return backends
    return _keep(backends, lambda backend: "" if backend.healthy else DEAD, reasons)


def undrained(backends: Backends, drained: Drained, *, reasons: Reasons = ignore) -> Backends:
    """What no drain has taken out; all of it where the drain would leave nothing, or only what is ending."""
    best = min((backend.condition for backend in backends), default=READY)
    if not any(backend.condition == best and drained.left(backend) for backend in backends):
        return backends

    def drain(backend: Backend) -> str:
        row = drained.of(backend)
        return describe(row) if row is not None and not row.left else ""

    return _keep(backends, drain, reasons)


def near(backends: Backends, *, of: ResolvedService, at: Place, reasons: Reasons) -> Backends:
    """Traffic distribution: this node, else this zone by hints; never at the price of having nothing."""
    if not of.distribution or of.internal_policy == "Local":
        return backends  # Kubernetes gives no hints there
    if of.distribution == SAME_NODE:
        here = [b for b in backends if _same_node(b, at) and b.condition is READY]
        if here:
            return _keep(backends, lambda b: "" if b in here else "one on this node is preferred", reasons)
    if of.distribution in (SAME_NODE, SAME_ZONE) and _hints_hold(backends, at):
        return _keep(backends, lambda b: "" if at.zone in b.for_zones else f"not meant for zone {at.zone}", reasons)
    return backends


def nearest(backends: Backends, locality: Locality, *, at: Place, clusters: Clusters) -> Steps:
    """A policy's locality: what is ready in each of these steps, from the one it names on, and then the others."""
    own = clusters.known.get(clusters.own)
    region = own.region if own is not None else ""

    def in_region(backend: Backend) -> bool:
        row = clusters.known.get(backend.key.cluster)
        return backend.key.cluster == at.cluster or (row is not None and bool(region) and row.region == region)

    within: dict[Locality, Callable[[Backend], bool]] = {
        "Node": lambda backend: _same_node(backend, at),
        "Zone": lambda backend: bool(at.zone) and backend.zone == at.zone,
        "Cluster": lambda backend: backend.key.cluster == at.cluster,
        "Region": in_region,
    }
    steps: list[Backends] = []
    for step in list(within)[list(within).index(locality) :]:
        here, backends = _parted(backends, partial(_ready_in, within[step]))
        steps.append(here)
    return _filled([*steps, backends])


def _ready_in(step: Callable[[Backend], bool], backend: Backend) -> bool:
    return backend.condition is READY and step(backend)


def preferred_clusters(backends: Backends, *, of: ResolvedService, at: Place) -> Steps:
    """The clusters' affinity of a global service (Cilium: service.cilium.io/affinity): own or other clusters first."""
    if of.preference == "none":
        return (backends,)
    own, other = _parted(backends, lambda backend: backend.key.cluster == at.cluster)
    if of.preference == "local" and any(backend.condition is READY for backend in own):
        return _filled([own, other])
    return _filled([other, own]) if of.preference == "remote" else (backends,)


def ready_steps(steps: Steps, *, reasons: Reasons) -> Steps:
    """The first step by :func:`ready_first`; a fallback is what is ready."""
    first, *others = steps
    behind = [_keep(step, lambda b: "" if b.condition is READY else TERMINATING, reasons) for step in others]
    return (ready_first(first, reasons=reasons), *filter(None, behind))


def ready_first(backends: Backends, *, reasons: Reasons) -> Backends:
    """What is terminating serves only where nothing is ready (KEP-1669)."""
    ready = [b for b in backends if b.condition is READY]
    if not ready or len(ready) == len(backends):
        return backends
    return _keep(backends, lambda b: "" if b.condition is READY else TERMINATING, reasons)


def _parted(backends: Backends, first: Callable[[Backend], bool]) -> tuple[Backends, Backends]:
    """(those that are first, the others)."""
    found: tuple[list[Backend], list[Backend]] = ([], [])
    for backend in backends:
        found[not first(backend)].append(backend)
    return found


def _filled(steps: Steps) -> Steps:
    """The steps that have something; one that is empty where none has."""
    return [step for step in steps if step] or ((),)


def _keep(backends: Backends, why_not: Callable[[Backend], str], reasons: Reasons) -> Backends:
    left = [backend for backend in backends if not why_not(backend)]
    if len(left) < len(backends) and reasons is not ignore:
        for backend in backends:
            if reason := why_not(backend):
                reasons(backend, reason)
    return left


def _same_node(backend: Backend, at: Place) -> bool:
    return backend.node == at.node and backend.key.cluster == at.cluster and bool(at.node)


def _hints_hold(backends: Backends, at: Place) -> bool:
    """Kubernetes' safeguards: every ready endpoint has hints, one of them is for this zone, and the zone is known."""
    ready = [b for b in backends if b.condition is READY]
    return bool(at.zone) and all(b.for_zones for b in ready) and any(at.zone in b.for_zones for b in ready)
