"""Computes the status of each HTTPRoute and GRPCRoute (Gateway API, RouteParentStatus).

There is an entry for each parent that is a Service or a ServiceImport, with the conditions Accepted and ResolvedRefs.
An invalid route has no ResolvedRefs, because its references are not read. Two conditions of our own are set only while
they are False: isthmus.io/Programmed while the Envoy of some node refuses the route, isthmus.io/Effective while it has
fields that nothing follows. (The API's PartiallyInvalid means that rules were dropped; here the rest of a rule counts.)
Entries of other controllers are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
from isthmus.kube.objects.gateway import GRPC_ROUTE, HTTP_ROUTE
from isthmus.loadbalancer.references import unresolved
from isthmus.loadbalancer.route_conditions import CONTROLLER, not_effective, reference, resolved
from isthmus.loadbalancer.services import names_for_import, resolve
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.routes import ROUTE_KINDS, ParentRef, RefusalReason, Route, RouteKey, Unattached
from isthmus.model.tables import (
    ATTACHMENTS,
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
from isthmus.proxy import port_routes
from isthmus.proxy.attachment import ParentPorts, passed_unchanged, unfit_parent
from isthmus.statedb import Derivation, DerivedTogether, Reader, WriteTxn, rewrite

KINDS: Final = {
    "HTTPRoute": Ownership(HTTP_ROUTE, controller=CONTROLLER),
    "GRPCRoute": Ownership(GRPC_ROUTE, controller=CONTROLLER),
}
PROGRAMMED: Final = "isthmus.io/Programmed"
"""A condition type that the Gateway API lacks for routes. It is set only while it is False."""
NODE_MESSAGES: Final[Mapping[RefusalReason, str]] = {
    "RefusedByEnvoy": "the Envoy of node {node} refused it, and keeps what it took before: {why}",
    "NoPortLeft": "calls pass it by on node {node}: {why}",
}
COUNTED: Final = (1000, 100, 10)
"""Numbers to which a message rounds down the count of nodes, since each change of a message is a write of the route."""

REFERENCES_OF_COST: Final = 8
"""References of a route that cost as much as one unit."""

Pairs = Sequence[tuple[Any, Any]]


def derived() -> list[Derivation]:
    """Declare the tables for the operator."""
    statuses = DerivedTogether(
        ROUTE_OBJECTS,
        renew=renew,
        cost=_cost,
        reads={
            ROUTES: by_routes,
            ATTACHMENTS: by_attachments,
            GRANTS: by_grants,
            SERVICES: by_services,
            IMPORTS: by_imports,
            CLUSTERS: by_members,
            OBSERVED: by_observed,
            ROUTE_REFUSALS: by_refusals,
            NODES: by_nodes,
        },
    )
    return [port_routes.derived(), statuses]


def _cost(reader: Reader, name: ServiceName) -> int:
    routes = filter(None, (reader.get(ROUTES, (kind, name)) for kind in ROUTE_KINDS))
    return 2 + sum(len(route.references) for route in routes) // REFERENCES_OF_COST


class Parents:
    """Cache of parents of routes for one batch."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.ports = cache(self._ports)
        self.refused = cache(self._refused)

    def _ports(self, service: ServiceName) -> ParentPorts:
        return ParentPorts(resolve(self._reader, service, which="all"))

    def _refused(self, service: ServiceName) -> dict[RouteKey, Unattached]:
        """Return the refused routes of a Service."""
        attachment = self._reader.get(ATTACHMENTS, service)
        return {each.route: each for each in attachment.refused} if attachment is not None else {}


def renew(txn: WriteTxn, units: Iterable[ServiceName]) -> None:
    """Write the statuses of the routes of these names."""
    parents = Parents(txn)
    for name in units:
        rewrite(txn, ROUTE_OBJECTS, txn.by(ROUTE_OBJECTS, "service", name), list(compute(txn, name, parents)))


