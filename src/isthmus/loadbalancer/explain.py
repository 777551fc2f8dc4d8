"""Explains the plans of a service: runs the planner with a collector for its reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from msgspec import Struct

from isthmus.loadbalancer import effects, envoy, own_ranges, plans
from isthmus.loadbalancer.backends import exports, unused_beside_karmada
from isthmus.loadbalancer.policies import effective, of_service, precedence
from isthmus.loadbalancer.port_redirects import order
from isthmus.loadbalancer.redirects import LOCAL, redirected, shortcomings
from isthmus.loadbalancer.selection import DEAD, Clusters, Place
from isthmus.loadbalancer.services import best, is_answered, resolve
from isthmus.loadbalancer.shares import TierShare, by_cluster, by_tier
from isthmus.model.balancing import Backend, Frontend, Plan, PlanKey
from isthmus.model.clusters import Reachability, reachability
from isthmus.model.hosts import family
from isthmus.model.l4_routes import L4_KINDS
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
    REFUSED_GATEWAYS,
    SERVICES,
)
from isthmus.statedb import Reader


class LeftOut(Struct, frozen=True):
    """A backend that a plan leaves out, and the reason."""

    backend: Backend
    reason: str


class PlanExplanation(Struct, frozen=True):
    """A plan, the backends that it leaves out, and the shares of its calls."""

    plan: Plan
    left_out: tuple[LeftOut, ...]
    shares: dict[ClusterName, float]
    """Each cluster's share of the calls, 0 to 1."""
    tiers: tuple[TierShare, ...]
    """Tiers of the policy in effect; empty if it has none."""
    unanswered: str = ""
    """Reason why the plan has no target; empty if it has one."""


class Explanation(Struct, frozen=True):
    """The plans of a service, and notes about rows that are used and rows that are not."""

    service: ServiceName
    import_of: ServiceName
    paths: tuple[PlanExplanation, ...]
    notes: tuple[str, ...]


def explain(
    reader: Reader,
    service: ServiceName,
    *,
    place: Place,
    without: Collection[ClusterName] = (),
) -> Explanation:
    """Explain a service as of this reader.

    ``without``: explain as if no backend of these clusters were ready.
    """
    left_out: dict[PlanKey, list[LeftOut]] = {}

    def record(key: PlanKey, backend: Backend, reason: str) -> None:
        if backend.key.cluster in without:
            reason = f"as if {backend.key.cluster} had nothing ready"
        elif reason == DEAD and (probe := reader.get(PROBES, backend.key)) and probe.reason:
            reason = f"{reason}: {probe.reason}"
        left_out.setdefault(key, []).append(LeftOut(backend, reason))

    computed = plans.compute(
        reader,
        service,
        cluster=place.cluster,
        node=place.node,
        reasons=lambda key: partial(record, key),
        without=without,
    )
    subject = resolve(reader, service, which="all")
    policy = of_service(reader, subject) if subject is not None else None
    clusters = Clusters(place.cluster, {each.name: each for each in reader.all(CLUSTERS)})

    def tiers(plan: Plan) -> tuple[TierShare, ...]:
        return by_tier(plan, policy, clusters) if policy is not None and not plan.redirected_by else ()

    paths = [(plan, sorted(left_out.get(plan.key, ()), key=lambda each: each.backend.key)) for plan in computed]
    row = best(reader, service)
    imported = row.import_of if row else next((each.name for each in reader.by(IMPORTS, "service", service)), "")
    return Explanation(
        service=service,
        import_of=ServiceName(imported),
        paths=tuple(
            PlanExplanation(
                plan,
                tuple(out),
                by_cluster(plan),
                tiers(plan),
                "" if any(group.targets for group in plan.groups) else unanswered(reader, plan, cluster=place.cluster),
            )
            for plan, out in sorted(paths, key=lambda pair: pair[0].key)
        ),
        notes=(*_notes(reader, service, place=place), *_as_they_are(computed, without)),
    )


def unanswered(reader: Reader, plan: Plan, *, cluster: ClusterName) -> str:
    """Return the reason why a plan has no targets, as the end of a sentence; it is never empty.

    In this order: backends of the port that the rules leave out, endpoints that do not match the port, refused records,
    and no endpoint at all.
    """
    key, service = plan.key, plan.key.service
    subject = resolve(reader, service, which="all")
    ports = subject.ports if subject is not None else ()
    names = {port.name for port in ports if (port.port, port.protocol) == (key.port, key.protocol)}
    backends = [
        row
        for row in reader.by(BACKENDS, "service", service)
        if family(row.key.address) == key.family and row.key.protocol == key.protocol and names & {*row.port_names}
    ]
    if backends:
        return f"each of its {len(backends)} backends is left out (not ready, drained, dead, or by its policy)"
    sets = reader.by(ENDPOINT_SETS, "service", service)
    endpoints = [(row.cluster or cluster, endpoint) for row in sets for endpoint in row.endpoints]
    clusters = ", ".join(sorted({where for where, _ in endpoints}))
    if endpoints and not any(family(endpoint.address) == key.family for _, endpoint in endpoints):
        return f"none of the {len(endpoints)} endpoints in {clusters} has an {key.family} address"
    if endpoints:
        return f"none of the {len(endpoints)} endpoints in {clusters} counts for this port"
    refused = [row for row in reader.all(CLUSTERS) if row.dropped]
    if refused:
        return "; ".join(f"{row.dropped} records of {row.name} were refused, {row.dropped_example}" for row in refused)
    return "no cluster has an endpoint of the service"


