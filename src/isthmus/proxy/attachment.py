"""Attaches routes to Services, and orders their matches. Pure.

A route of the Service's own namespace (a producer route) applies to all callers. One of another namespace (a consumer
route) applies to callers of its own namespace and replaces the producer routes there (Gateway API, GEP-1426). Only
ports that are declared as HTTP have routes. If several rules match a request, the Gateway API's order decides: exact
paths, then expressions, then prefixes, longer ones first; then matches of a method, of more headers, of more query
parameters; then the older route, its name, and the position of the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from isthmus import expressions
from isthmus.loadbalancer.services import UNKNOWN_AGE, ResolvedService, resolve
from isthmus.model.names import ServiceName
from isthmus.model.routes import RULE, Match, ParentRef, PathType, Route, RouteRule, ValueMatch
from isthmus.model.services import Port
from isthmus.model.tables import ROUTES
from isthmus.proxy.protocols import http_version
from isthmus.statedb import Reader

MAX_MATCHES: Final = 2_048
"""Matches of all routes of one Service and callers' namespace. Older routes are accepted first."""
MAX_SIZE: Final = 2 * 1024 * 1024
"""Bytes of Envoy's configuration that these routes may need for each port."""
MAX_PORTS: Final = 256
"""Ports of one Service that can have routes: the first ones declared as HTTP."""
MAX_NAMESPACES: Final = 32
"""Consumer namespaces whose routes of one Service are accepted."""
API_SERVER: Final = ServiceName("default/kubernetes")
SYSTEM: Final = "kube-system"
SHOWN_PORTS: Final = 8
"""Number of ports that a message lists."""
UNDECLARED: Final = (
    "passed on unchanged, for want of a declaration as HTTP: name the Service's port http, http2 or grpc (or http-…), "
    "or set its appProtocol"
)

PATH_ORDER: Final[Mapping[PathType, int]] = {"Exact": 0, "RegularExpression": 1, "PathPrefix": 2}


class Entry(NamedTuple):
    """One match of a rule of a route."""

    route: Route
    number: int
    """Index of the rule in its route."""
    rule: RouteRule
    match: Match

    @property
    def name(self) -> str:
        """Display name of the rule, numbered from 1."""
        return f"{self.route.owner}{RULE}{self.number + 1}"


class Request(NamedTuple):
    """The parts of a request that routes match. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


def by_age(route: Route) -> tuple[str, str, str]:
    """Sort key of precedence between routes: age, name, kind."""
    return (route.created or UNKNOWN_AGE, route.name, route.kind)


class ParentPorts:
    """TCP ports of a Service, indexed for thousands of references to thousands of ports."""

    def __init__(self, subject: ResolvedService | None) -> None:
        self.parent_exists = subject is not None
        self.tcp = [port for port in subject.ports if port.protocol == "TCP"] if subject is not None else []
        self.http = [port for port in self.tcp if http_version(port)][:MAX_PORTS]
        """Ports that can have routes."""
        self._by_number = {port.port: port for port in self.tcp}
        self._by_name = {port.name: port for port in self.tcp if port.name}

    def selected(self, parent: ParentRef) -> Sequence[Port]:
        """Return the ports that a reference selects."""
        if not parent.port and not parent.section:
            return self.tcp
        port = self._by_number.get(parent.port) if parent.port else self._by_name.get(parent.section)
        return [port] if port is not None and parent.includes(port) else []


class Refusal(NamedTuple):
    """A route that has no effect for one of its parents."""

    route: Route
    reason: str
    """Reason of the condition Accepted."""
    message: str


class Attached(NamedTuple):
    """The routes that have a Service as parent: accepted ones, the oldest first, and refused ones."""

    routes: list[Route]
    refused: list[Refusal]


def attached(reader: Reader, service: ServiceName) -> Attached:
    """Judge the routes that have a Service as parent."""
    ports = ParentPorts(resolve(reader, service, which="all"))
    accepted: dict[str, tuple[int, int]] = {}
    judged = Attached([], [])
    for route in sorted(reader.by(ROUTES, "parent", service), key=by_age):
        callers = callers_of(route, service)
        reason, message = unfit(route, service, ports)
        if not reason:
            reason, message = _excess(route, callers, accepted)
        if reason:
            judged.refused.append(Refusal(route, reason, message))
        else:
            matches, size = accepted.get(callers, (0, 0))
            accepted[callers] = matches + route.matches, size + route.size
            judged.routes.append(route)
    return judged


def _excess(route: Route, callers: str, accepted: Mapping[str, tuple[int, int]]) -> tuple[str, str]:
    """Reason and message if a route would exceed a limit beside older ones; both empty if not."""
    matches, size = accepted.get(callers, (0, 0))
    if callers and callers not in accepted and sum(map(bool, accepted)) >= MAX_NAMESPACES:
        return "TooManyRoutes", f"routes of {MAX_NAMESPACES} other namespaces are taken already"
    if matches + route.matches > MAX_MATCHES:
        return "TooManyRoutes", f"older routes have {matches} of {MAX_MATCHES} matches"
    if size + route.size > MAX_SIZE:
        return "TooManyRoutes", f"older routes have {size} of {MAX_SIZE} bytes of configuration"
    return "", ""


def callers_of(route: Route, service: ServiceName) -> str:
    """Namespace of the callers that a route applies to; empty for all callers without routes of their own."""
    return "" if route.namespace == _namespace(service) else route.namespace


def unfit(route: Route, service: ServiceName, ports: ParentPorts) -> tuple[str, str]:
    """Reason and message if every reference of a route to a Service is invalid; both empty if one is valid."""
    if route.invalid:
        return "UnsupportedValue", route.invalid
    reasons = [unfit_parent(route, parent, ports) for parent in route.parents if parent.service == service]
    if ("", "") in reasons:
        return "", ""
    return reasons[0][0], "; ".join(dict.fromkeys(message for _, message in reasons))


def unfit_parent(route: Route, parent: ParentRef, ports: ParentPorts) -> tuple[str, str]:
    """Reason and message if a route's reference to a parent is invalid; both empty if it is valid."""
    if not ports.parent_exists:
        return "NoMatchingParent", "its parent does not exist"
    if callers_of(route, parent.service) and is_protected(parent.service):
        return (
            "NotAllowedByParent",
            "the API server's Service and those of kube-system take routes of their own namespace",
        )
    selected = ports.selected(parent)
    if not selected:
        which = [f" {parent.port}"] if parent.port else []
        which += [f" named '{parent.section}'"] if parent.section else []
        return "NoMatchingParent", f"its parent has no TCP port{''.join(which)}"
    if not any(map(http_version, selected)):
        return "UnsupportedProtocol", f"{_numbered(selected)} {UNDECLARED}"
    if not any(port in ports.http for port in selected):
        return "TooManyPorts", f"its parent has {MAX_PORTS} ports of HTTP before {_numbered(selected)}"
    return "", ""


