"""The derived tables of a node's Envoy: which Services go through it, what their calls are spread over, its resources.

A Service that has a route goes through a listener of its own port, on addresses of this node: a row of
``proxy_listeners``, and while an Envoy serves it also of ``proxy_redirects``, which the planner follows as any other
redirect. All other Services never meet Envoy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from isthmus.loadbalancer import backends, islands, plans, policies
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.balancing import Plan, PlanKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy
from isthmus.model.redirects import Listener, ProxyRedirect
from isthmus.model.routes import Grant, Route, ServiceRef
from isthmus.model.services import Family, Import, Pod, Service
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    GATEWAY_CHECKS,
    GRANTS,
    IMPORTS,
    ISLAND_LISTENERS,
    NODES,
    OWN_RANGES,
    PODS,
    POLICIES,
    PROBES,
    PROXY_LISTENERS,
    PROXY_REDIRECTS,
    ROUTE_PLANS,
    ROUTES,
    SERVICES,
    XDS,
    XDS_SERVED,
)
from isthmus.model.xds import Resource, ServedListener
from isthmus.proxy.attachment import Entry, attached, by_callers, entries, of_port, unresolved
from isthmus.proxy.clusters import of_plans
from isthmus.proxy.listeners import Chain, http_listener
from isthmus.proxy.ports import assign_ports
from isthmus.proxy.routing import UNRESOLVED, cluster_name, route_configuration
from isthmus.statedb import Affected, Derived, Reader

FAMILIES: Final[tuple[Family, ...]] = ("IPv4", "IPv6")
HTTP2: Final = frozenset({"kubernetes.io/h2c", "grpc"})
"""``appProtocol`` of ports whose backends speak HTTP/2 without TLS."""


class Listening(NamedTuple):
    """Where a node's Envoy listens for its pods: addresses, one of each family at most, and a range of ports."""

    addresses: tuple[str, ...]
    first_port: int = 15_100
    ports: int = 4_000


class XdsSource(NamedTuple):
    """Rows of ``xds`` that something else than routes makes, for the same Envoy: units of their own."""

    computes: Callable[[str], bool]
    """Whether it computes a unit."""
    compute: Callable[[Reader, str], Iterable[Resource]]
    reads: Mapping[Any, Affected]
    """As a :class:`Derived` has them."""


def derived(cluster: ClusterName, node: str, listening: Listening, more: XdsSource | None = None) -> list[Derived[Any]]:
    """The declarations of the tables, for the agent of a node; ``more``: what else its Envoy is to have."""
    by_backends: dict[Any, Callable[..., Iterable[ServiceName]]] = {
        ENDPOINT_SETS: backends.by_endpoints,
        SERVICES: backends.by_service,
        IMPORTS: backends.by_import,
        PROBES: backends.by_probe,
        CLUSTERS: by_all,
        DRAINING: by_all,
        OWN_RANGES: backends.by_own_ranges,
        POLICIES: by_policy,
        NODES: partial(plans.by_node, node=node),
        ISLAND_LISTENERS: islands.by_listener,
        GATEWAY_CHECKS: islands.by_check,
        XDS_SERVED: islands.by_served,
    }
    by_xds: dict[Any, Affected] = {
        ROUTE_PLANS: by_plan,
        PROXY_LISTENERS: by_redirect,
        ROUTES: by_route,
        GRANTS: by_grant,
        PODS: by_pod,
        CLUSTERS: by_member,
    }
    for table, affected in (more.reads if more is not None else {}).items():
        by_xds[table] = both(by_xds[table], affected) if table in by_xds else affected
    return [
        Derived(
            PROXY_LISTENERS,
            compute=partial(listeners, listening=listening),
            reads={ROUTES: by_any_route, SERVICES: by_parent, IMPORTS: by_imported_parent},
            unit="all",
        ),
        Derived(
            PROXY_REDIRECTS,
            compute=redirects,
            reads={PROXY_LISTENERS: by_redirect, XDS_SERVED: by_served},
            unit="service",
        ),
        Derived(
            ROUTE_PLANS,
            compute=partial(route_plans, cluster=cluster, node=node),
            reads={ROUTES: by_route, **{table: routed(affected) for table, affected in by_backends.items()}},
            unit="service",
        ),
        Derived(
            XDS,
            compute=partial(all_resources, more=more),
            reads=by_xds,
            unit="unit",
        ),
    ]


def both(one: Affected, other: Affected) -> Affected:
    """The units that either affects."""
    return lambda reader, old, new: (*one(reader, old, new), *other(reader, old, new))


