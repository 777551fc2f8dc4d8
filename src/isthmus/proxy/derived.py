"""Derived tables of a node's Envoy: the Services that it proxies, the plans of their calls, and its resources.

A Service with a route gets a listener of its own port on addresses of this node, a row of ``proxy_listeners``. While an
Envoy serves it there is also a row of ``proxy_redirects``, which the planner treats as any other redirect. Calls of all
other Services bypass Envoy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from isthmus import bounds
from isthmus.loadbalancer import backends, envoy, gateways, islands, plans, policies
from isthmus.loadbalancer.selection import one_family_each
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.balancing import Plan, PlanKey
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.redirects import Listener, ProxyRedirect
from isthmus.model.routes import Attachment, EncodedMatch, RouteKey, RouteParts
from isthmus.model.services import Family
from isthmus.model.tables import (
    ATTACHMENTS,
    AUTHORITIES,
    BACKEND_TLS,
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    NODES,
    OWN_RANGES,
    POLICIES,
    PROBES,
    PROXY_LISTENERS,
    PROXY_REDIRECTS,
    REFUSED_GATEWAYS,
    ROUTE_PARTS,
    ROUTE_PLANS,
    ROUTES,
    SERVICES,
    XDS,
    XDS_SERVED,
)
from isthmus.model.xds import Resource
from isthmus.proxy import backend_tls, listener_shares, port_routes, probing, route_parts
from isthmus.proxy.clusters import of_plans
from isthmus.proxy.listener_shares import Listening
from isthmus.proxy.listeners import host_of, http_listener
from isthmus.proxy.protocols import http_version
from isthmus.proxy.routing import cluster_name, route_configuration
from isthmus.proxy.tracing import UNTRACED, Tracing, of_service
from isthmus.statedb import Affected, Derived, Reader, on_change, through, unit_of

BYTES_OF_COST: Final = 16_384
"""Bytes of configuration of a port's routes that cost as much as one unit: they are joined and hashed."""


class XdsSource(NamedTuple):
    """Another source of rows of ``xds`` for the same Envoy, with units of its own."""

    computes: Callable[[str], bool]
    """True if a unit is this source's."""
    compute: Callable[[Reader, str], Iterable[Resource]]
    reads: Mapping[Any, Affected]
    """Tables that it reads, as in :class:`Derived`."""


def derived(
    cluster: ClusterName,
    node: str,
    listening: Listening,
    more: XdsSource | None = None,
    *,
    tracing: Tracing | None = None,
) -> list[Derived[Any]]:
    """Declare the tables for the agent of a node. ``more``: another source of resources for its Envoy.

    ``tracing``: of requests; ``None`` for none.
    """
    by_backends: dict[Any, Callable[..., Iterable[ServiceName]]] = {
        ENDPOINT_SETS: backends.by_endpoints,
        SERVICES: backends.by_service,
        IMPORTS: names_for_import,
        PROBES: backends.by_probe,
        CLUSTERS: through(ROUTE_PLANS, "key.service"),
        DRAINING: through(ROUTE_PLANS, "key.service"),
        OWN_RANGES: backends.by_own_ranges,
        POLICIES: plans.by_policy,
        NODES: partial(plans.by_node, node=node),
        ISLAND_LISTENERS: islands.by_listener,
        GATEWAY_CHECKS: islands.by_check,
        REFUSED_GATEWAYS: gateways.by_refused,
        XDS_SERVED: islands.by_served,
        ENVOY_CHECKS: envoy.by_check,
    }
    for_probes = unit_of(lambda row: probing.UNIT)  # any listener may be the first or the last one
    by_xds: dict[Any, Affected] = {
        ROUTE_PLANS: unit_of("key.service"),
        PROXY_LISTENERS: either(by_listeners, for_probes),
        ISLAND_LISTENERS: for_probes,
        ATTACHMENTS: by_attachment,
        ROUTE_PARTS: by_parts,
        BACKEND_TLS: routed(backend_tls.by_policy),
        AUTHORITIES: routed(backend_tls.by_authority),
        SERVICES: routed(on_change(("ports",), unit_of("name"))),
        IMPORTS: routed(on_change(("ports",), names_for_import)),
    }
    for table, affected in (more.reads if more is not None else {}).items():
        by_xds[table] = either(by_xds[table], affected) if table in by_xds else affected
    return [
        port_routes.derived(),
        listener_shares.derived(listening),
        route_parts.derived(),
        Derived(
            PROXY_REDIRECTS,
            compute=redirects,
            reads={
                PROXY_LISTENERS: unit_of("service"),
                XDS_SERVED: unit_of(lambda row: ServiceName(row.name.rpartition(":")[0])),
                ENVOY_CHECKS: envoy.by_check_of_routes,
            },
            unit="service",
        ),
        Derived(
            ROUTE_PLANS,
            compute=partial(
                route_plans, cluster=cluster, node=node, families={family(each) for each in listening.addresses}
            ),
            reads={
                PROXY_LISTENERS: unit_of("service"),
                ROUTE_PARTS: by_targets,
                **{table: routed(affected) for table, affected in by_backends.items()},
            },
            unit="service",
            cost=lambda reader, service: 1 + len(called_ports(reader, service)),
        ),
        Derived(
            XDS,
            compute=partial(all_resources, listening=listening, more=more, tracing=tracing),
            reads=by_xds,
            unit="unit",
            cost=cost_of,
        ),
    ]


