"""The table ``route_parts``: each route in effect, encoded once for every port that it is joined into later.

Encoding a large route takes some 10 ms, so few are encoded in one pass. The matches of a rule differ only in the match
itself, so the rest is encoded once: protobuf messages are merged by joining their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final

from isthmus.loadbalancer.references import unresolved
from isthmus.loadbalancer.services import names_for_import
from isthmus.model.names import ServiceName
from isthmus.model.redirects import ProxyRedirect
from isthmus.model.routes import Attachment, EncodedMatch, Grant, Route, RouteKey, RouteParts, RouteRule, ServiceRef
from isthmus.model.services import Import
from isthmus.model.tables import (
    ATTACHMENTS,
    CLUSTERS,
    GRANTS,
    IMPORTS,
    PROXY_LISTENERS,
    ROUTE_PARTS,
    ROUTES,
    SERVICES,
)
from isthmus.proxy.attachment import Entry, match_order
from isthmus.proxy.routing import UNRESOLVED, cluster_name, encoded
from isthmus.statedb import Derived, Reader, on_change, through, unit_of

LEAST_COST: Final = 4
BYTES_OF_COST: Final = 4_096
"""Bytes of a route's configuration that cost as much as one unit: the largest route takes a whole pass."""


def derived() -> Derived[RouteParts]:
    """Declare the table."""
    return Derived(
        ROUTE_PARTS,
        compute=compute,
        reads={
            ROUTES: unit_of("key"),
            ATTACHMENTS: by_attachment,
            PROXY_LISTENERS: by_listeners,
            GRANTS: by_grant,
            SERVICES: on_change(("ports",), through(ROUTES, "key", index="target")),
            IMPORTS: by_import,
            CLUSTERS: on_change((), through(ROUTES, "key", index="cluster")),  # one that joins or leaves
        },
        unit="route",
        cost=_cost,
    )


def compute(reader: Reader, key: RouteKey) -> Iterator[RouteParts]:
    """Yield the rows of a route: one for each of its ports if its clusters depend on the port, else one."""
    route = reader.get(ROUTES, key)
    ports = sorted(_listening(reader, route)) if route is not None else []
    if route is None or not ports:
        return
    failing = {each.to: bool(unresolved(reader, route, each.to)[0]) for each in route.references}
    targets = tuple(
        sorted(reference for reference, fails in failing.items() if not fails and reference.kind != "Cluster")
    )
    for service, port in ports if route.clusters() else [(ServiceName(""), 0)]:

        @cache
        def cluster(reference: ServiceRef, service: ServiceName = service, port: int = port) -> str:
            if failing[reference]:
                return UNRESOLVED
            return (
                cluster_name(service, port, reference.name)
                if reference.kind == "Cluster"
                else cluster_name(reference.service, reference.port)
            )

        matches, problem = _encoded(route, cluster)
        yield RouteParts(route=key, service=service, port=port, matches=matches, targets=targets, problem=problem)


def _encoded(route: Route, cluster: Callable[[ServiceRef], str]) -> tuple[tuple[EncodedMatch, ...], str]:
    """Return a route's encoded matches and an empty text, or none and the reason why Envoy would refuse one."""
    encoded_matches: list[EncodedMatch] = []
    for number, rule in enumerate(route.rules):
        bodies, problem = encoded(route, number, rule, partial(_usable, rule, cluster))
        if problem:
            return (), f"rule {number + 1}: {problem}"
        entries = (Entry(route, number, rule, match) for match in rule.matches)
        encoded_matches += [EncodedMatch(match_order(each), body) for each, body in zip(entries, bodies, strict=True)]
    return tuple(encoded_matches), ""


def _usable(rule: RouteRule, cluster: Callable[[ServiceRef], str], reference: ServiceRef) -> str:
    """Return the cluster of a reference; UNRESOLVED if the reference itself is invalid."""
    return UNRESOLVED if any(each.reason for each in rule.backends if each.to == reference) else cluster(reference)


def _cost(reader: Reader, key: RouteKey) -> int:
    route = reader.get(ROUTES, key)
    return LEAST_COST + (route.size // BYTES_OF_COST if route is not None else 0)


def _listening(reader: Reader, route: Route) -> Iterator[tuple[ServiceName, int]]:
    """Yield the ports of Services that have a listener and to which a route applies."""
    for service in {parent.service for parent in route.parents}:
        row = reader.get(ATTACHMENTS, service)
        listening = {
            (number, port_row.callers)
            for port_row in reader.by(PROXY_LISTENERS, "service", service)
            for listener in port_row.listeners
            for number in listener.ports
        }
        for port_row in row.ports if row is not None else ():
            if port_row.key in listening and route.key in port_row.routes:
                yield service, port_row.port


def by_attachment(reader: Reader, old: Attachment | None, new: Attachment | None) -> set[RouteKey]:
    """A Service affects the routes whose set of ports changes."""
    before, after = _ports_of_routes(old), _ports_of_routes(new)
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _ports_of_routes(row: Attachment | None) -> dict[RouteKey, list[Any]]:
    """Return the ports of each route, grouped: thousands of ports may have the same routes."""
    groups: dict[tuple[str, tuple[RouteKey, ...]], list[int]] = {}
    for port_row in row.ports if row is not None else ():
        groups.setdefault((port_row.callers, port_row.routes), []).append(port_row.port)
    ports_by_route: dict[RouteKey, list[Any]] = {}
    for (callers, routes), ports in groups.items():
        for key in routes:
            ports_by_route.setdefault(key, []).append((callers, ports))
    return ports_by_route


def by_listeners(reader: Reader, old: ProxyRedirect | None, new: ProxyRedirect | None) -> set[RouteKey]:
    """Ports that gain or lose a listener affect their routes."""
    before, after = (_numbers(row) for row in (old, new))
    row = new or old
    attachment = reader.get(ATTACHMENTS, row.service) if row is not None else None
    if row is None or attachment is None or before == after:
        return set()
    changed = {(number, row.callers) for number in before ^ after}
    return {key for each in attachment.ports if each.key in changed for key in each.routes}


def _numbers(row: ProxyRedirect | None) -> set[int]:
    return {number for listener in (row.listeners if row else ()) for number in listener.ports}


def by_grant(reader: Reader, old: Grant | None, new: Grant | None) -> Iterator[RouteKey]:
    """A grant affects the routes of the namespaces that it names."""
    sources = {source for row in (old, new) if row is not None for source in row.sources}
    for kind, namespace in sources:
        yield from (route.key for route in reader.by(ROUTES, "namespace", namespace) if route.kind == kind)


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[RouteKey]:
    """An import affects the routes that target the services representing it."""
    for name in names_for_import(reader, old, new):
        yield from (route.key for route in reader.by(ROUTES, "target", name))