def listeners(reader: Reader, unit: bool, *, listening: Listening) -> Iterator[ProxyRedirect]:
    """Every Service with a route, through a listener for each TCP port that a route means."""
    found: dict[ServiceName, tuple[Route, list[int]]] = {}
    for service in sorted({parent.service for route in reader.all(ROUTES) for parent in route.parents}):
        routes, _ = attached(reader, service)
        subject = resolve(reader, service, which="all") if routes else None
        if subject is not None:
            found[service] = routes[0], [each.port for each in subject.ports if of_port(routes, service, each)]
    wanted = [(service, port) for service, (_, ports) in found.items() for port in ports]
    given = assign_ports(wanted, listening.first_port, listening.ports)
    for service, (oldest, ports) in found.items():
        given_here = [
            Listener(address, given[service, port], (port,))
            for port in ports
            if (service, port) in given
            for address in listening.addresses
        ]
        yield ProxyRedirect(service=service, owner=oldest.owner, listeners=tuple(given_here), created=oldest.created)


def redirects(reader: Reader, service: ServiceName) -> Iterator[ProxyRedirect]:
    """What Envoy serves: calls go past it, to the Service's own backends, until it does, and when it has ended."""
    served = {row.name for row in reader.by(XDS_SERVED, "service", service)}
    for row in reader.by(PROXY_LISTENERS, "service", service):
        listening = tuple(each for each in row.listeners if cluster_name(service, each.ports[0]) in served)
        if listening:
            yield replace(row, listeners=listening)


def route_plans(reader: Reader, service: ServiceName, *, cluster: ClusterName, node: str) -> Iterator[Plan]:
    """The plans of a Service that a route is for or leads to: those of its TCP ports, as if nothing redirected it."""
    subject = resolve(reader, service, which="all") if _is_routed(reader, service) else None
    if subject is None:
        return
    found = list(backends.compute(reader, service, cluster=cluster, which="all", cache={}))
    policy = policies.of_service(reader, subject)
    by = plans.outlook(reader, cluster, node, sources=())
    for port in subject.ports:
        if port.protocol != "TCP":
            continue
        for family in FAMILIES:
            key = PlanKey(service, port.port, port.protocol, family)
            plan = plans.plan(
                key,
                of=subject,
                frontends=(),
                backends=found,
                at=by.at,
                policy=policy,
                clusters=by.clusters,
                drained=by.drained,
                port_name=port.name,
            )
            if plan.groups or family == FAMILIES[0]:
                yield plan


def all_resources(reader: Reader, unit: str, *, more: XdsSource | None) -> Iterable[Resource]:
    """The rows of a unit: of a Service, or of what else there is."""
    if more is not None and more.computes(unit):
        return more.compute(reader, unit)
    return resources(reader, ServiceName(unit))


def resources(reader: Reader, service: ServiceName) -> Iterator[Resource]:
    """Clusters and endpoints of a Service that a route leads to; listeners and routes of one that has a route."""
    subject = resolve(reader, service, which="all")
    http2 = frozenset(port.port for port in subject.ports if port.app_protocol in HTTP2) if subject else frozenset()
    only = {name for route in reader.by(ROUTES, "parent", service) for name in route.clusters()}
    yield from of_plans(reader.by(ROUTE_PLANS, "service", service), http2=http2, only=only)
    for redirect in reader.by(PROXY_LISTENERS, "service", service):
        routes, _ = attached(reader, service)
        ports: dict[int, list[Listener]] = {}
        for listener in redirect.listeners:
            ports.setdefault(listener.ports[0], []).append(listener)
        for port in subject.ports if subject is not None else ():
            if port.protocol == "TCP" and port.port in ports:
                on_port = of_port(routes, service, port)
                yield from _of_port(reader, service, port.port, ports[port.port], on_port)


def _of_port(
    reader: Reader, service: ServiceName, port: int, listening: list[Listener], routes: list[Route]
) -> Iterator[Resource]:
    name, found = cluster_name(service, port), by_callers(routes, service)
    owner = routes[0].owner if routes else f"Service {service}"

    def cluster(entry: Entry, to: ServiceRef) -> str:
        bad = (
            any(each.reason for each in entry.rule.backends if each.to == to) or unresolved(reader, entry.route, to)[0]
        )
        if bad:
            return UNRESOLVED
        return cluster_name(service, port, to.name) if to.kind == "Cluster" else cluster_name(to.service, to.port)

    chains = []
    for namespace, own in sorted(found.items()):
        routes_name = f"{name}/{namespace}" if namespace else name
        if namespace:
            pods = reader.by(PODS, "namespace", namespace)
            callers = sorted({address for pod in pods for address in pod.addresses})
            chains.append(Chain(routes_name, tuple(callers)))
        yield route_configuration(routes_name, entries(own), cluster, unit=service)
    if "" not in found:
        yield route_configuration(name, (), cluster, unit=service, default=name)
    chains.append(Chain(name, ()))
    addresses = [(each.address, each.port) for each in listening]
    yield http_listener(
        name, addresses, [each for each in chains if each.callers or each.routes == name], owner, service
    )


