"""Plans: what the calls of a frontend are spread over. ``plan`` is the one place that chooses, and it is pure.

The unit is a service: adding or removing a backend may change the plans of all its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer import policies
from isthmus.loadbalancer.backends import Lookup
from isthmus.loadbalancer.drains import Drained
from isthmus.loadbalancer.port_redirects import of_plan
from isthmus.loadbalancer.selection import Clusters, Place, Reasons, all_serve, each_by_itself, ignore, matching, select
from isthmus.loadbalancer.services import (
    ResolvedService,
    names_for_import,
    no_service,
    resolve,
    resolved_pod,
)
from isthmus.loadbalancer.tiers import (
    MAX_GROUPS,
    NOTHING_DRAINED,
    PercentLeft,
    groups,
    in_sequence,
    named,
    positions,
    together,
)
from isthmus.model.balancing import REFUSAL, Backend, Frontend, FrontendKey, Group, Plan, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name
from isthmus.model.policies import Policy
from isthmus.model.redirects import PortRedirect
from isthmus.model.services import Condition, Labels, Node
from isthmus.model.sources import is_peer
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    DRAINING,
    FRONTENDS,
    IMPORTS,
    NODES,
    PLANS,
    POLICIES,
    PORT_REDIRECTS,
    SERVICES,
)
from isthmus.statedb import Reader

ByPlan = Collection[tuple[PlanKey, Sequence[Frontend]]]
"""The frontends of each plan."""


def plan(
    key: PlanKey,
    *,
    service: ResolvedService,
    frontends: Sequence[Frontend],
    backends: Iterable[Backend],
    place: Place,
    policy: Policy | None = None,
    clusters: Clusters | None = None,
    awaited: Sequence[str] = (),
    redirect: PortRedirect | None = None,
    port_name: str | None = None,
    drained: Drained | None = None,
    reasons: Reasons = ignore,
) -> Plan:
    """Return the plan of these frontends. ``reasons`` is called with each backend left out and the reason."""
    frontend_keys = (frontends[0].key,) if len(frontends) == 1 else tuple(sorted([each.key for each in frontends]))
    port_name = _port_name(frontends) if port_name is None else port_name
    if redirect is not None and redirect.kind == "local":
        for backend in backends if reasons is not ignore else ():
            reasons(backend, f"calls are redirected by {redirect.owner}")
        return Plan(
            key=key,
            frontends=frontend_keys,
            groups=(Group(redirect.targets),),
            redirected_by=redirect.owner,
            skip=redirect.skip,
            import_of=service.import_of,
        )
    affinity, timeout = service.affinity, service.affinity_timeout
    if policy is not None and policy.affinity is not None:
        affinity, timeout = policy.affinity, policy.affinity_timeout if policy.affinity != "None" else 0
    if redirect is not None and redirect.groups:
        return Plan(
            key=key,
            frontends=frontend_keys,
            groups=_routed(redirect.groups, awaited=bool(awaited)),
            affinity=affinity,
            affinity_timeout=timeout,
            ejection=policy.ejection if policy else None,
            awaited=tuple(sorted(awaited)),
            redirected_by=redirect.owner,
            import_of=service.import_of,
            consumers=redirect.consumers,
        )
    plan_groups: tuple[Group, ...]
    candidates = tuple(backends)
    if (
        policy is None
        and drained is None
        and each_by_itself(service, key.scope)
        and all_serve(candidates, key, port_name)
    ):
        plan_groups = together(candidates)  # nearly always: no rule of selection has anything to decide
    else:
        clusters = clusters or Clusters(place.cluster, {})
        plan_groups = _groups(
            key,
            candidates,
            service,
            place,
            port_name=port_name,
            policy=policy,
            clusters=clusters,
            drained=drained,
            reasons=reasons,
        )
    if redirect is not None and redirect.targets:
        return _through(redirect, key, frontend_keys, plan_groups, service=service)
    consistent = policy.consistent if policy else None
    return Plan(  # positional: it takes a tenth of the time
        key,
        frontend_keys,
        plan_groups,
        affinity,
        timeout,
        service.consistent if consistent is None else consistent,
        policy.ejection if policy else None,
        tuple(sorted(awaited)) if awaited and service.multicluster else (),
        import_of=service.import_of,
        consumers=redirect.consumers if redirect is not None else (),
        consumers_only=redirect is not None and not all(each.managed for each in frontends),
    )


def _routed(groups: Sequence[Group], *, awaited: bool) -> tuple[Group, ...]:
    """Return the groups of a TCPRoute or UDPRoute, of which those without a target refuse their calls.

    While peers are awaited, which may have these targets, the other groups get the calls.
    """
    if awaited:
        return tuple(group for group in groups if group.targets)
    return tuple(group if group.targets else replace(group, targets=(REFUSAL,)) for group in groups)


def _through(
    redirect: PortRedirect,
    key: PlanKey,
    frontend_keys: tuple[FrontendKey, ...],
    own_groups: Sequence[Group],
    *,
    service: ResolvedService,
) -> Plan:
    """Return a plan with the proxy first and the service's own backends as fallbacks.

    It has neither affinity nor consistent hashing, so that a caller that was moved from a dead proxy returns to it. It
    awaits no peers: their backends would be used beside the proxy, not behind it.
    """
    behind = [replace(group, tier=group.tier + 1) for group in own_groups[: MAX_GROUPS - 1]]
    return Plan(
        key=key,
        frontends=frontend_keys,
        groups=(Group(redirect.targets), *behind),
        redirected_by=redirect.owner,
        import_of=service.import_of,
        consumers=redirect.consumers,
    )


def _groups(
    key: PlanKey,
    candidates: Sequence[Backend],
    service: ResolvedService,
    place: Place,
    *,
    port_name: str,
    policy: Policy | None,
    clusters: Clusters,
    drained: Drained | None,
    reasons: Reasons,
) -> tuple[Group, ...]:
    """Apply every selection rule, then group the remaining backends by the policy's tiers."""
    if policy is None and drained is None:
        steps = select(
            key,
            candidates,
            service=service,
            place=place,
            port_name=port_name,
            policy=None,
            clusters=clusters,
            drained=None,
            reasons=reasons,
        )
        return together(steps[0]) if len(steps) == 1 else in_sequence(map(together, steps))
    tiers = policy.tiers if policy else ()
    eligible: Sequence[Backend] = ()
    cluster_positions = positions({backend.key.cluster for backend in candidates}, tiers, clusters) if tiers else {}
    if tiers:
        candidates = named(candidates, tiers, positions=cluster_positions, reasons=reasons)
    if any(tier.min_percent for tier in tiers):
        eligible = matching(candidates, key=key, port_name=port_name, reasons=ignore)
    steps = select(
        key,
        candidates,
        service=service,
        place=place,
        port_name=port_name,
        policy=policy,
        clusters=clusters,
        drained=drained,
        reasons=reasons,
    )

    def percent_left(step: Sequence[Backend]) -> PercentLeft:
        return {each.key: drained.percent_left(each) for each in step} if drained is not None else NOTHING_DRAINED

    return in_sequence(
        groups(step, tiers, positions=cluster_positions, eligible=eligible, percent_left=percent_left(step))
        for step in steps
    )


