"""Plans: what the calls of a frontend are spread over. ``plan`` is the one place that chooses, and it is pure.

The unit is a service: a backend that comes or goes changes the plans of all its ports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer import policies
from isthmus.loadbalancer.backends import Look
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
    Left,
    behind_each_other,
    groups,
    named,
    positions,
    together,
)
from isthmus.model.balancing import Backend, Frontend, FrontendKey, Group, Plan, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name
from isthmus.model.policies import Policy
from isthmus.model.redirects import PortRedirect
from isthmus.model.services import Condition, Import, Labels, Node
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
    of: ResolvedService,
    frontends: Sequence[Frontend],
    backends: Iterable[Backend],
    at: Place,
    policy: Policy | None = None,
    clusters: Clusters | None = None,
    awaited: Sequence[str] = (),
    redirect: PortRedirect | None = None,
    port_name: str | None = None,
    drained: Drained | None = None,
    reasons: Reasons = ignore,
) -> Plan:
    """The plan of these frontends; ``reasons`` collects what is left out and why."""
    called = (frontends[0].key,) if len(frontends) == 1 else tuple(sorted([each.key for each in frontends]))
    port_name = _port_name(frontends) if port_name is None else port_name
    if redirect is not None and redirect.kind == "local":
        for backend in backends if reasons is not ignore else ():
            reasons(backend, f"calls are redirected by {redirect.owner}")
        return Plan(
            key=key,
            frontends=called,
            groups=(Group(redirect.targets),),
            redirected_by=redirect.owner,
            skip=redirect.skip,
            import_of=of.import_of,
        )
    found: tuple[Group, ...]
    left = tuple(backends)
    if policy is None and drained is None and each_by_itself(of, key.scope) and all_serve(left, key, port_name):
        found = together(left)  # nearly always: no rule of selection has anything to decide
    else:
        clusters = clusters or Clusters(at.cluster, {})
        found = _groups(
            key, left, of, at, port_name=port_name, policy=policy, clusters=clusters, drained=drained, reasons=reasons
        )
    if redirect is not None:
        return _through(redirect, key, called, found, of=of)
    affinity, timeout = of.affinity, of.affinity_timeout
    if policy is not None and policy.affinity is not None:
        affinity, timeout = policy.affinity, policy.affinity_timeout if policy.affinity != "None" else 0
    consistent = policy.consistent if policy else None
    return Plan(  # positional: it takes a tenth of the time
        key,
        called,
        found,
        affinity,
        timeout,
        of.consistent if consistent is None else consistent,
        policy.ejection if policy else None,
        tuple(sorted(awaited)) if awaited and of.multicluster else (),
        import_of=of.import_of,
    )


def _through(
    redirect: PortRedirect,
    key: PlanKey,
    called: tuple[FrontendKey, ...],
    own: Sequence[Group],
    *,
    of: ResolvedService,
) -> Plan:
    """The plan of calls that go through a proxy, and to the service's own backends where it fails them.

    Without affinity, in both its forms: a caller that was moved from a dead proxy is to come back to it. Nothing of a
    cluster that is awaited is kept: it would stand beside the proxy, not behind it.
    """
    behind = [replace(group, tier=group.tier + 1) for group in own[: MAX_GROUPS - 1]]
    return Plan(
        key=key,
        frontends=called,
        groups=(Group(redirect.targets), *behind),
        redirected_by=redirect.owner,
        import_of=of.import_of,
    )


def _groups(
    key: PlanKey,
    candidates: Sequence[Backend],
    of: ResolvedService,
    at: Place,
    *,
    port_name: str,
    policy: Policy | None,
    clusters: Clusters,
    drained: Drained | None,
    reasons: Reasons,
) -> tuple[Group, ...]:
    """What is left of the backends by all rules, shared out as the policy's tiers have it."""
    if policy is None and drained is None:
        steps = select(
            key,
            candidates,
            of=of,
            at=at,
            port_name=port_name,
            policy=None,
            clusters=clusters,
            drained=None,
            reasons=reasons,
        )
        return together(steps[0]) if len(steps) == 1 else behind_each_other(map(together, steps))
    tiers = policy.tiers if policy else ()
    known: Sequence[Backend] = ()
    where = positions({backend.key.cluster for backend in candidates}, tiers, clusters) if tiers else {}
    if tiers:
        candidates = named(candidates, tiers, positions=where, reasons=reasons)
    if any(tier.min_percent for tier in tiers):
        known = matching(candidates, key=key, port_name=port_name, reasons=ignore)
    steps = select(
        key,
        candidates,
        of=of,
        at=at,
        port_name=port_name,
        policy=policy,
        clusters=clusters,
        drained=drained,
        reasons=reasons,
    )

    def left_of(step: Sequence[Backend]) -> Left:
        return {each.key: drained.left(each) for each in step} if drained is not None else NOTHING_DRAINED

    return behind_each_other(groups(step, tiers, positions=where, known=known, left=left_of(step)) for step in steps)


