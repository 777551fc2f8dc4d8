"""Why calls of a service go where they go: the code that plans, with a collector for its reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from msgspec import Struct

from isthmus.loadbalancer import own_ranges, plans
from isthmus.loadbalancer.backends import exports, unused_beside_karmada
from isthmus.loadbalancer.policies import counting, of_service, precedence
from isthmus.loadbalancer.port_redirects import order
from isthmus.loadbalancer.redirects import LOCAL, shortcomings
from isthmus.loadbalancer.selection import DEAD, Clusters, Place
from isthmus.loadbalancer.services import best, resolve, wanted
from isthmus.loadbalancer.shares import TierShare, by_cluster, by_tier
from isthmus.model.balancing import Backend, Frontend, Plan, PlanKey
from isthmus.model.clusters import Reachability, reachability
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import EndpointSet
from isthmus.model.sources import CLUSTERSET, KARMADA, rank
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    ENDPOINT_SETS,
    FRONTENDS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    LOCAL_REDIRECTS,
    OWN_RANGES,
    PODS,
    POLICIES,
    PROBES,
    REDIRECTS,
    REFUSED_CLAIMS,
    SERVICES,
)
from isthmus.statedb import Reader


class LeftOut(Struct, frozen=True):
    """A backend that calls of a plan do not reach, and why."""

    backend: Backend
    reason: str


class PlanExplanation(Struct, frozen=True):
    """One plan, the backends that it leaves out, and where its calls go."""

    plan: Plan
    left_out: tuple[LeftOut, ...]
    shares: dict[ClusterName, float]
    """The part of the calls that each cluster has, 0 to 1."""
    tiers: tuple[TierShare, ...]
    """Of the policy that counts; none where it has none."""


class Explanation(Struct, frozen=True):
    """The plans of a service, and sentences about which rows count and which do not."""

    service: ServiceName
    import_of: ServiceName
    paths: tuple[PlanExplanation, ...]
    notes: tuple[str, ...]


def explain(
    reader: Reader,
    service: ServiceName,
    *,
    at: Place,
    without: Collection[ClusterName] = (),
) -> Explanation:
    """The explanation of a service as the tables are now.

    ``without``: the same, as it would be if no backend of these clusters were ready.
    """
    left: dict[PlanKey, list[LeftOut]] = {}

    def record(key: PlanKey, backend: Backend, reason: str) -> None:
        if backend.key.cluster in without:
            reason = f"as if {backend.key.cluster} had nothing ready"
        elif reason == DEAD and (probe := reader.get(PROBES, backend.key)) and probe.reason:
            reason = f"{reason}: {probe.reason}"
        left.setdefault(key, []).append(LeftOut(backend, reason))

    found = plans.compute(
        reader,
        service,
        cluster=at.cluster,
        node=at.node,
        reasons=lambda key: partial(record, key),
        without=without,
    )
    subject = resolve(reader, service, which="all")
    policy = of_service(reader, subject) if subject is not None else None
    clusters = Clusters(at.cluster, {each.name: each for each in reader.all(CLUSTERS)})

    def tiers(plan: Plan) -> tuple[TierShare, ...]:
        return by_tier(plan, policy, clusters) if policy is not None and not plan.redirected_by else ()

    paths = [(plan, sorted(left.get(plan.key, ()), key=lambda each: each.backend.key)) for plan in found]
    row = best(reader, service)
    imported = row.import_of if row else next((each.name for each in reader.by(IMPORTS, "service", service)), "")
    return Explanation(
        service=service,
        import_of=ServiceName(imported),
        paths=tuple(
            PlanExplanation(plan, tuple(out), by_cluster(plan), tiers(plan))
            for plan, out in sorted(paths, key=lambda pair: pair[0].key)
        ),
        notes=tuple(_notes(reader, service, at=at)),
    )


def called(reader: Reader, name: ServiceName) -> list[ServiceName]:
    """The services that a name may mean: of an import, a Service, or a policy that redirects an address."""
    found = {row.name for row in reader.by(SERVICES, "name", name)}
    found |= {row.name for row in reader.by(SERVICES, "import", name)}
    found |= {row.service for row in reader.by(REDIRECTS, "service", name)}
    found |= {row.service for row in reader.all(REFUSED_CLAIMS) if row.name == name}
    found |= {row.subject for row in reader.all(LOCAL_REDIRECTS) if name in (row.name, row.service)}
    found |= {row.name for row in reader.by(ISLAND_PODS, "import", name)}
    if not found and (imported := reader.get(IMPORTS, name)) is not None:
        found |= set(IMPORTS.indexes["service"](imported))  # type: ignore[arg-type]
    return sorted(found)


def _notes(reader: Reader, service: ServiceName, *, at: Place) -> Iterator[str]:
    lost = sorted((row for row in reader.all(FRONTENDS) if service in row.shadowed), key=lambda row: row.key)
    yield from _of_the_service(reader, service, unclaimed=not lost)
    for row in sorted(reader.by(FRONTENDS, "service", service), key=lambda row: row.key):
        if row.shadowed:
            yield f"{row.key} is also claimed by {', '.join(row.shadowed)}: {_claim(row)} comes first"
    for row in lost:
        yield f"{row.key} is answered for {row.service}: {_claim(row)} comes first"
    for refused in sorted(reader.by(REFUSED_CLAIMS, "service", service), key=REFUSED_CLAIMS.key):
        yield f"not called at {refused.address}, as {refused.kind} {refused.name} asks: {refused.message}"
    yield from _of_policies(reader, service)
    yield from _of_redirects(reader, service, node=at.node)
    yield from _of_endpoints(reader, service, at=at)


def _claim(row: Frontend) -> str:
    return f"its claim as {row.type}"


def _of_the_service(reader: Reader, service: ServiceName, *, unclaimed: bool) -> Iterator[str]:
    row = best(reader, service)
    if row is None:
        if (pod := reader.get(ISLAND_PODS, service)) is not None:
            yield f"a pod of {pod.cluster} behind {pod.import_of}, at {', '.join(pod.addresses)} on this node"
        elif not reader.by(IMPORTS, "service", service) and not reader.by(REDIRECTS, "service", service):
            yield "no source has such a service"
        return
    for other in sorted(reader.by(SERVICES, "name", service), key=lambda each: rank(each.source)):
        if other.source != row.source:
            yield f"source {other.source} has it too: {row.source} comes first, for all of it"
    frontends = reader.by(FRONTENDS, "service", service)
    if not frontends and row.headless:
        yield "it is headless: there is no address to be called at"
    elif not frontends and unclaimed and not wanted(row, "multicluster"):
        yield "it is a plain Service: no import, not global, not redirected; only datapath.services 'all' answers it"


def _of_policies(reader: Reader, service: ServiceName) -> Iterator[str]:
    rows = sorted(reader.by(POLICIES, "service", service), key=precedence)
    first = counting(rows)
    for row in rows:
        if row.invalid:
            yield f"{row.policy_kind} {row.name} has no effect: {row.invalid}"
        elif row is first:
            yield f"shared out by {row.policy_kind} {row.name}"
        elif first is not None:
            yield f"{row.policy_kind} {row.name} waits behind {first.policy_kind} {first.name}"


def _of_redirects(reader: Reader, service: ServiceName, *, node: str) -> Iterator[str]:
    rows = sorted(reader.by(REDIRECTS, "service", service), key=order)
    for row in rows[:1]:
        yield f"redirected by {row.owner}, for the ports it means"
    for row in rows[1:]:
        yield f"{row.owner} waits behind {rows[0].owner}, for the ports that both mean"
    for policy in sorted(reader.all(LOCAL_REDIRECTS), key=LOCAL_REDIRECTS.key):
        if policy.subject == service:
            pods = reader.by(PODS, "namespace", split(policy.name)[0])
            for shortcoming in shortcomings(policy, pods, best(reader, service), node=node):
                yield f"{LOCAL}{policy.name} {shortcoming}"


def _of_endpoints(reader: Reader, service: ServiceName, *, at: Place) -> Iterator[str]:
    used = {(row.key.cluster, row.source) for row in reader.by(BACKENDS, "service", service)}
    for (cluster, source), rows in sorted(_by_source(reader.by(ENDPOINT_SETS, "service", service), at).items()):
        better = [s for c, s in used if c == cluster and s != source and (rank(s), s) < (rank(source), source)]
        count = sum(len(row.endpoints) for row in rows)
        if better:
            yield f"{cluster}: {count} endpoints of {source} are shadowed by {better[0]}"
        elif count and rows[0].lapsed:
            left = sum(row.lapsed for row in reader.by(BACKENDS, "service", service) if row.key.cluster == cluster)
            yield f"{cluster}: away longer than the cache lifetime; {left} backends stay that a probe finds alive"
        elif (
            count and (way := reachability(reader.get(CLUSTERS, at.cluster), reader.get(CLUSTERS, cluster))) != "direct"
        ):
            yield _of_island(reader, service, cluster, count, way=way)
        elif count and (why := _untrusted(reader, service, rows, at=at)):
            yield f"{cluster}: {why}"
        elif (cluster, source) not in used and count and not reader.by(REDIRECTS, "service", service):
            yield f"{cluster}: {count} endpoints of {source} are not used: no port agrees, or they are not shared"
        elif count and source == KARMADA:
            yield f"{cluster}: {count} endpoints are as Karmada wrote them, which keeps those of a cluster that fails"


def _way(reader: Reader, at: Place, cluster: ClusterName) -> Reachability:
    return reachability(reader.get(CLUSTERS, at.cluster), reader.get(CLUSTERS, cluster))


def _of_island(reader: Reader, service: ServiceName, cluster: ClusterName, count: int, *, way: Reachability) -> str:
    """How endpoints of a cluster on another network are called, or why they are not; without their addresses."""
    if any(row.stands_for for row in reader.by(BACKENDS, "service", service) if row.key.cluster == cluster):
        gateways = sorted(reader.by(GATEWAY_CHECKS, "cluster", cluster), key=lambda row: row.address)
        alive = ", ".join(row.address for row in gateways if row.healthy) or "none is known to answer"
        dead = [f"{row.address} ({row.reason})" for row in gateways if not row.healthy]
        found = f"{cluster}: its {count} endpoints are called through this node's Envoy and its gateways: {alive}"
        return f"{found}; dead: {', '.join(dead)}" if dead else found
    if found_here := [row for row in reader.by(ISLAND_PODS, "cluster", cluster) if derived(row.import_of) == service]:
        all_of = f"{len(found_here)} of its" if len(found_here) < count else "its"
        said = f"{cluster}: {all_of} {count} endpoints have an address on this node, by which the gateways are called"
        return f"{said} for them" + ("" if len(found_here) == count else ": more are not taken (gateway.pod_ports)")
    why = "that cluster is on another network"
    if way == "none":
        return f"{cluster}: {count} endpoints are not used: {why}, and has no gateway"
    if not reader.by(ISLAND_LISTENERS, "service", service):
        return f"{cluster}: {count} endpoints are not used: {why}, and nothing on this node calls its gateways for it"
    return f"{cluster}: {count} endpoints are not used: {why}, and this node's Envoy does not serve its listener yet"


def _untrusted(reader: Reader, service: ServiceName, rows: list[EndpointSet], *, at: Place) -> str:
    """Why endpoints that a peer names do not count, as a sentence; empty where they do, or no peer names them."""
    cluster, source = rows[0].cluster, rows[0].source
    subject = resolve(reader, service, which="all")
    if source != CLUSTERSET or cluster == at.cluster or subject is None:
        return ""
    if not exports(subject, cluster):
        return f"{sum(len(row.endpoints) for row in rows)} endpoints are not used: it does not export the service"
    sets = reader.by(ENDPOINT_SETS, "service", service)
    if subject.claimed and (unused := unused_beside_karmada(reader, rows[0], sets, at.cluster)):
        return f"{sum(len(row.endpoints) for row in rows)} endpoints are not used: {unused}"
    ranges = reader.get(OWN_RANGES, "own") or own_ranges.NONE
    ours = [(e.address, why) for row in rows for e in row.endpoints if (why := own_ranges.inside(e.address, ranges))]
    return f"{len(ours)} endpoints are not used: {ours[0][0]}: {ours[0][1]}" if ours else ""


def _by_source(rows: Iterable[EndpointSet], at: Place) -> dict[tuple[ClusterName, str], list[EndpointSet]]:
    found: dict[tuple[ClusterName, str], list[EndpointSet]] = {}
    for row in rows:
        found.setdefault((row.cluster or at.cluster, row.source), []).append(row)
    return found
