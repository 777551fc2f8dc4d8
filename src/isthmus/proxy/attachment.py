"""Which routes count for a Service, in which order, and which of their references hold. Pure.

A route of the Service's own namespace (its producer's) is for all callers; one of another namespace (a consumer's) is
for calls from its own namespace alone, and replaces the producer's there (Gateway API, GEP-1426). Of requests that
several rules match, one gets the request by the Gateway API's order: exact paths, then expressions, then prefixes,
longer ones first; then matches of a method, of more headers, of more query parameters; then the older route, its name,
and the position of the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from isthmus.loadbalancer.services import UNKNOWN_AGE, ResolvedService, resolve
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.routes import RULE, Match, ParentRef, PathType, Route, RouteRule, ServiceRef, ValueMatch
from isthmus.model.services import Port
from isthmus.model.tables import CLUSTERS, GRANTS, ROUTES
from isthmus.statedb import Reader

MAX_MATCHES: Final = 2_048
"""Matches of all routes of one Service and callers' namespace: the routes are taken from the oldest on until then."""
MAX_NAMESPACES: Final = 32
"""Consumer namespaces of one Service whose routes are taken."""

PATH_ORDER: Final[Mapping[PathType, int]] = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}


class Entry(NamedTuple):
    """One match of a rule of a route."""

    route: Route
    number: int
    """Of the rule in its route."""
    rule: RouteRule
    match: Match

    @property
    def name(self) -> str:
        """The rule, as people name it."""
        return f"{self.route.owner}{RULE}{self.number + 1}"


class Request(NamedTuple):
    """A request as routes look at it. Names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


def by_age(route: Route) -> tuple[str, str, str]:
    """The order of precedence between routes: age, name, kind."""
    return (route.created or UNKNOWN_AGE, route.name, route.kind)


def attached(reader: Reader, service: ServiceName) -> tuple[list[Route], list[tuple[Route, str]]]:
    """The routes that count for a Service, the oldest first, and of those for it that do not count, why."""
    subject = resolve(reader, service, which="all")
    taken: dict[str, int] = {}
    counting: list[Route] = []
    refused: list[tuple[Route, str]] = []
    for route in sorted(reader.by(ROUTES, "parent", service), key=by_age):
        callers = "" if route.namespace == _namespace(service) else route.namespace
        matches = sum(len(rule.matches) for rule in route.rules)
        if why := route.invalid or _unfit(route, service, subject):
            refused.append((route, why))
        elif callers not in taken and len(taken) > MAX_NAMESPACES:
            refused.append((route, f"routes of {MAX_NAMESPACES} other namespaces are taken already"))
        elif taken.get(callers, 0) + matches > MAX_MATCHES:
            refused.append((route, f"older routes have {taken.get(callers, 0)} of {MAX_MATCHES} matches"))
        else:
            taken[callers] = taken.get(callers, 0) + matches
            counting.append(route)
    return counting, refused


def _unfit(route: Route, service: ServiceName, subject: ResolvedService | None) -> str:
    """Why none of its references to a Service holds; empty: one does."""
    reasons = [unfit(parent, subject) for parent in route.parents if parent.service == service]
    return "" if "" in reasons else "; ".join(dict.fromkeys(reasons))


def unfit(parent: ParentRef, subject: ResolvedService | None) -> str:
    """Why a route's reference to a parent does not hold, as a sentence; empty: it does."""
    if subject is None:
        return "its parent does not exist"
    if any(parent.includes(port) for port in subject.ports):
        return ""
    which = [f" {parent.port}"] if parent.port else []
    which += [f" named '{parent.section}'"] if parent.section else []
    return f"its parent has no TCP port{''.join(which)}"


def of_port(routes: Iterable[Route], service: ServiceName, port: Port) -> list[Route]:
    """Those of the routes that mean a port of the Service."""
    return [route for route in routes if any(p.service == service and p.includes(port) for p in route.parents)]


def by_callers(routes: Iterable[Route], service: ServiceName) -> dict[str, list[Route]]:
    """The routes by the namespace whose calls they are for; '' is every other."""
    found: dict[str, list[Route]] = {}
    for route in routes:
        found.setdefault("" if route.namespace == _namespace(service) else route.namespace, []).append(route)
    return found