def _is_routed(reader: Reader, service: ServiceName) -> bool:
    return bool(reader.by(ROUTES, "parent", service) or reader.by(ROUTES, "target", service))


def routed(affected: Callable[..., Iterable[ServiceName]]) -> Callable[[Reader, Any, Any], Iterator[ServiceName]]:
    """Those of the affected Services that a route is for or leads to: of thousands, few."""

    def only(reader: Reader, old: Any, new: Any) -> Iterator[ServiceName]:
        return (service for service in affected(reader, old, new) if _is_routed(reader, service))

    return only


def by_any_route(reader: Reader, old: Route | None, new: Route | None) -> Iterator[bool]:
    """Which Services go through Envoy is computed of all routes together."""
    yield True


def by_parent(reader: Reader, old: Service | None, new: Service | None) -> Iterator[bool]:
    """A Service that a route is for."""
    row = new or old
    if row is not None and reader.by(ROUTES, "parent", row.name):
        yield True


def by_imported_parent(reader: Reader, old: Import | None, new: Import | None) -> Iterator[bool]:
    """An import that a route is for."""
    if any(reader.by(ROUTES, "parent", service) for service in names_for_import(reader, old, new)):
        yield True


def by_route(reader: Reader, old: Route | None, new: Route | None) -> Iterable[ServiceName]:
    """A route affects its parents and what it leads to, now and before."""
    rows = [row for row in (old, new) if row is not None]
    parents = {parent.service for row in rows for parent in row.parents}
    return parents.union(*(row.targets() for row in rows))


def by_plan(reader: Reader, old: Plan | None, new: Plan | None) -> Iterator[ServiceName]:
    """A plan affects its cluster; one that comes or goes, the routes that lead to it, too."""
    row = new or old
    if row is None:
        return
    yield row.key.service
    if old is None or new is None:
        for route in reader.by(ROUTES, "target", row.key.service):
            yield from (parent.service for parent in route.parents)


def by_redirect(reader: Reader, old: ProxyRedirect | None, new: ProxyRedirect | None) -> Iterator[ServiceName]:
    """A Service that goes through Envoy."""
    row = new or old
    if row is not None:
        yield row.service


def by_served(reader: Reader, old: ServedListener | None, new: ServedListener | None) -> Iterator[ServiceName]:
    """A listener that is served now, or no longer, affects its Service."""
    row = new or old
    if row is not None:
        yield ServiceName(row.name.rpartition(":")[0])


def by_grant(reader: Reader, old: Grant | None, new: Grant | None) -> Iterator[ServiceName]:
    """A grant affects the routes of the namespaces that it names."""
    sources = {source for row in (old, new) if row is not None for source in row.sources}
    for kind, namespace in sources:
        for route in reader.by(ROUTES, "namespace", namespace):
            if route.kind == kind:
                yield from (parent.service for parent in route.parents)


def by_member(reader: Reader, old: Cluster | None, new: Cluster | None) -> Iterator[ServiceName]:
    """A cluster that joins or leaves affects the parents of the routes that refer to it."""
    row = new or old
    if row is None or (old is not None and new is not None):
        return
    for route in reader.all(ROUTES):
        if row.name in route.clusters():
            yield from (parent.service for parent in route.parents)


def by_pod(reader: Reader, old: Pod | None, new: Pod | None) -> Iterator[ServiceName]:
    """A pod whose addresses change affects Services of other namespaces for which its namespace has routes."""
    row = new or old
    if row is None or (old is not None and new is not None and old.addresses == new.addresses):
        return
    namespace = row.name.partition("/")[0]
    for route in reader.by(ROUTES, "namespace", namespace):
        yield from (parent.service for parent in route.parents if not parent.name.startswith(f"{namespace}/"))


def by_policy(reader: Reader, old: Policy | None, new: Policy | None) -> Iterator[ServiceName]:
    """A policy affects what it is about."""
    yield from plans.by_policy(reader, old, new)


def by_all(reader: Reader, old: object, new: object) -> Iterator[ServiceName]:
    """A cluster or a drain that comes, goes or changes affects every Service of a route: there are few."""
    for route in reader.all(ROUTES):
        yield from by_route(reader, None, route)