class Outlook(NamedTuple):
    """What plans follow from beside their service's own rows: the same for all services of a batch."""

    at: Place
    clusters: Clusters
    awaited: Sequence[str]
    """Peers whose first list is not whole."""
    drained: Drained | None
    """None where nothing is drained."""
    policies: Look
    redirected: Look
    """From a policy's target, and from a service, to what is stored for it; valid as long as the reader."""


def outlook(reader: Reader, cluster: ClusterName, node: str, *, sources: Iterable[str]) -> Outlook:
    """As the rows of this node and of the clusters have it. ``sources``: those whose first list is not whole."""
    clusters = Clusters(cluster, {row.name: row for row in reader.all(CLUSTERS)})
    draining = list(reader.all(DRAINING))
    drained = Drained(draining) if draining else None
    return Outlook(
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
    """Every plan of a service, from the frontends and backends that are there.

    ``without``: what the plans would be if no backend of these clusters were ready.
    """
    frontends, backends = reader.by(FRONTENDS, "service", service), reader.by(BACKENDS, "service", service)
    if without:
        backends = [replace(b, condition=Condition.GONE) if b.key.cluster in without else b for b in backends]
    subject = resolve(reader, service, which="all") or resolved_pod(reader, service)
    by = outlook(reader, cluster, node, sources=reader.pending(BACKENDS))
    return of_service(reader, service, subject, frontends=frontends, backends=backends, by=by, reasons=reasons)


def of_service(  # hot:
    reader: Reader,
    service: ServiceName,
    subject: ResolvedService | None,
    *,
    frontends: Sequence[Frontend],
    backends: Collection[Backend],
    by: Outlook,
    reasons: Callable[[PlanKey], Reasons] | None = None,
) -> list[Plan]:
    """Every plan of a service: one for each port, family and scope that has a frontend, which is ours then.

    Plans of original scopes come first: they are there before calls that a redirect skips are sent to them.
    """
    by_plan = _by_plan(frontends)
    if by_plan and subject is None:
        subject = _of_address(service, by_plan)
    if subject is None:
        return []
    policy = policies.found(by.policies, subject)
    redirected = by.redirected(service) is not None
    return [
        plan(
            key,
            of=subject,
            frontends=frontends,
            backends=backends,
            at=by.at,
            policy=policy,
            clusters=by.clusters,
            awaited=by.awaited,
            redirect=of_plan(reader, key) if redirected else None,
            drained=by.drained,
            reasons=ignore if reasons is None else reasons(key),
        )
        for key, frontends in by_plan
    ]


def port_names(frontends: Sequence[Frontend]) -> dict[PlanKey, str]:
    """The port name of each plan that frontends of a service have."""
    return {key: _port_name(each) for key, each in _by_plan(frontends)}


def _by_plan(frontends: Sequence[Frontend]) -> ByPlan:  # hot:
    """Those of original scopes first."""
    if len(frontends) == 1:
        return ((frontends[0].plan, frontends),)
    found: dict[PlanKey, list[Frontend]] = {}
    for frontend in frontends:
        found.setdefault(frontend.plan, []).append(frontend)
    return sorted(found.items(), key=lambda each: not each[0].scope.is_original)


def _port_name(frontends: Sequence[Frontend]) -> str:
    if len(frontends) == 1:
        return frontends[0].port_name
    return min(frontends, key=lambda frontend: frontend.key).port_name


def _of_address(service: ServiceName, by_plan: ByPlan) -> ResolvedService | None:
    """What is called at an address that no service has: nothing but its redirect."""
    types = {frontend.type for _, frontends in by_plan for frontend in frontends}
    return no_service(service) if types == {"LocalRedirect"} else None


def place(reader: Reader, cluster: ClusterName, node: str) -> Place:
    """Where this node is, as far as its row is there."""
    row = reader.get(NODES, node)
    return Place(cluster, node, row.zone if row else "")


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