def entries(routes: Iterable[Route]) -> list[Entry]:
    """Every match of these routes, in the order in which they are tried."""
    found = [
        Entry(route, number, rule, match)
        for route in routes
        for number, rule in enumerate(route.rules)
        for match in rule.matches
    ]
    return sorted(found, key=_order)  # stable: matches of one rule stay in their order


def _order(entry: Entry) -> tuple[object, ...]:
    match = entry.match
    return (
        PATH_ORDER[match.path_type],
        -len(match.path),
        not match.method,
        -len(match.headers),
        -len(match.query),
        *by_age(entry.route),
        entry.number,
    )


PRECEDENCE: Final = (
    "its path is of a more specific type",
    "its path is longer",
    "it asks for a method",
    "it asks for more headers",
    "it asks for more query parameters",
    "its route is older",
    "its route's name comes first",
    "its route's kind comes first",
    "it comes first in the route",
)
"""What decides between two matches, in the order of ``_order``."""


def precedes(first: Entry, second: Entry) -> str:
    """Why an entry is tried before another one that is tried later."""
    pairs = zip(_order(first), _order(second), strict=True)
    return next((why for why, (one, other) in zip(PRECEDENCE, pairs, strict=True) if one != other), PRECEDENCE[-1])


def matching(tried: Sequence[Entry], request: Request) -> Iterator[Entry]:
    """The entries that match a request: the first one gets it. None does: it is answered with 404."""
    return (entry for entry in tried if _of_kind(entry.route, request) and matches(entry.match, request))


def _of_kind(route: Route, request: Request) -> bool:
    """A GRPCRoute is for gRPC alone, which Envoy recognizes by the content type; an HTTPRoute is for gRPC, too."""
    kind = request.headers.get("content-type", "")
    return route.kind == "HTTPRoute" or kind == "application/grpc" or kind.startswith("application/grpc+")


def matches(match: Match, request: Request) -> bool:
    """Whether a request is as a match wants it."""
    return (
        _path(match, request.path)
        and match.method in ("", request.method)
        and all(_value(each, request.headers) for each in match.headers)
        and all(_value(each, request.query) for each in match.query)
    )


def _path(match: Match, path: str) -> bool:
    if match.path_type == "Exact":
        return path == match.path
    if match.path_type == "RegularExpression":
        return re.fullmatch(match.path, path) is not None
    prefix = match.path.rstrip("/")
    return path == prefix or path.startswith(f"{prefix}/")


def _value(wanted: ValueMatch, found: Mapping[str, str]) -> bool:
    value = found.get(wanted.name)
    if value is None:
        return False
    return re.fullmatch(wanted.value, value) is not None if wanted.regex else value == wanted.value


def unresolved(reader: Reader, route: Route, to: ServiceRef) -> tuple[str, str]:
    """Why a reference of a route does not hold, as reason and message of the condition ResolvedRefs; empty: it does.

    A parent of the route needs no grant: calls of it are sent where they were sent without the route
    (MeshConsumerRoute of the Gateway API's conformance suite).
    """
    if to.kind == "Cluster":
        known = reader.get(CLUSTERS, ClusterName(to.name)) is not None
        return ("", "") if known else ("BackendNotFound", f"no cluster of the clusterset is called '{to.name}'")
    namespace = _namespace(to.name)
    if namespace != route.namespace and to.service not in {parent.service for parent in route.parents}:
        grants = reader.by(GRANTS, "namespace", namespace)
        if not any(grant.allows(route.kind, route.namespace, to) for grant in grants):
            return "RefNotPermitted", f"no ReferenceGrant in {namespace} lets it refer to {to.kind} {to.name}"
    subject = resolve(reader, to.service, which="all")
    if subject is None or not any(port.protocol == "TCP" and port.port == to.port for port in subject.ports):
        return "BackendNotFound", f"{to.kind} {to.name} with TCP port {to.port} does not exist"
    return "", ""


def _namespace(name: str) -> str:
    return name.partition("/")[0]
