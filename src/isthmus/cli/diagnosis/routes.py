"""The walk through the node's Envoy: routes that do not count, that it refused, or whose backends cannot be called."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.cli.diagnosis.facts import Facts
from isthmus.cli.diagnosis.hops import Hop
from isthmus.loadbalancer.explain import called
from isthmus.loadbalancer.services import resolve
from isthmus.model import tables
from isthmus.model.names import ServiceName, derived, split
from isthmus.model.routes import RULE, BackendRef, Route
from isthmus.proxy.attachment import attached, of_port, unresolved
from isthmus.proxy.routing import cluster_name
from isthmus.statedb import Reader


def routes(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Each route for the service counts, the node's Envoy took it, and every backend with a weight can be called."""
    rows = facts.agent.rows
    for each in called(rows, service) or [derived(service)]:
        counting, without_effect = attached(rows, each)
        for route, why in without_effect:
            yield _fault(facts, route, f"has no effect: {why}")
        for route in counting:
            problems = [*_refusals(rows, route, each), *_dead_ends(rows, route, split(service)[0])]
            yield from (_fault(facts, route, problem) for problem in problems)
            if unserved := _unserved(rows, route, each):
                text = f"the node's Envoy does not serve port {unserved} yet: calls go to the Service's own backends"
                yield Hop("route", route.owner, text, "fault", facts.start(f"{facts.cluster}/envoy"))
            elif not problems:
                yield Hop("route", route.owner, "every rule's backends can be called")


def _fault(facts: Facts, route: Route, text: str) -> Hop:
    namespace, name = split(route.name)
    cure = f"{facts.kubectl(facts.cluster, namespace)} describe {route.kind.lower()} {name}"
    return Hop("route", route.owner, text, "fault", cure)


def _unserved(rows: Reader, route: Route, service: ServiceName) -> str:
    """The ports of a Service that a route is for and that this node's Envoy does not serve."""
    subject = resolve(rows, service, which="all")
    ports = [each for each in subject.ports if of_port([route], service, each)] if subject is not None else []
    missing = [each for each in ports if rows.get(tables.XDS_SERVED, cluster_name(service, each.port)) is None]
    return ", ".join(str(each.port) for each in missing)


def _refusals(rows: Reader, route: Route, service: ServiceName) -> Iterator[str]:
    """What this node's Envoy refused of a route."""
    for node in rows.all(tables.ROUTE_REFUSALS):
        for each in node.routes:
            if (each.kind, each.name, each.service) == (route.kind, route.name, service):
                yield f"the Envoy of {node.name} refused it, and has what it accepted before: {each.message}"


def _dead_ends(rows: Reader, route: Route, namespace: str) -> Iterator[str]:
    """A sentence for each rule and backend whose part of the calls is answered with an error."""
    for number, rule in enumerate(route.rules, start=1):
        for backend in rule.backends:
            if backend.weight and (why := _problem(rows, route, backend, namespace)):
                part = 100 * backend.weight / sum(each.weight for each in rule.backends)
                yield f"{part:.3g}% of the calls of{RULE.lstrip(',')}{number} are answered with {why}"


def _problem(rows: Reader, route: Route, backend: BackendRef, namespace: str) -> str:
    """What answers in place of a backend, and why; empty where the backend can be called.

    Only Services of one namespace are among the facts; of others it is known whether they have backends.
    """
    if backend.reason:
        return f"500: {backend.message}"
    to = backend.to
    reason, message = unresolved(rows, route, to)
    if reason and (reason != "BackendNotFound" or to.kind == "Cluster" or split(to.name)[0] == namespace):
        return f"500: {message}"
    plans = [plan for plan in rows.by(tables.ROUTE_PLANS, "service", to.service) if plan.key.port == to.port]
    has_backend = any(group.targets for plan in plans for group in plan.groups)
    return "" if to.kind == "Cluster" or has_backend else f"503: {to.kind} {to.name}:{to.port} has no backend"
