"""Plans: what the calls of a frontend are spread over. ``plan`` is the one place that chooses, and it is pure.

The unit is a service: a backend that comes or goes changes the plans of all its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from isthmus.loadbalancer import policies
from isthmus.loadbalancer.port_redirects import of_plan
from isthmus.loadbalancer.selection import Clusters, Place, Reasons, ignore, matching, select
from isthmus.loadbalancer.services import (
    ResolvedService,
    Which,
    names_for_import,
    no_service,
    resolve,
)
from isthmus.loadbalancer.tiers import groups, named, positions
from isthmus.model.balancing import Backend, Frontend, Group, Plan, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name
from isthmus.model.policies import Policy
from isthmus.model.redirects import PortRedirect
from isthmus.model.services import Condition, Import, Labels, Node, Service
from isthmus.model.sources import is_peer
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    FRONTENDS,
    IMPORTS,
    NODES,
    PLANS,
    POLICIES,
    PORT_REDIRECTS,
    SERVICES,
)
from isthmus.statedb import Derived, Reader

ByPlan = dict[PlanKey, list[Frontend]]


def derived(cluster: ClusterName, node: str, *, which: Which) -> Derived[Plan]:
    """The declaration of the table, as this node of this cluster sees it."""
    return Derived(
        PLANS,
        compute=partial(compute, cluster=cluster, node=node, which=which),
        reads={
            FRONTENDS: by_frontend,
            BACKENDS: by_backend,
            SERVICES: by_service,
            IMPORTS: by_import,
            NODES: partial(by_node, node=node),
            POLICIES: by_policy,
            CLUSTERS: by_cluster,
            PORT_REDIRECTS: by_redirect,
        },
        unit="service",
        awaits=lambda source: not is_peer(source),  # a plan lists the peers it awaits and is programmed without them
        arrived=by_source,
    )


def plan(
    key: PlanKey,
    *,
    of: ResolvedService,
    frontends: Sequence[Frontend],
    backends: Iterable[Backend],
    at: Place,
    policy: Policy | None = None,
    clusters: Clusters | None = None,
    awaited: Sequence[str] = (),
    redirect: PortRedirect | None = None,
    port_name: str | None = None,
    reasons: Reasons = ignore,
) -> Plan:
    """The plan of these frontends; ``reasons`` collects what is left out and why."""
    called = sorted([frontend.key for frontend in frontends])
    port_name = _port_name(frontends) if port_name is None else port_name
    if redirect is not None:
        for backend in backends:
            reasons(backend, f"calls are redirected by {redirect.owner}")
        return Plan(
            key=key,
            frontends=tuple(called),
            groups=(Group(redirect.targets),),
            redirected_by=redirect.owner,
            skip=redirect.skip,
            import_of=of.import_of,
        )
    clusters = clusters or Clusters(at.cluster, {})
    found = _groups(key, backends, of, at, port_name=port_name, policy=policy, clusters=clusters, reasons=reasons)
    affinity, timeout = of.affinity, of.affinity_timeout
    if policy is not None and policy.affinity is not None:
        affinity, timeout = policy.affinity, policy.affinity_timeout if policy.affinity != "None" else 0
    consistent = policy.consistent if policy else None
    return Plan(
        key=key,
        frontends=tuple(called),
        groups=found,
        affinity=affinity,
        affinity_timeout=timeout,
        consistent=of.consistent if consistent is None else consistent,
        ejection=policy.ejection if policy else None,
        awaited=tuple(sorted(awaited)) if awaited and of.multicluster else (),
        import_of=of.import_of,
    )


def _groups(
    key: PlanKey,
    backends: Iterable[Backend],
    of: ResolvedService,
    at: Place,
    *,
    port_name: str,
    policy: Policy | None,
    clusters: Clusters,
    reasons: Reasons,
) -> tuple[Group, ...]:
    """What is left of the backends by all rules, shared out as the policy's tiers have it."""
    tiers = policy.tiers if policy else ()
    candidates: Sequence[Backend] = tuple(backends)
    known: Sequence[Backend] = ()
    where = positions({backend.key.cluster for backend in candidates}, tiers, clusters) if tiers else {}
    if tiers:
        candidates = named(candidates, tiers, positions=where, reasons=reasons)
    if any(tier.min_percent for tier in tiers):
        known = matching(candidates, key=key, port_name=port_name, reasons=ignore)
    chosen = select(
        key, candidates, of=of, at=at, port_name=port_name, policy=policy, clusters=clusters, reasons=reasons
    )
    return groups(chosen, tiers, positions=where, known=known)


