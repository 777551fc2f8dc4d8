"""Computes the status of each TCPRoute and UDPRoute (Gateway API, RouteParentStatus).

There is an entry for each parent that is a Service or a ServiceImport. An invalid route has no ResolvedRefs, because
its references are not read. Entries of other controllers are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any, Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
from isthmus.kube.objects.gateway import TCP_ROUTE, UDP_ROUTE
from isthmus.loadbalancer import backends
from isthmus.loadbalancer.l4_routes import Verdict, attached, granted, parents, unusable, verdict
from isthmus.loadbalancer.route_conditions import CONTROLLER, not_effective, reference, resolved
from isthmus.loadbalancer.services import names_for_import
from isthmus.model.l4_routes import L4_KINDS, L4Route
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.routes import ParentRef
from isthmus.model.tables import ATTACHMENTS, GRANTS, IMPORTS, L4_ROUTE_OBJECTS, L4_ROUTES, OBSERVED, SERVICES
from isthmus.statedb import Affected, DerivedTogether, Pairs, Reader, WriteTxn, rewrite, unit_of

KINDS: Final = {
    "TCPRoute": Ownership(TCP_ROUTE, controller=CONTROLLER),
    "UDPRoute": Ownership(UDP_ROUTE, controller=CONTROLLER),
}


def derived() -> DerivedTogether:
    """Declare the table for the operator."""
    return DerivedTogether(
        L4_ROUTE_OBJECTS,
        renew=renew,
        reads={
            L4_ROUTES: by_routes,
            GRANTS: by_grants,
            OBSERVED: by_observed,
            SERVICES: _named(backends.by_service),
            IMPORTS: _named(names_for_import),
            ATTACHMENTS: _named(unit_of("service")),
        },
    )


def renew(txn: WriteTxn, units: Iterable[ServiceName]) -> None:
    """Write the statuses of the routes of these names."""
    judged = cache(partial(attached, txn))
    for name in units:
        computed: list[Object] = []
        for kind in L4_KINDS:
            route = txn.get(L4_ROUTES, (kind, name))
            if route is not None:
                status = {
                    "parents": [
                        _entry(txn, route, parent, verdict(txn, route, parent, judged)) for parent in route.parents
                    ]
                }
                draft = Draft(kind, name, status=status)
                computed.append(row(draft, txn.get(OBSERVED, (kind, name)), unit=name, ownership=KINDS[kind]))
        rewrite(txn, L4_ROUTE_OBJECTS, txn.by(L4_ROUTE_OBJECTS, "service", name), computed)


def _entry(reader: Reader, route: L4Route, parent: ParentRef, judged: Verdict) -> dict[str, Any]:
    resolved_refs = [] if route.invalid else [resolved(route, _failures(reader, route))]
    return {
        "parentRef": reference(parent),
        "controllerName": CONTROLLER,
        "conditions": [
            _accepted(route, judged),
            *resolved_refs,
            *not_effective(route, shadowed=judged.message if judged.shadowed else ""),
        ],
    }


def _accepted(route: L4Route, judged: Verdict) -> Condition:
    reason, message, _ = judged
    return condition("Accepted", not reason, reason=reason or "Accepted", message=message, generation=route.generation)


def _failures(reader: Reader, route: L4Route) -> Iterator[tuple[str, str]]:
    failures = (unusable(reader, route, backend) for backend in route.backends)
    return ((reason, message) for reason, message in failures if reason)


def by_routes(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A route affects itself, and every route of its parents in its namespace: an older one takes their ports."""
    rows = [each for pair in changed for each in pair if each is not None]
    return {each.name for each in rows} | {
        each.name for parent in parents(rows) for each in reader.by(L4_ROUTES, "own_parent", parent)
    }


def by_grants(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """A grant affects the routes of the namespaces that it names."""
    return {each.name for each in granted(reader, changed)}


def by_observed(reader: Reader, changed: Pairs) -> set[ServiceName]:
    """An observed status of a route affects it: the two are compared."""
    return {each.name for pair in changed for each in pair if each is not None and each.kind in KINDS}


def _named(affected: Affected) -> Any:
    """Convert affected services to the routes that have one of them as parent or backend."""

    def batch(reader: Reader, changed: Pairs) -> set[ServiceName]:
        if not reader.count(L4_ROUTES):
            return set()
        services = {service for old, new in changed for service in affected(reader, old, new)}
        return {
            each.name
            for service in services
            for index in ("parent", "target")
            for each in reader.by(L4_ROUTES, index, service)
        }

    return batch
