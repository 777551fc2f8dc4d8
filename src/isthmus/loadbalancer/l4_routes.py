"""TCPRoutes and UDPRoutes: which of them has a port of a Service, and the groups that it makes of its backends. Pure.

A route of the Service's own namespace is for all callers. Each port has one route: the oldest, then by name; younger
ones are accepted all the same (TCPRouteMultipleRoutesAttachment of the Gateway API's conformance suite). A port with
HTTPRoutes or GRPCRoutes takes no TCPRoute, since the more specific type wins (GEP-1294).

A backend's calls go where the planner sends calls of that Service, with its policy, drains and health, as if it had no
route itself. A backend that cannot be used has its part of the calls refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from isthmus.loadbalancer import backends, envoy, gateways, islands, plans, policies, tiers
from isthmus.loadbalancer.plans import PlanContext
from isthmus.loadbalancer.port_redirects import FAMILIES
from isthmus.loadbalancer.references import port_of, unresolved
from isthmus.loadbalancer.services import UNKNOWN_AGE, ResolvedService, names_for_import, resolve
from isthmus.model.balancing import REFUSAL, Backend, Group, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.l4_routes import L4Route, L4RouteKey, RoutedPort
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.redirects import RedirectedPort
from isthmus.model.routes import BackendRef, ParentRef
from isthmus.model.services import Family, Port, Protocol
from isthmus.model.sources import is_peer
from isthmus.model.tables import (
    ATTACHMENTS,
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    GATEWAY_CHECKS,
    GRANTS,
    IMPORTS,
    ISLAND_LISTENERS,
    L4_ROUTES,
    NODES,
    OWN_RANGES,
    POLICIES,
    PROBES,
    REFUSED_GATEWAYS,
    ROUTED_PORTS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.statedb import Affected, AffectedBatch, DerivedTogether, Pairs, Reader, WriteTxn, pending, rewrite, unit_of

SHOWN_PORTS: Final = 8
"""Number of ports that a message lists."""

PortNumber = tuple[int, Protocol]


class Verdict(NamedTuple):
    """The condition Accepted of a route for one of its parents: without a reason it is accepted."""

    reason: str
    message: str
    shadowed: bool = False
    """It is accepted, and older routes of its kind have every port that it means."""


class Attached(NamedTuple):
    """The routes of a Service's namespace that have it as parent, judged."""

    ports: dict[PortNumber, L4Route]
    """The route of each port that has one."""
    verdicts: dict[tuple[L4RouteKey, ParentRef], Verdict]


def derived(cluster: ClusterName, node: str) -> DerivedTogether:
    """Declare the table of ports that follow a route, for a node of a cluster."""

    def renew(txn: WriteTxn, services: Iterable[ServiceName]) -> None:
        for service in services:
            computed = list(compute(txn, service, cluster=cluster, node=node))
            rewrite(txn, ROUTED_PORTS, txn.by(ROUTED_PORTS, "service", service), computed)

    by_backends: dict[Any, Affected] = {
        ENDPOINT_SETS: unit_of("service"),
        SERVICES: backends.by_service,
        IMPORTS: names_for_import,
        PROBES: backends.by_probe,
        OWN_RANGES: backends.by_own_ranges,
        POLICIES: plans.by_policy,
        NODES: lambda reader, old, new: plans.by_node(reader, old, new, node=node),
        ISLAND_LISTENERS: islands.by_listener,
        GATEWAY_CHECKS: islands.by_check,
        REFUSED_GATEWAYS: gateways.by_refused,
        XDS_SERVED: islands.by_served,
        ENVOY_CHECKS: envoy.by_check,
    }
    reads = {
        L4_ROUTES: by_routes,
        GRANTS: by_grants,
        ATTACHMENTS: to_routed(unit_of("service")),
        CLUSTERS: to_routed(by_cluster),
        DRAINING: all_routed,
        **{table: to_routed(affected) for table, affected in by_backends.items()},
    }
    return DerivedTogether(
        ROUTED_PORTS,
        renew=renew,
        reads=reads,
        # a plan lists the peers it awaits and is programmed without them
        awaits={ROUTED_PORTS: lambda reader: (name for name in pending(reader, reads) if not is_peer(name))},
    )


def by_age(route: L4Route) -> tuple[str, str]:
    """Sort key of precedence between routes: age, name."""
    return route.created or UNKNOWN_AGE, route.name