def compute(reader: Reader, name: ServiceName, parents: Parents) -> Iterator[Object]:
    """Yield the statuses of the routes of a name, of both kinds."""
    for kind in ROUTE_KINDS:
        route = reader.get(ROUTES, (kind, name))
        if route is not None:
            draft = Draft(kind, name, status=status(reader, route, parents))
            yield row(draft, reader.get(OBSERVED, (kind, name)), unit=name, ownership=KINDS[kind])


def status(reader: Reader, route: Route, parents: Parents) -> dict[str, Any]:
    """Return our entries in the status of a route."""
    resolved_refs = [] if route.invalid else [resolved(route, _failures(reader, route))]
    return {
        "parents": [
            {
                "parentRef": reference(parent),
                "controllerName": CONTROLLER,
                "conditions": [
                    _accepted(route, parent, parents),
                    *resolved_refs,
                    *_not_programmed(reader, route, parent),
                    *not_effective(route),
                ],
            }
            for parent in route.parents
        ]
    }


def _accepted(route: Route, parent: ParentRef, parents: Parents) -> Condition:
    ports = parents.ports(parent.service)
    reason, message = ("UnsupportedValue", route.invalid) if route.invalid else unfit_parent(route, parent, ports)
    if not reason and (refusal := parents.refused(parent.service).get(route.key)):
        reason, message = refusal.reason, refusal.message
    if reason:
        return condition("Accepted", False, reason=reason, message=message, generation=route.generation)
    unchanged = passed_unchanged(parent, ports)
    return condition("Accepted", True, reason="Accepted", message=unchanged, generation=route.generation)


def _not_programmed(reader: Reader, route: Route, parent: ParentRef) -> Iterator[Condition]:
    """Yield the condition Programmed if existing nodes report the route for a parent."""
    refusals = sorted(
        (row.name, each)
        for row in reader.by(ROUTE_REFUSALS, "route", route.key)
        if reader.get(NODES, row.name) is not None
        for each in row.routes
        if (each.kind, each.name, each.service) == (*route.key, parent.service)
    )
    if refusals:
        node, first = refusals[0]
        message = NODE_MESSAGES[first.reason].format(node=f"{node}{_and_others(len(refusals) - 1)}", why=first.message)
        yield condition(PROGRAMMED, False, reason=first.reason, message=message, generation=route.generation)


def _and_others(count: int) -> str:
    if not count:
        return ""
    least = next((each for each in COUNTED if count >= each), 0)
    return f" (and of {least} others or more)" if least else f" (and of {count} other{'s' if count > 1 else ''})"


def _failures(reader: Reader, route: Route) -> Iterator[tuple[str, str]]:
    for each in route.references:
        failure = (each.reason, each.message) if each.reason else unresolved(reader, route, each.to)
        if failure[0]:
            yield failure


def by_routes(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A route affects itself."""
    return {each.name for pair in changed for each in pair if each is not None}


def by_attachments(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A Service affects the routes that it refuses now and did not before, and vice versa."""
    changes: set[Unattached] = set()
    for old, new in changed:
        before, after = (set(row.refused) if row is not None else set() for row in (old, new))
        changes |= before ^ after
    return {each.route[1] for each in changes}


def by_grants(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A grant affects the routes of the namespaces that it names."""
    namespaces = {namespace for pair in changed for each in pair if each is not None for _, namespace in each.sources}
    return {each.name for namespace in namespaces for each in reader.by(ROUTES, "namespace", namespace)}


def by_services(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A Service affects the routes that have it as parent or target."""
    return _about(reader, {each.name for pair in changed for each in pair if each is not None})


def by_imports(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An import affects the routes of the Services that represent it."""
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
    """A node that is added or deleted affects the routes that its report names."""
    names = {(old or new).name for old, new in changed if old is None or new is None}
    reports = [report for name in names if (report := reader.get(ROUTE_REFUSALS, name)) is not None]
    return {each.name for report in reports for each in report.routes}


def by_observed(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An observed status of a route affects it: the two are compared."""
    return {each.name for pair in changed for each in pair if each is not None and each.kind in KINDS}


def _about(reader: Reader, services: Iterable[ServiceName]) -> set[ServiceName]:
    indexes = ("parent", "target")
    return {each.name for name in services for index in indexes for each in reader.by(ROUTES, index, name)}