class PlanContext(NamedTuple):
    """Inputs of planning that all services of a batch share. Valid as long as the reader that it was made from."""

    place: Place
    clusters: Clusters
    awaited: Sequence[str]
    """Peers that have not finished their initial list."""
    drained: Drained | None
    """``None`` if nothing is drained."""
    policies: Lookup
    """Policies by target."""
    redirected: Lookup
    """Port redirects by service."""


def plan_context(reader: Reader, cluster: ClusterName, node: str, *, sources: Iterable[str]) -> PlanContext:
    """Collect the planner's node- and cluster-wide inputs. ``sources``: sources with an unfinished initial list."""
    clusters = Clusters(cluster, {row.name: row for row in reader.all(CLUSTERS)})
    draining = list(reader.all(DRAINING))
    drained = Drained(draining) if draining else None
    return PlanContext(
        place(reader, cluster, node),
        clusters,
        sorted(filter(is_peer, sources)),
        drained,
        reader.finder(POLICIES, "target"),
        reader.finder(PORT_REDIRECTS, "service"),
    )


def compute(
    reader: Reader,
    service: ServiceName,
    *,
    cluster: ClusterName,
    node: str,
    reasons: Callable[[PlanKey], Reasons] | None = None,
    without: Collection[ClusterName] = (),
) -> list[Plan]:
    """Return every plan of a service, from its stored frontends and backends.

    ``without``: plan as if no backend of these clusters were ready.
    """
    frontends, backends = reader.by(FRONTENDS, "service", service), reader.by(BACKENDS, "service", service)
    if without:
        backends = [replace(b, condition=Condition.GONE) if b.key.cluster in without else b for b in backends]
    subject = resolve(reader, service, which="all") or resolved_pod(reader, service)
    context = plan_context(reader, cluster, node, sources=reader.pending(BACKENDS))
    return of_service(
        reader, service, subject, frontends=frontends, backends=backends, context=context, reasons=reasons
    )