def compute(
    reader: Reader,
    service: ServiceName,
    *,
    cluster: ClusterName,
    node: str,
    which: Which,
    reasons: Callable[[PlanKey], Reasons] = lambda key: ignore,
    without: Collection[ClusterName] = (),
) -> Iterator[Plan]:
    """Every plan of a service: one for each port, family and scope that has a frontend, which is ours then.

    ``without``: what the plans would be if no backend of these clusters were ready.

    Plans of original scopes come first: they are there before calls that a redirect skips are sent to them.
    """
    by_plan: ByPlan = {}
    for frontend in reader.by(FRONTENDS, "service", service):
        by_plan.setdefault(frontend.plan, []).append(frontend)
    if not by_plan:
        return
    subject = resolve(reader, service, which="all") or _of_address(service, by_plan)
    if subject is None:
        return
    backends = reader.by(BACKENDS, "service", service)
    if without:
        backends = [replace(b, condition=Condition.GONE) if b.key.cluster in without else b for b in backends]
    at = place(reader, cluster, node)
    policy = policies.of_service(reader, subject)
    clusters = Clusters(cluster, {row.name: row for row in reader.all(CLUSTERS)}) if policy is not None else None
    awaited = [source for source in reader.pending(BACKENDS) if is_peer(source)]
    for key, frontends in sorted(by_plan.items(), key=lambda each: not each[0].scope.is_original):
        yield plan(
            key,
            of=subject,
            frontends=frontends,
            backends=backends,
            at=at,
            policy=policy,
            clusters=clusters,
            awaited=awaited,
            redirect=of_plan(reader, key),
            reasons=reasons(key),
        )


def _port_name(frontends: Sequence[Frontend]) -> str:
    if len(frontends) == 1:
        return frontends[0].port_name
    return min(frontends, key=lambda frontend: frontend.key).port_name


def _of_address(service: ServiceName, by_plan: ByPlan) -> ResolvedService | None:
    """What is called at an address that no service has: nothing but its redirect."""
    types = {frontend.type for frontends in by_plan.values() for frontend in frontends}
    return no_service(service) if types == {"LocalRedirect"} else None


def place(reader: Reader, cluster: ClusterName, node: str) -> Place:
    """Where this node is, as far as its row is there."""
    row = reader.get(NODES, node)
    return Place(cluster, node, row.zone if row else "")


def by_frontend(reader: Reader, old: Frontend | None, new: Frontend | None) -> Iterable[ServiceName]:  # hot:
    """A frontend affects the service that has it and the one that had it."""
    return [row.service for row in (old, new) if row is not None]


def by_backend(reader: Reader, old: Backend | None, new: Backend | None) -> Iterable[ServiceName]:  # hot:
    """A backend affects its service."""
    row = new or old
    return (row.key.service,) if row is not None else ()


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:  # hot:
    """A Service affects its own plans: policies, affinity and distribution are its to say."""
    row = new or old
    return (row.name,) if row is not None else ()


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[ServiceName]:
    """An import affects the plans of what stands for it."""
    yield from names_for_import(reader, old, new)


def by_node(reader: Reader, old: Node | None, new: Node | None, *, node: str) -> Iterator[ServiceName]:
    """This node's zone affects the services that prefer their zone; another node affects nothing."""
    row = new or old
    if row is not None and row.name == node and (old.zone if old else "") != (new.zone if new else ""):
        for service in reader.by(SERVICES, "topology", True):
            yield service.name
        for imported in reader.by(IMPORTS, "topology", True):
            yield from names_for_import(reader, imported)
        for policy in reader.all(POLICIES):
            if policy.locality in ("Node", "Zone"):
                yield from by_policy(reader, None, policy)


def by_redirect(reader: Reader, old: PortRedirect | None, new: PortRedirect | None) -> Iterator[ServiceName]:
    """A redirect affects the service whose port it redirects."""
    row = new or old
    if row is not None:
        yield row.key.service


def by_source(reader: Reader, sources: frozenset[str]) -> Iterator[ServiceName]:
    """A peer whose first list is whole affects the plans that list it as awaited."""
    for source in sources:
        yield from (row.key.service for row in reader.by(PLANS, "awaited", source))


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that comes to be in another region or zone, or to have other labels, affects policies' shares."""
    if _where(old) != _where(new):
        for policy in reader.all(POLICIES):
            yield from by_policy(reader, None, policy)


def _where(row: Cluster | None) -> tuple[str, str, Labels]:
    return (row.region, row.zone, row.labels) if row is not None else ("", "", ())


def by_policy(reader: Reader, old: Policy | None, new: Policy | None) -> Iterator[ServiceName]:
    """A policy affects its target: a Service of that name, or whatever stands for that import."""
    for row in (old, new):
        if row is None:
            continue
        if row.kind == "Service":
            yield row.target
        else:
            yield derived_name(row.target)
            yield from (service.name for service in reader.by(SERVICES, "import", row.target))