def passed_unchanged(parent: ParentRef, ports: ParentPorts) -> str:
    """Sentence about selected ports of a parent to which routes do not apply; empty if there are none."""
    selected = ports.selected(parent)
    plain = [port for port in selected if http_version(port) is None]
    beyond = (
        [port for port in selected if http_version(port) and port not in ports.http]
        if len(selected) > MAX_PORTS
        else []
    )
    sentences = [f"{_numbered(plain)} {UNDECLARED}"] if plain else []
    sentences += [f"{_numbered(beyond)} passed on unchanged: {MAX_PORTS} ports of HTTP come before"] if beyond else []
    return "; ".join(sentences)


def _numbered(ports: Sequence[Port]) -> str:
    numbers = ", ".join(str(port.port) for port in ports[:SHOWN_PORTS])
    return f"port{'s' if len(ports) > 1 else ''} {numbers}" + (" and others" if len(ports) > SHOWN_PORTS else "")


def is_protected(service: ServiceName) -> bool:
    """True for Services on which every namespace depends: consumer routes do not apply to them."""
    return service == API_SERVER or _namespace(service) == SYSTEM


def of_port(routes: Iterable[Route], service: ServiceName, port: Port) -> list[Route]:
    """Return the routes that apply to a port of the Service; none if it does not speak HTTP."""
    if http_version(port) is None:
        return []
    return [route for route in routes if any(p.service == service and p.includes(port) for p in route.parents)]


def by_callers(routes: Iterable[Route], service: ServiceName) -> dict[str, list[Route]]:
    """Group routes by the namespace of their callers; ``""`` for all other callers."""
    grouped: dict[str, list[Route]] = {}
    for route in routes:
        grouped.setdefault(callers_of(route, service), []).append(route)
    return grouped


def entries(routes: Iterable[Route]) -> list[Entry]:
    """Return every match of these routes, in the order in which Envoy tries them."""
    unsorted = [
        Entry(route, number, rule, match)
        for route in routes
        for number, rule in enumerate(route.rules)
        for match in rule.matches
    ]
    return sorted(unsorted, key=match_order)  # stable: matches of one rule stay in their order


def match_order(entry: Entry) -> tuple[Any, ...]:
    """Sort key of a match among those of all routes of a port: the smallest is tried first."""
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
"""Phrases for each element of ``match_order``."""


def precedes(first: Entry, second: Entry) -> str:
    """Return the reason why an entry is tried before a later one."""
    pairs = zip(match_order(first), match_order(second), strict=True)
    return next(
        (reason for reason, (earlier, later) in zip(PRECEDENCE, pairs, strict=True) if earlier != later), PRECEDENCE[-1]
    )


def matching(tried: Sequence[Entry], request: Request) -> Iterator[Entry]:
    """Yield the entries that match a request. The first one gets it; without one, Envoy answers 404."""
    return (entry for entry in tried if _of_kind(entry.route, request) and matches(entry.match, request))


def _of_kind(route: Route, request: Request) -> bool:
    """True if the route's kind applies: a GRPCRoute only to gRPC, recognized by content type, an HTTPRoute to both."""
    kind = request.headers.get("content-type", "")
    return route.kind == "HTTPRoute" or kind == "application/grpc" or kind.startswith("application/grpc+")


def matches(match: Match, request: Request) -> bool:
    """True if a request fulfils a match."""
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
        return expressions.matches(match.path, path)
    prefix = match.path.rstrip("/")
    return path == prefix or path.startswith(f"{prefix}/")


def _value(condition: ValueMatch, values: Mapping[str, str]) -> bool:
    value = values.get(condition.name)
    if value is None:
        return False
    return expressions.matches(condition.value, value) if condition.regex else value == condition.value


def _namespace(name: str) -> str:
    return name.partition("/")[0]