def either(first: Affected, second: Affected) -> Affected:
    """Combine two functions: the units that either affects."""
    return lambda reader, old, new: (*first(reader, old, new), *second(reader, old, new))


def redirects(reader: Reader, service: ServiceName) -> Iterator[ProxyRedirect]:
    """Yield redirects to the listeners that Envoy serves: none while it is down or hangs, so that calls bypass it."""
    for row in reader.by(PROXY_LISTENERS, "service", service):
        listening = tuple(
            each for each in row.listeners if envoy.serves(reader, listener_name(service, each.ports[0], row.callers))
        )
        if listening:
            yield replace(row, listeners=listening, left_out=())


def called_ports(reader: Reader, service: ServiceName) -> set[int]:
    """Return the ports of a Service that Envoy calls: those with a listener, and those that are targets of routes."""
    numbers = {
        number
        for row in reader.by(PROXY_LISTENERS, "service", service)
        for listener in row.listeners
        for number in listener.ports
    }
    for row in reader.by(ROUTE_PARTS, "target", service):
        numbers.update(each.port for each in row.targets if each.service == service)
    return numbers


def route_plans(
    reader: Reader, service: ServiceName, *, cluster: ClusterName, node: str, families: Collection[Family]
) -> Iterator[Plan]:
    """Yield the plans of a Service's ports that Envoy calls, as if the Service were not redirected.

    A port has one plan with the backends of all clusters, whichever family each of them has: Envoy is called by one
    family and may call another. ``families``: those of this node.
    """
    ports = called_ports(reader, service)
    subject = resolve(reader, service, which="all") if ports else None
    if subject is None:
        return
    stored = backends.compute(reader, service, cluster=cluster, which="all", cache={})
    candidates = one_family_each(stored, families)
    policy = policies.of_service(reader, subject)
    context = plans.plan_context(reader, cluster, node, sources=())
    for port in subject.ports:
        if port.protocol != "TCP" or port.port not in ports:
            continue
        yield plans.plan(
            PlanKey(service, port.port, port.protocol, "any"),
            service=subject,
            frontends=(),
            backends=candidates,
            place=context.place,
            policy=policy,
            clusters=context.clusters,
            drained=context.drained,
            port_name=port.name,
        )


def all_resources(
    reader: Reader, unit: str, *, listening: Listening, more: XdsSource | None, tracing: Tracing | None
) -> Iterable[Resource]:
    """Return the resources of a unit: the probed listener, one of ``more``, a port with its callers, or a Service."""
    if unit == probing.UNIT:
        return _of_node(listening, tracing) if _is_wanted(reader) else ()
    if more is not None and more.computes(unit):
        return more.compute(reader, unit)
    if (port_key := port_of(unit)) is not None:
        return http_resources(reader, *port_key, tracing)
    return clusters_of(reader, ServiceName(unit))


def _of_node(listening: Listening, tracing: Tracing | None) -> Iterator[Resource]:
    """Yield what a node's Envoy has whatever it serves: the probed listener, and the cluster of the collector."""
    yield probing.listener(listening.addresses, listening.health_port)
    if tracing is not None:
        yield tracing.cluster(probing.UNIT)


def clusters_of(reader: Reader, service: ServiceName) -> list[Resource]:
    """Return the clusters and endpoints of a Service, for the ports that Envoy calls."""
    rows = reader.by(ROUTE_PLANS, "service", service)
    subject = resolve(reader, service, which="all") if rows else None
    if subject is None:
        return []
    http2 = frozenset(port.port for port in subject.ports if http_version(port) == 2)
    leading = (reader.get(ROUTES, row.route) for row in reader.by(ROUTE_PARTS, "service", service))
    only = {name for route in leading if route is not None for name in route.clusters()}
    tls = {port.port: each for port in subject.ports if (each := backend_tls.of_port(reader, service, port))}
    return of_plans(rows, http2=http2, only=only, tls=tls)


