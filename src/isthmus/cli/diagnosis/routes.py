"""The walk through the node's Envoy: routes that do not count, that it refused, or whose backends cannot be called."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.cli.diagnosis import hops
from isthmus.cli.diagnosis.facts import Facts
from isthmus.cli.diagnosis.hops import Hop
from isthmus.loadbalancer import envoy, shares
from isthmus.loadbalancer import l4_routes as of_l4
from isthmus.loadbalancer.explain import services_called
from isthmus.loadbalancer.references import unresolved
from isthmus.loadbalancer.route_conditions import unfollowed
from isthmus.loadbalancer.services import resolve
from isthmus.model import tables
from isthmus.model.balancing import REFUSAL
from isthmus.model.l4_routes import L4Route
from isthmus.model.names import ServiceName, derived, split
from isthmus.model.routes import RULE, BackendRef, Route
from isthmus.proxy import backend_tls
from isthmus.proxy.attachment import attached, callers_of, of_port
from isthmus.proxy.derived import listener_name
from isthmus.proxy.route_objects import NODE_MESSAGES
from isthmus.statedb import Reader


def routes(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Each route for the service counts, the node's Envoy took it, and every backend with a weight can be called."""
    rows = facts.agent.rows
    for called_service in services_called(rows, service) or [derived(service)]:
        attachment = attached(rows, called_service)
        for refusal in attachment.refused:
            yield _fault(facts, refusal.route, f"has no effect: {refusal.message}", "route-without-effect")
        for route in attachment.routes:
            refused = [*_refusals(rows, route, called_service)]
            dead_ends = [*_dead_ends(rows, route, split(service)[0])]
            yield from (_fault(facts, route, problem, "route-refused-by-node") for problem in refused)
            yield from (_fault(facts, route, problem, "route-to-nothing") for problem in dead_ends)
            if not envoy.answers(rows):
                text = "has no effect while the node's Envoy does not answer: calls go to the Service's own backends"
                yield Hop("route", route.owner, text, "follows")
                yield from hops.envoy(facts, service)
            elif unserved := _unserved(rows, route, called_service):
                text = f"the node's Envoy does not serve port {unserved} yet: calls go to the Service's own backends"
                yield Hop(
                    "route", route.owner, text, "fault", facts.start(f"{facts.cluster}/envoy"), "route-not-served"
                )
            elif not refused and not dead_ends:
                without = f"; {unfollowed(route)}" if route.unread else ""
                yield Hop("route", route.owner, f"every rule's backends can be called{without}")


def l4_routes(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Each TCPRoute and UDPRoute for the service counts, and none of its calls is refused."""
    rows = facts.agent.rows
    for called_service in services_called(rows, service) or [derived(service)]:
        for (key, _), verdict in of_l4.attached(rows, called_service).verdicts.items():
            route = rows.get(tables.L4_ROUTES, key)
            if route is None:
                continue
            refused = _refused_part(rows, route, called_service)
            if verdict.reason or verdict.shadowed:
                yield _fault(facts, route, f"has no effect: {verdict.message}", "route-without-effect")
            elif refused:
                reasons = "; ".join(_unusable(rows, route)) or "a backend cannot be used or has no endpoint"
                yield _fault(facts, route, f"{refused:.3g}% of its calls are refused: {reasons}", "route-to-nothing")
            else:
                yield Hop("route", route.owner, "every backend can be called")


def _unusable(rows: Reader, route: L4Route) -> Iterator[str]:
    """Reasons why backends cannot be used, as far as the facts show: they have Services of one namespace only."""
    for backend in route.backends:
        reason, message = of_l4.unusable(rows, route, backend)
        if (
            backend.weight
            and reason
            and (reason != "BackendNotFound" or backend.to.name.startswith(f"{route.namespace}/"))
        ):
            yield message


def _refused_part(rows: Reader, route: L4Route, service: ServiceName) -> float:
    """Largest percentage of a port's calls that a route refuses, in a family that the service has."""
    plans = [plan for plan in rows.by(tables.PLANS, "service", service) if plan.redirected_by == route.owner]
    return max((100 * shares.by_cluster(plan).get(REFUSAL.cluster, 0.0) for plan in plans), default=0.0)


def _fault(facts: Facts, route: Route | L4Route, text: str, code: str) -> Hop:
    namespace, name = split(route.name)
    cure = f"{facts.kubectl(facts.cluster, namespace)} describe {route.kind.lower()} {name}"
    return Hop("route", route.owner, text, "fault", cure, code)


def _unserved(rows: Reader, route: Route, service: ServiceName) -> str:
    """The ports of a Service that a route is for, that have a port of this node's Envoy and that it does not serve."""
    subject, callers = resolve(rows, service, which="all"), callers_of(route, service)
    ports = [each.port for each in subject.ports if of_port([route], service, each)] if subject is not None else []
    listening = {
        number
        for row in rows.by(tables.PROXY_LISTENERS, "service", service)
        for listener in row.listeners
        for number in listener.ports
        if row.callers == callers
    }
    names = {port: listener_name(service, port, callers) for port in ports if port in listening}
    return ", ".join(str(port) for port, name in names.items() if rows.get(tables.XDS_SERVED, name) is None)


def _refusals(rows: Reader, route: Route, service: ServiceName) -> Iterator[str]:
    """Reasons why a route has no effect on a node, or an older version of it has."""
    for node in rows.all(tables.ROUTE_REFUSALS):
        for each in node.routes:
            if (each.kind, each.name, each.service) == (route.kind, route.name, service):
                yield NODE_MESSAGES[each.reason].format(node=node.name, why=each.message)


def _dead_ends(rows: Reader, route: Route, namespace: str) -> Iterator[str]:
    """A sentence for each rule and backend whose part of the calls is answered with an error."""
    for number, rule in enumerate(route.rules, start=1):
        for backend in rule.backends:
            if backend.weight and (reason := _problem(rows, route, backend, namespace)):
                part = 100 * backend.weight / sum(each.weight for each in rule.backends)
                yield f"{part:.3g}% of the calls of{RULE.lstrip(',')}{number} are answered with {reason}"


def _problem(rows: Reader, route: Route, backend: BackendRef, namespace: str) -> str:
    """Status code that answers in place of a backend, and the reason; empty if the backend can be called.

    Only Services of one namespace are among the facts; of others it is known whether they have backends.
    """
    if backend.reason:
        return f"500: {backend.message}"
    target = backend.to
    reason, message = unresolved(rows, route, target)
    if reason and (reason != "BackendNotFound" or target.kind == "Cluster" or split(target.name)[0] == namespace):
        return f"500: {message}"
    if untrusted := backend_tls.problem(rows, target.service, target.port):
        return f"503: {untrusted}"
    plans = [plan for plan in rows.by(tables.ROUTE_PLANS, "service", target.service) if plan.key.port == target.port]
    has_backend = any(group.targets for plan in plans for group in plan.groups)
    return (
        ""
        if target.kind == "Cluster" or has_backend
        else f"503: {target.kind} {target.name}:{target.port} has no backend"
    )