def services_called(reader: Reader, name: ServiceName) -> list[ServiceName]:
    """Return the services that a name refers to: of an import, a Service, or a policy that redirects an address."""
    services = {row.name for row in reader.by(SERVICES, "name", name)}
    services |= {row.name for row in reader.by(SERVICES, "import", name)}
    services |= {row.service for row in reader.by(REDIRECTS, "service", name)}
    services |= {row.service for row in reader.all(REFUSED_CLAIMS) if row.name == name}
    services |= {redirected(reader, row) for row in reader.all(LOCAL_REDIRECTS) if name in (row.name, row.service)}
    services |= {row.name for row in reader.by(ISLAND_PODS, "import", name)}
    if not services and (imported := reader.get(IMPORTS, name)) is not None:
        services |= set(IMPORTS.indexes["service"](imported))  # type: ignore[arg-type]
    return sorted(services)


def _as_they_are(computed: Iterable[Plan], without: Collection[ClusterName]) -> Iterator[str]:
    """Yield a note for each port whose TCPRoute or UDPRoute keeps backends of ``without``: its groups are a table's."""
    if not without:
        return
    followed = {
        (plan.key.port, plan.redirected_by) for plan in computed if plan.redirected_by.partition(" ")[0] in L4_KINDS
    }
    for port, owner in sorted(followed):
        yield f"port {port} follows {owner}: its backends are shown as they are, not without {', '.join(without)}"


def _notes(reader: Reader, service: ServiceName, *, place: Place) -> Iterator[str]:
    lost = sorted((row for row in reader.all(FRONTENDS) if service in row.shadowed), key=lambda row: row.key)
    yield from _of_the_service(reader, service, unclaimed=not lost)
    for row in sorted(reader.by(FRONTENDS, "service", service), key=lambda row: row.key):
        if row.shadowed:
            yield f"{row.key} is also claimed by {', '.join(row.shadowed)}: {_claim(row)} comes first"
    for row in lost:
        yield f"{row.key} is answered for {row.service}: {_claim(row)} comes first"
    for refused in sorted(reader.by(REFUSED_CLAIMS, "service", service), key=REFUSED_CLAIMS.key):
        yield f"not called at {refused.address}, as {refused.kind} {refused.name} asks: {refused.message}"
    yield from _of_policies(reader, service, place=place)
    yield from _of_redirects(reader, service, node=place.node)
    yield from _of_endpoints(reader, service, place=place)


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
    elif not frontends and unclaimed and not is_answered(row, "multicluster"):
        yield "it is a plain Service: no import, not global, not redirected; only datapath.services 'all' answers it"


def _of_policies(reader: Reader, service: ServiceName, *, place: Place) -> Iterator[str]:
    rows = sorted(reader.by(POLICIES, "service", service), key=precedence)
    first = effective(rows)
    for row in rows:
        if row.invalid:
            yield f"{row.policy_kind} {row.name} has no effect: {row.invalid}"
        elif row is first:
            yield f"shared out by {row.policy_kind} {row.name}"
            for message in dict.fromkeys(each.message for each in effects.ignored_fields(reader, row, place.cluster)):
                yield f"{row.policy_kind} {row.name}, without effect: {message}"
        elif first is not None:
            yield f"{row.policy_kind} {row.name} waits behind {first.policy_kind} {first.name}"


def _of_redirects(reader: Reader, service: ServiceName, *, node: str) -> Iterator[str]:
    every = sorted(reader.by(REDIRECTS, "service", service), key=order)
    for row in every:
        if row.callers:
            yield f"calls of pods of namespace {row.callers} are redirected by {row.owner}, for the ports it means"
    rows = [row for row in every if not row.callers]
    for row in rows[:1]:
        yield f"redirected by {row.owner}, for the ports it means"
    for row in rows[1:]:
        yield f"{row.owner} waits behind {rows[0].owner}, for the ports that both mean"
    for policy in sorted(reader.all(LOCAL_REDIRECTS), key=LOCAL_REDIRECTS.key):
        if redirected(reader, policy) == service:
            pods = reader.by(PODS, "namespace", split(policy.name)[0])
            for shortcoming in shortcomings(policy, pods, best(reader, service), node=node):
                yield f"{LOCAL}{policy.name} {shortcoming}"


