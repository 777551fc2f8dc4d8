"""The table ``attachments``: the routes of each Service by port and callers. Agents and the operator derive it.

A route that changes only its actions leaves the table unchanged, so that listeners and their shares of the node are not
computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.names import ServiceName
from isthmus.model.routes import Attachment, PortRoutes, Route, Unattached
from isthmus.model.services import Import, Port, Service
from isthmus.model.tables import ATTACHMENTS, IMPORTS, ROUTES, SERVICES
from isthmus.proxy.attachment import ParentPorts, attached, by_age, by_callers
from isthmus.statedb import Derived, Reader

ROUTES_OF_COST: Final = 4
PORTS_OF_COST: Final = 16
"""Routes, and ports, of a Service that cost as much as one unit."""
SIZE_STEP: Final = 4_096
"""Sizes are rounded up to multiples of it, so that few changes of a route change its namespace's total."""


def derived() -> Derived[Attachment]:
    """Declare the table."""
    return Derived(
        ATTACHMENTS,
        compute=compute,
        reads={ROUTES: by_route, SERVICES: by_service, IMPORTS: by_import},
        cost=_cost,
    )


def _cost(reader: Reader, service: ServiceName) -> int:
    ports = max((len(row.ports) for row in reader.by(SERVICES, "name", service)), default=0)
    return 1 + len(reader.by(ROUTES, "parent", service)) // ROUTES_OF_COST + ports // PORTS_OF_COST


def compute(reader: Reader, service: ServiceName) -> Iterator[Attachment]:
    """Yield the row of a Service that is a parent of a route."""
    if not reader.by(ROUTES, "parent", service):
        return
    judged, ports = attached(reader, service), ParentPorts(resolve(reader, service, which="all"))
    yield Attachment(
        service,
        tuple(
            each
            for callers, routes in sorted(by_callers(judged.routes, service).items())
            for each in _of_ports(service, callers, routes, ports)
        ),
        tuple(Unattached(each.route.key, each.reason, each.message) for each in judged.refused),
    )


def _of_ports(service: ServiceName, callers: str, routes: Sequence[Route], ports: ParentPorts) -> Iterator[PortRoutes]:
    """Yield the routes of each port that has any. Most routes apply to every port: these are joined only once."""
    everywhere: list[Route] = []
    by_port: dict[Port, list[Route]] = {}
    for route in routes:
        selections = [ports.selected(parent) for parent in route.parents if parent.service == service]
        if any(each is ports.tcp for each in selections):
            everywhere.append(route)
        else:
            for port in {port for each in selections for port in each}:
                by_port.setdefault(port, []).append(route)
    common = _joined(0, callers, everywhere) if everywhere else None
    for port in ports.http:
        if port in by_port:
            yield _joined(port.port, callers, sorted([*everywhere, *by_port[port]], key=by_age))
        elif common is not None:
            yield PortRoutes(port.port, callers, common.routes, common.owner, common.created, common.size)


def _joined(port: int, callers: str, routes: Sequence[Route]) -> PortRoutes:
    keys, size = tuple(route.key for route in routes), sum(route.size for route in routes)
    size = -(-size // SIZE_STEP) * SIZE_STEP
    return PortRoutes(port, callers, keys, routes[0].owner, routes[0].created, size)


def by_route(reader: Reader, old: Route | None, new: Route | None) -> set[ServiceName]:
    """A route affects its parents, now and before."""
    return {parent.service for row in (old, new) if row is not None for parent in row.parents}


def by_service(reader: Reader, old: Service | None, new: Service | None) -> Iterable[ServiceName]:
    """A Service affects its own row if it is a parent of a route."""
    row = new or old
    return (row.name,) if row is not None and reader.by(ROUTES, "parent", row.name) else ()


def by_import(reader: Reader, old: Import | None, new: Import | None) -> Iterator[ServiceName]:
    """An import affects the rows of the Services that represent it and are parents of routes."""
    return (name for name in names_for_import(reader, old, new) if reader.by(ROUTES, "parent", name))
