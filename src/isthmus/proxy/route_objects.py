"""What came of each HTTPRoute and GRPCRoute, as the status wanted of its object (Gateway API, RouteParentStatus).

An entry for each parent that is a Service or a ServiceImport, with the conditions Accepted and ResolvedRefs. Of a route
that cannot be followed the references are not read, so it has no ResolvedRefs. While an Envoy of some node refuses what
was made of it, there is a condition of our own, isthmus.io/Programmed, False. Entries of other controllers stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
from isthmus.kube.objects.gateway import GRPC_ROUTE, HTTP_ROUTE
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.names import ServiceName, split
from isthmus.model.objects import Object
from isthmus.model.routes import ROUTE_KINDS, ParentRef, Route
from isthmus.model.tables import (
    CLUSTERS,
    GRANTS,
    IMPORTS,
    NODES,
    OBSERVED,
    ROUTE_OBJECTS,
    ROUTE_REFUSALS,
    ROUTES,
    SERVICES,
)
from isthmus.proxy.attachment import attached, unfit, unresolved
from isthmus.statedb import DerivedTogether, Reader, WriteTxn, rewrite

CONTROLLER: Final = "isthmus.io/mesh"
"""The controllerName of our entries."""
GROUPS: Final = {"Service": "", "ServiceImport": "multicluster.x-k8s.io"}
KINDS: Final = {
    "HTTPRoute": Ownership(HTTP_ROUTE, controller=CONTROLLER),
    "GRPCRoute": Ownership(GRPC_ROUTE, controller=CONTROLLER),
}
SHOWN: Final = 4
"""References that a message names; the others are counted."""
PROGRAMMED: Final = "isthmus.io/Programmed"
"""The type of a condition that the Gateway API does not have for routes; only there while it is False."""
COUNTED: Final = (1000, 100, 10)
"""Numbers of nodes above which no further ones are told apart: each change of a message is a write for each route."""

Pairs = Sequence[tuple[Any, Any]]
Beyond = Callable[[ServiceName], dict[str, str]]
"""Of a Service, the routes for it that do not count, by owner, and why."""


def derived() -> DerivedTogether:
    """The declaration of the table, for the operator."""
    return DerivedTogether(
        ROUTE_OBJECTS,
        renew=renew,
        reads={
            ROUTES: by_routes,
            GRANTS: by_grants,
            SERVICES: by_services,
            IMPORTS: by_imports,
            CLUSTERS: by_members,
            OBSERVED: by_observed,
            ROUTE_REFUSALS: by_refusals,
            NODES: by_nodes,
        },
    )


def renew(txn: WriteTxn, units: Iterable[ServiceName]) -> None:
    """The statuses of the routes of these names. The routes of a parent are ordered once for all of them."""

    @cache
    def refused(service: ServiceName) -> dict[str, str]:
        return {route.owner: why for route, why in attached(txn, service)[1]}

    for name in units:
        rewrite(txn, ROUTE_OBJECTS, txn.by(ROUTE_OBJECTS, "service", name), list(compute(txn, name, refused)))


def compute(reader: Reader, name: ServiceName, refused: Beyond) -> Iterator[Object]:
    """The statuses of the routes of a name, of both kinds."""
    for kind in ROUTE_KINDS:
        route = reader.get(ROUTES, (kind, name))
        if route is not None:
            draft = Draft(kind, name, status=status(reader, route, refused))
            yield row(draft, reader.get(OBSERVED, (kind, name)), unit=name, ownership=KINDS[kind])


def status(reader: Reader, route: Route, refused: Beyond) -> dict[str, Any]:
    """The status of a route: our entries alone."""
    resolved = [] if route.invalid else [_resolved(reader, route)]
    return {
        "parents": [
            {
                "parentRef": _reference(parent),
                "controllerName": CONTROLLER,
                "conditions": [
                    _accepted(reader, route, parent, refused),
                    *resolved,
                    *_not_programmed(reader, route, parent),
                ],
            }
            for parent in route.parents
        ]
    }


def _reference(parent: ParentRef) -> dict[str, str | int]:
    """The reference as the route has it, by which a reader finds the entry."""
    found: dict[str, str | int] = {"group": GROUPS[parent.kind], "kind": parent.kind, "name": split(parent.name)[1]}
    if parent.namespace:
        found["namespace"] = parent.namespace
    if parent.section:
        found["sectionName"] = parent.section
    if parent.port:
        found["port"] = parent.port
    return found


def _accepted(reader: Reader, route: Route, parent: ParentRef, refused: Beyond) -> Condition:
    if route.invalid:
        reason, message = "UnsupportedValue", route.invalid
    elif why := unfit(parent, resolve(reader, parent.service, which="all")):
        reason, message = "NoMatchingParent", why
    elif why := refused(parent.service).get(route.owner, ""):
        reason, message = "TooManyRoutes", why
    else:
        return condition("Accepted", True, reason="Accepted", generation=route.generation)
    return condition("Accepted", False, reason=reason, message=message, generation=route.generation)


def _resolved(reader: Reader, route: Route) -> Condition:
    """Several references may fail: the reason is that of the first, in the order of the rules."""
    found = list(dict.fromkeys(_failures(reader, route)))
    if not found:
        return condition("ResolvedRefs", True, reason="ResolvedRefs", generation=route.generation)
    message = "; ".join(text for _, text in found[:SHOWN])
    if len(found) > SHOWN:
        message += f"; and {len(found) - SHOWN} more"
    return condition("ResolvedRefs", False, reason=found[0][0], message=message, generation=route.generation)


def _not_programmed(reader: Reader, route: Route, parent: ParentRef) -> Iterator[Condition]:
    """The condition while Envoys of nodes refuse the route for a parent. A node that is gone refuses nothing."""
    found = sorted(
        (row.name, each.message)
        for row in reader.by(ROUTE_REFUSALS, "route", (route.kind, route.name))
        if reader.get(NODES, row.name) is not None
        for each in row.routes
        if (each.kind, each.name, each.service) == (route.kind, route.name, parent.service)
    )
    if found:
        node, why = found[0]
        message = (
            f"the Envoy of node {node}{_and_others(len(found) - 1)} refused it, and keeps what it took before: {why}"
        )
        yield condition(PROGRAMMED, False, reason="RefusedByEnvoy", message=message, generation=route.generation)


def _and_others(count: int) -> str:
    if not count:
        return ""
    least = next((each for each in COUNTED if count >= each), 0)
    return f" (and of {least} others or more)" if least else f" (and of {count} other{'s' if count > 1 else ''})"


def _failures(reader: Reader, route: Route) -> Iterator[tuple[str, str]]:
    for rule in route.rules:
        for backend in rule.backends:
            failure = (backend.reason, backend.message) if backend.reason else unresolved(reader, route, backend.to)
            if failure[0]:
                yield failure
        for mirror in rule.mirrors:
            failure = unresolved(reader, route, mirror.to)
            if failure[0]:
                yield failure


def by_routes(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A route affects itself, and the others of its parents: of those, only so many count."""
    rows = [each for pair in changed for each in pair if each is not None]
    parents = {parent.service for each in rows for parent in each.parents}
    siblings = {each.name for service in parents for each in reader.by(ROUTES, "parent", service)}
    return siblings.union(each.name for each in rows)