def attached(reader: Reader, service: ServiceName) -> Attached:
    """Judge the routes of a Service's namespace that have it as parent, the oldest first.

    Those of other namespaces are not read, so that any number of them costs the Service nothing.
    """
    subject = resolve(reader, service, which="all")
    listed = _ports(subject)
    attachment = reader.get(ATTACHMENTS, service)
    owners: dict[PortNumber, str] = {
        (each.port, "TCP"): each.owner
        for each in (attachment.ports if attachment is not None else ())
        if not each.callers
    }
    judged = Attached({}, {})
    for route in sorted(reader.by(L4_ROUTES, "own_parent", service), key=by_age):
        for parent in route.parents:
            if parent.service == service:
                verdict = _unfit(route, service, subject)
                judged.verdicts[route.key, parent] = verdict or _take(route, parent, listed, owners, judged.ports)
    return judged


def verdict(
    reader: Reader, route: L4Route, parent: ParentRef, attached_to: Callable[[ServiceName], Attached]
) -> Verdict:
    """Judge a route of any namespace for one of its parents. ``attached_to``: :func:`attached` of a Service."""
    unfit = _unfit(route, parent.service, resolve(reader, parent.service, which="all"))
    return unfit or attached_to(parent.service).verdicts[route.key, parent]


def _unfit(route: L4Route, service: ServiceName, subject: ResolvedService | None) -> Verdict | None:
    if route.invalid:
        return Verdict("UnsupportedValue", route.invalid)
    if subject is None:
        return Verdict("NoMatchingParent", "its parent does not exist")
    namespace = service.partition("/")[0]
    if route.namespace != namespace:
        message = f"a {route.kind} is followed for a parent of its own namespace alone, and this one's is {namespace}"
        return Verdict("NotAllowedByParent", message)
    if subject.headless:
        return Verdict("UnsupportedValue", "its parent is headless: callers choose among the addresses of its pods")
    return None


def _ports(subject: ResolvedService | None) -> dict[PortNumber, Port]:
    """The ports of a service; the first of two with one number and protocol."""
    listed: dict[PortNumber, Port] = {}
    for port in subject.ports if subject is not None else ():
        listed.setdefault((port.port, port.protocol), port)
    return listed


def _take(
    route: L4Route,
    parent: ParentRef,
    listed: dict[PortNumber, Port],
    owners: dict[PortNumber, str],
    winners: dict[PortNumber, L4Route],
) -> Verdict:
    """Give a route the ports of a parent that nothing older has."""
    candidates = [(parent.port, route.protocol)] if parent.port else listed
    selected = [
        number
        for number in candidates
        if number in listed and number[1] == route.protocol and parent.section in ("", listed[number].name)
    ]
    if not selected:
        which = [f" {parent.port}"] if parent.port else []
        which += [f" named '{parent.section}'"] if parent.section else []
        return Verdict("NoMatchingParent", f"its parent has no {route.protocol} port{''.join(which)}")
    lost = [number for number in selected if owners.get(number, route.owner) != route.owner]
    for number in selected:
        if owners.setdefault(number, route.owner) == route.owner:
            winners[number] = route
    ports = ", ".join(f"port {number} follows {owners[number, protocol]}" for number, protocol in lost[:SHOWN_PORTS])
    ports += f" and {len(lost) - SHOWN_PORTS} more do not follow it" if len(lost) > SHOWN_PORTS else ""
    if len(lost) < len(selected):
        return Verdict("", ports)
    of_its_kind = any(owners[number].startswith(route.kind) for number in lost)
    return Verdict("" if of_its_kind else "Conflicted", ports, shadowed=of_its_kind)


def unusable(reader: Reader, route: L4Route, backend: BackendRef) -> tuple[str, str]:
    """Reason and message of the condition ResolvedRefs if a backend cannot be used; both empty if it can."""
    if backend.reason:
        return backend.reason, backend.message
    return unresolved(reader, route, backend.to, protocol=route.protocol, parents_granted=False)