def of_service(  # hot:
    reader: Reader,
    service: ServiceName,
    subject: ResolvedService | None,
    *,
    frontends: Sequence[Frontend],
    backends: Collection[Backend],
    context: PlanContext,
    reasons: Callable[[PlanKey], Reasons] | None = None,
) -> list[Plan]:
    """Return every plan of a service: one for each port, family and scope that has a frontend.

    Plans of original scopes precede the others, so that they exist before a redirect sends skipped calls to them.
    """
    by_plan = _by_plan(frontends)
    if by_plan and subject is None:
        subject = _of_address(service, by_plan)
    if subject is None:
        return []
    policy = policies.effective_policy(context.policies, subject)
    redirected = context.redirected(service) is not None
    return [
        plan(
            key,
            service=subject,
            frontends=frontends,
            backends=backends,
            place=context.place,
            policy=policy,
            clusters=context.clusters,
            awaited=context.awaited,
            redirect=of_plan(reader, key) if redirected else None,
            drained=context.drained,
            reasons=ignore if reasons is None else reasons(key),
        )
        for key, frontends in by_plan
    ]


def port_names(frontends: Sequence[Frontend]) -> dict[PlanKey, str]:
    """Port name of each plan that these frontends refer to."""
    return {key: _port_name(rows) for key, rows in _by_plan(frontends)}


def _by_plan(frontends: Sequence[Frontend]) -> ByPlan:  # hot:
    """Group frontends by plan, plans of original scopes first."""
    if len(frontends) == 1:
        return ((frontends[0].plan, frontends),)
    frontends_by_plan: dict[PlanKey, list[Frontend]] = {}
    for frontend in frontends:
        frontends_by_plan.setdefault(frontend.plan, []).append(frontend)
    return sorted(frontends_by_plan.items(), key=lambda each: not each[0].scope.is_original)


def _port_name(frontends: Sequence[Frontend]) -> str:
    if len(frontends) == 1:
        return frontends[0].port_name
    return min(frontends, key=lambda frontend: frontend.key).port_name


def _of_address(service: ServiceName, by_plan: ByPlan) -> ResolvedService | None:
    """Return an empty service for an address that only a local redirect claims, else ``None``."""
    types = {frontend.type for _, frontends in by_plan for frontend in frontends}
    return no_service(service) if types == {"LocalRedirect"} else None


def place(reader: Reader, cluster: ClusterName, node: str) -> Place:
    """Location of this node; the zone is empty until its row exists."""
    row = reader.get(NODES, node)
    return Place(cluster, node, row.zone if row else "")


def by_node(reader: Reader, old: Node | None, new: Node | None, *, node: str) -> Iterator[ServiceName]:
    """A change of this node's zone affects services with a topology preference. Other nodes affect nothing."""
    row = new or old
    if row is not None and row.name == node and (old.zone if old else "") != (new.zone if new else ""):
        for service in reader.by(SERVICES, "topology", True):
            yield service.name
        for imported in reader.by(IMPORTS, "topology", True):
            yield from names_for_import(reader, imported)
        for policy in reader.all(POLICIES):
            if policy.locality in ("Node", "Zone"):
                yield from by_policy(reader, None, policy)


def by_source(reader: Reader, sources: frozenset[str]) -> Iterator[ServiceName]:
    """A peer that finishes its initial list affects the plans that await it."""
    for source in sources:
        yield from (row.key.service for row in reader.by(PLANS, "awaited", source))


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A change of a cluster's region, zone or labels affects the shares of policies."""
    if _where(old) != _where(new):
        for policy in reader.all(POLICIES):
            yield from by_policy(reader, None, policy)


def _where(row: Cluster | None) -> tuple[str, str, Labels]:
    return (row.region, row.zone, row.labels) if row is not None else ("", "", ())


def by_policy(reader: Reader, old: Policy | None, new: Policy | None) -> Iterator[ServiceName]:
    """A policy affects its target: a Service of that name, or the services that represent that import."""
    for row in (old, new):
        if row is None:
            continue
        if row.kind == "Service":
            yield row.target
        else:
            yield derived_name(row.target)
            yield from (service.name for service in reader.by(SERVICES, "import", row.target))