def by_grants(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A grant affects the routes of the namespaces that it names."""
    namespaces = {namespace for pair in changed for each in pair if each is not None for _, namespace in each.sources}
    return {each.name for namespace in namespaces for each in reader.by(ROUTES, "namespace", namespace)}


def by_services(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A Service affects the routes that are for it, or lead to it."""
    return _about(reader, {each.name for pair in changed for each in pair if each is not None})


def by_imports(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An import affects those of the Services that stand for it."""
    return _about(reader, {name for pair in changed for name in names_for_import(reader, *pair)})


def by_members(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A cluster that joins or leaves affects the routes that refer to it."""
    names = {(old or new).name for old, new in changed if old is None or new is None}
    return {each.name for each in reader.all(ROUTES) if each.clusters() & names} if names else set()


def by_refusals(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A node's report affects the routes that it names, now and before."""
    rows = [each for pair in changed for each in pair if each is not None]
    return {each.name for row in rows for each in row.routes}


def by_nodes(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A node that comes or goes affects the routes that its report names."""
    names = {(old or new).name for old, new in changed if old is None or new is None}
    reports = [report for name in names if (report := reader.get(ROUTE_REFUSALS, name)) is not None]
    return {each.name for report in reports for each in report.routes}


def by_observed(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """What the server has of a route is held against what is wanted of it."""
    return {each.name for pair in changed for each in pair if each is not None and each.kind in KINDS}


def _about(reader: Reader, services: Iterable[ServiceName]) -> set[ServiceName]:
    indexes = ("parent", "target")
    return {each.name for name in services for index in indexes for each in reader.by(ROUTES, index, name)}