def http_resources(
    reader: Reader, service: ServiceName, port: int, callers: str, tracing: Tracing | None = None
) -> Iterator[Resource]:
    """Yield the routes and the listener of a port for some callers."""
    attachment = reader.get(ATTACHMENTS, service)
    port_routes_row = attachment.port_routes((port, callers)) if attachment is not None else None
    name = listener_name(service, port, callers)
    addresses = [
        (each.address, each.port)
        for row in reader.by(PROXY_LISTENERS, "service", service)
        for each in row.listeners
        if row.callers == callers and port in each.ports
    ]
    if port_routes_row is None or not addresses:
        return
    tried = [match for key in port_routes_row.routes for match in _parts(reader, key, service, port)]
    tried.sort(key=attrgetter("order"))  # stable: matches of one rule stay in their order
    yield route_configuration(name, tried, owner=port_routes_row.owner, unit=name)
    cluster, host = cluster_name(service, port), host_of(service)
    yield http_listener(
        name,
        addresses,
        port_routes_row.owner,
        name,
        cluster=cluster,
        host=host,
        tracing=of_service(tracing, _shown(reader, service), port) if tracing is not None else UNTRACED,
    )


def _shown(reader: Reader, service: ServiceName) -> ServiceName:
    """Name of a Service for people: of a derived one, its import's."""
    row = resolve(reader, service, which="all")
    return row.import_of if row is not None and row.import_of else service


def _parts(reader: Reader, route: RouteKey, service: ServiceName, port: int) -> Iterable[EncodedMatch]:
    row = reader.get(ROUTE_PARTS, (route, ServiceName(""), 0)) or reader.get(ROUTE_PARTS, (route, service, port))
    return row.matches if row is not None else ()


def cost_of(reader: Reader, unit: str) -> int:
    """Cost of a unit of resources within a pass."""
    port_key = port_of(unit)
    if port_key is None:
        return 1 + 2 * len(reader.by(ROUTE_PLANS, "service", ServiceName(unit)))
    attachment = reader.get(ATTACHMENTS, port_key[0])
    port_routes_row = attachment.port_routes(port_key[1:]) if attachment is not None else None
    return 8 + (port_routes_row.size // BYTES_OF_COST if port_routes_row is not None else 0)


def listener_name(service: str, port: int, callers: str) -> str:
    """Name of a listener, of its routes, and of the unit in which they are computed."""
    return f"{cluster_name(service, port)}/{callers}" if callers else cluster_name(service, port)


def port_of(unit: str) -> tuple[ServiceName, int, str] | None:
    """Return the Service, port and callers of a listener's name, ``None`` if it is not one."""
    service, colon, rest = unit.rpartition(":")
    number, _, callers = rest.partition("/")
    try:
        return (ServiceName(service), bounds.port(number), callers) if colon else None
    except bounds.OutOfBounds:
        return None


def _is_wanted(reader: Reader) -> bool:
    """True if this node's Envoy has any listener for pods."""
    return bool(reader.count(ISLAND_LISTENERS)) or any(row.listeners for row in reader.all(PROXY_LISTENERS))


def _is_routed(reader: Reader, service: ServiceName) -> bool:
    return bool(reader.by(PROXY_LISTENERS, "service", service) or reader.by(ROUTE_PARTS, "target", service))


def routed(affected: Callable[..., Iterable[ServiceName]]) -> Callable[[Reader, Any, Any], Iterator[ServiceName]]:
    """Restrict the affected Services to those that routes have as parents or targets: few of thousands."""

    def only(reader: Reader, old: Any, new: Any) -> Iterator[ServiceName]:
        return (service for service in affected(reader, old, new) if _is_routed(reader, service))

    return only


def by_listeners(reader: Reader, old: ProxyRedirect | None, new: ProxyRedirect | None) -> Iterator[str]:
    """Added and removed listeners affect their units."""
    rows = [row for row in (old, new) if row is not None]
    before, after = (set(row.listeners) if row is not None else set[Listener]() for row in (old, new))
    for listener in before ^ after:
        for service, callers in {(row.service, row.callers) for row in rows}:
            yield from (listener_name(service, number, callers) for number in listener.ports)


def by_attachment(reader: Reader, old: Attachment | None, new: Attachment | None) -> set[str]:
    """A change of a port's routes affects its unit."""
    before, after = (set(row.ports) if row is not None else set() for row in (old, new))
    row = new or old
    changed = before ^ after if row is not None else ()
    return {listener_name(row.service, each.port, each.callers) for each in changed if row is not None}


def by_parts(reader: Reader, old: RouteParts | None, new: RouteParts | None) -> Iterator[str]:
    """A route whose encoding changes affects the ports that it applies to."""
    row = new or old
    if row is not None and row.service:
        yield row.service  # its clusters for single members, which routes refer to
    route = reader.get(ROUTES, row.route) if row is not None else None
    if row is None or route is None:
        return  # a deleted route changes the attachments of its parents
    for service in {parent.service for parent in route.parents}:
        attachment = reader.get(ATTACHMENTS, service)
        for port_row in attachment.ports if attachment is not None else ():
            if row.route in port_row.routes and row.port in (0, port_row.port):
                yield listener_name(service, port_row.port, port_row.callers)


def by_targets(reader: Reader, old: RouteParts | None, new: RouteParts | None) -> set[ServiceName]:
    """A change of a route's targets affects the Services that it adds or removes."""
    before, after = (set(row.targets) if row is not None else set() for row in (old, new))
    return {each.service for each in before ^ after}