def compute(reader: Reader, service: ServiceName, *, cluster: ClusterName, node: str) -> Iterator[RoutedPort]:
    """Yield the groups of each port of a service that has a route, in each family."""
    if not reader.by(L4_ROUTES, "own_parent", service):
        return
    context = plans.plan_context(reader, cluster, node, sources=())
    targets = Targets(reader, context)
    parts: dict[tuple[L4RouteKey, Family], tuple[Group, ...]] = {}
    for (port, protocol), route in attached(reader, service).ports.items():
        for family in FAMILIES:
            if (route.key, family) not in parts:
                parts[route.key, family] = targets.groups(route, family)
            key = RedirectedPort(service, port, protocol, family)
            yield RoutedPort(key, route.owner, parts[route.key, family])


class Targets:
    """The plans of routes' backends, as if these had no route. Valid as long as the reader."""

    def __init__(self, reader: Reader, context: PlanContext) -> None:
        self._reader = reader
        self._context = context
        self._backends: dict[ServiceName, tuple[Backend, ...]] = {}

    def groups(self, route: L4Route, family: Family) -> tuple[Group, ...]:
        """Return what a route makes of its backends: a part without targets where one has no endpoint."""
        parts = [(each.weight, self._of_backend(route, each, family)) for each in route.backends if each.weight]
        return tiers.weighted(parts) or (Group((REFUSAL,)),)

    def _of_backend(self, route: L4Route, backend: BackendRef, family: Family) -> tuple[Group, ...]:
        reader, name = self._reader, backend.to.service
        reason, _ = unusable(reader, route, backend)
        subject, port = resolve(reader, name, which="all"), port_of(reader, backend.to, route.protocol)
        if reason or subject is None or port is None:
            return (Group((REFUSAL,)),)
        if name not in self._backends:
            computed = backends.compute(reader, name, cluster=self._context.place.cluster, which="all", cache={})
            self._backends[name] = tuple(computed)
        plan = plans.plan(
            PlanKey(name, port.port, port.protocol, family),
            service=subject,
            frontends=(),
            backends=self._backends[name],
            place=self._context.place,
            policy=policies.of_service(reader, subject),
            clusters=self._context.clusters,
            drained=self._context.drained,
            port_name=port.name,
        )
        return plan.groups if any(group.targets for group in plan.groups) else (Group(()),)


def parents(routes: Iterable[L4Route]) -> set[ServiceName]:
    """Return the parents on which routes may have an effect."""
    return {parent for route in routes for parent in route.own_parents()}


def by_routes(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A route affects its parents, now and before."""
    return parents(route for pair in changed for route in pair if route is not None)


def by_grants(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A grant affects the parents of routes of the namespaces that it names."""
    return parents(granted(reader, changed))


def granted(reader: Reader, changed: Pairs) -> Iterator[L4Route]:
    """Yield the routes of the namespaces that changed grants name."""
    namespaces = {namespace for pair in changed for each in pair if each is not None for _, namespace in each.sources}
    return (route for namespace in namespaces for route in reader.by(L4_ROUTES, "namespace", namespace))


def all_routed(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A drain may affect every route."""
    return parents(reader.all(L4_ROUTES))


def by_cluster(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster affects services as it affects their own plans. Its row also changes with each failure to reach it."""
    yield from backends.by_cluster(reader, old, new)
    yield from plans.by_cluster(reader, old, new)


def to_routed(affected: Callable[..., Iterable[ServiceName]]) -> AffectedBatch:
    """Convert affected services to those of them that are parents, and the parents of routes to them."""

    def batch(reader: Reader, changed: Pairs) -> set[ServiceName]:  # hot:
        if not reader.count(L4_ROUTES):
            return set()
        services = {service for old, new in changed for service in affected(reader, old, new)}
        return about(reader, services)

    return batch


def about(reader: Reader, services: Iterable[ServiceName]) -> set[ServiceName]:
    """Return the parents among services, and the parents of routes that have one of them as a backend."""
    affected: set[ServiceName] = set()
    for service in services:
        if reader.by(L4_ROUTES, "own_parent", service):
            affected.add(service)
        affected |= parents(_permitted(reader, service))
    return affected


def _permitted(reader: Reader, service: ServiceName) -> Iterator[L4Route]:
    """Yield the routes that have a service as backend and may refer to it; a grant affects those that it permits."""
    routes = reader.by(L4_ROUTES, "target", service)
    if not routes:
        return
    namespace = service.partition("/")[0]
    sources = {source for grant in reader.by(GRANTS, "namespace", namespace) for source in grant.sources}
    yield from (each for each in routes if each.namespace == namespace or (each.kind, each.namespace) in sources)