def _of_endpoints(reader: Reader, service: ServiceName, *, place: Place) -> Iterator[str]:
    used = {(row.key.cluster, row.source) for row in reader.by(BACKENDS, "service", service)}
    for (cluster, source), rows in sorted(_by_source(reader.by(ENDPOINT_SETS, "service", service), place).items()):
        better = [s for c, s in used if c == cluster and s != source and (rank(s), s) < (rank(source), source)]
        count = sum(len(row.endpoints) for row in rows)
        if better:
            yield f"{cluster}: {count} endpoints of {source} are shadowed by {better[0]}"
        elif count and rows[0].lapsed:
            alive = sum(row.lapsed for row in reader.by(BACKENDS, "service", service) if row.key.cluster == cluster)
            yield f"{cluster}: away longer than the cache lifetime; {alive} backends stay that a probe finds alive"
        elif (
            count
            and (way := reachability(reader.get(CLUSTERS, place.cluster), reader.get(CLUSTERS, cluster))) != "direct"
        ):
            yield _of_island(reader, service, cluster, count, way=way)
        elif count and (untrusted := _untrusted(reader, service, rows, place=place)):
            yield f"{cluster}: {untrusted}"
        elif (cluster, source) not in used and count and not reader.by(REDIRECTS, "service", service):
            yield f"{cluster}: {count} endpoints of {source} are not used: no port agrees, or they are not shared"
        elif count and source == KARMADA:
            yield f"{cluster}: {count} endpoints are as Karmada wrote them, which keeps those of a cluster that fails"


def _way(reader: Reader, place: Place, cluster: ClusterName) -> Reachability:
    return reachability(reader.get(CLUSTERS, place.cluster), reader.get(CLUSTERS, cluster))


def _of_island(reader: Reader, service: ServiceName, cluster: ClusterName, count: int, *, way: Reachability) -> str:
    """Return a sentence on how endpoints of an island are called, or why they are not, without their addresses."""
    if any(row.stands_for for row in reader.by(BACKENDS, "service", service) if row.key.cluster == cluster):
        gateways = sorted(reader.by(GATEWAY_CHECKS, "cluster", cluster), key=lambda row: row.address)
        alive = ", ".join(row.address for row in gateways if row.healthy) or "none is known to answer"
        dead = [f"{row.address} ({row.reason})" for row in gateways if not row.healthy]
        sentence = f"{cluster}: its {count} endpoints are called through this node's Envoy and its gateways: {alive}"
        return f"{sentence}; dead: {', '.join(dead)}" if dead else sentence
    if pods := [row for row in reader.by(ISLAND_PODS, "cluster", cluster) if derived(row.import_of) == service]:
        all_of = f"{len(pods)} of its" if len(pods) < count else "its"
        text = f"{cluster}: {all_of} {count} endpoints have an address on this node, by which the gateways are called"
        return f"{text} for them" + ("" if len(pods) == count else ": more are not taken (gateway.pod_ports)")
    reason = "that cluster is on another network"
    if way == "none":
        return f"{cluster}: {count} endpoints are not used: {reason}, and has no gateway"
    if refused := [row for row in reader.by(REFUSED_GATEWAYS, "cluster", cluster) if row.all_refused]:
        return (
            f"{cluster}: {count} endpoints are not used: {reason}, and its gateways are refused: {refused[0].message}"
        )
    if not reader.by(ISLAND_LISTENERS, "service", service):
        return (
            f"{cluster}: {count} endpoints are not used: {reason}, and nothing on this node calls its gateways for it"
        )
    envoys = "does not serve its listener yet" if envoy.answers(reader) else "does not answer"
    return f"{cluster}: {count} endpoints are not used: {reason}, and this node's Envoy {envoys}"


def _untrusted(reader: Reader, service: ServiceName, rows: list[EndpointSet], *, place: Place) -> str:
    """Return the reason why a peer's endpoints are not used, as a sentence; empty if they are, or are no peer's."""
    cluster, source = rows[0].cluster, rows[0].source
    subject = resolve(reader, service, which="all")
    if source != CLUSTERSET or cluster == place.cluster or subject is None:
        return ""
    if not exports(subject, cluster):
        return f"{sum(len(row.endpoints) for row in rows)} endpoints are not used: it does not export the service"
    sets = reader.by(ENDPOINT_SETS, "service", service)
    if subject.claimed and (unused := unused_beside_karmada(reader, rows[0], sets, place.cluster)):
        return f"{sum(len(row.endpoints) for row in rows)} endpoints are not used: {unused}"
    ranges = reader.get(OWN_RANGES, "own") or own_ranges.NONE
    own = [
        (e.address, reason) for row in rows for e in row.endpoints if (reason := own_ranges.inside(e.address, ranges))
    ]
    return f"{len(own)} endpoints are not used: {own[0][0]}: {own[0][1]}" if own else ""


def _by_source(rows: Iterable[EndpointSet], place: Place) -> dict[tuple[ClusterName, str], list[EndpointSet]]:
    by_source: dict[tuple[ClusterName, str], list[EndpointSet]] = {}
    for row in rows:
        by_source.setdefault((row.cluster or place.cluster, row.source), []).append(row)
    return by_source
