"""Explains which rule of which route gets a request to a Service, and its backends. Runs the code that makes Envoy's
routes for one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from isthmus.loadbalancer import envoy, shares
from isthmus.loadbalancer.references import unresolved
from isthmus.loadbalancer.services import resolve
from isthmus.model.balancing import PlanKey
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.routes import Match, Route, ServiceRef
from isthmus.model.services import Port
from isthmus.model.tables import PROXY_LISTENERS, ROUTE_PLANS
from isthmus.proxy import backend_tls
from isthmus.proxy.attachment import (
    Entry,
    Request,
    attached,
    by_callers,
    entries,
    matching,
    of_port,
    precedes,
)
from isthmus.proxy.clusters import toward
from isthmus.proxy.derived import listener_name
from isthmus.statedb import Reader

PREFLIGHT: Final = {"origin", "access-control-request-method"}
"""Headers of a browser's preflight (Fetch standard)."""
SHOWN: Final = 8
"""Number of other matches shown."""


class BadRequest(ValueError):  # noqa: N818 about the text, not about us
    """A text cannot be parsed as a request; the message is the reason."""


class BackendPart(Struct, frozen=True):
    """A backend of the rule with its part of the requests."""

    to: str
    """``Service demo/echo:80``"""
    weight: int
    part: float
    """0 to 1."""
    clusters: dict[ClusterName, float]
    """Shares of clusters, from the backend's plan."""
    problem: str
    """Error with which Envoy answers this part; empty if it reaches the backend."""


class OtherMatch(Struct, frozen=True):
    """Another rule that matches, and the reason why the chosen one precedes it."""

    rule: str
    match: str
    reason: str


class RequestExplanation(Struct, frozen=True):
    """The handling of a request to one port from some callers."""

    service: ServiceName
    port: int
    callers: str
    """Namespace of the calling pods; empty for every other namespace."""
    served: bool
    """This node's Envoy serves the port. If not, calls bypass it to the Service's own backends."""
    rule: str
    """``HTTPRoute demo/echo, rule 1``; empty if none matches, or none applies to these callers."""
    match: str
    reason: str
    answer: str
    """Envoy's own answer; empty if it forwards the request to a backend."""
    backends: tuple[BackendPart, ...]
    mirrors: tuple[str, ...]
    others: tuple[OtherMatch, ...]


def parse(text: str, headers: Iterable[str] = ()) -> tuple[Request, int]:
    """Parse ``GET /v2/x``, ``POST echo:8080/x?y=1`` or ``GRPC pkg.Service/Method``, with headers as ``name: value``.

    Returns the request and its port, 0 if it names none. Raises BadRequest.
    """
    method, _, target = text.strip().partition(" ")
    target = target.strip()
    if not method.isalpha() or not target or any(header.isspace() for header in target):
        raise BadRequest(
            f"'{text[:64]}' is no request: want 'GET /path', 'POST host/path' or 'GRPC pkg.Service/Method'"
        )
    fields = {"content-type": "application/grpc"} if method.upper() == "GRPC" else {}
    if fields:
        if target.strip("/").count("/") != 1:
            raise BadRequest(f"'{target[:64]}' is no method of gRPC: want pkg.Service/Method")
        method, target = "POST", f"/{target.strip('/')}"
    for header in headers:
        name, colon, value = header.partition(":")
        if not name.strip() or not colon:
            raise BadRequest(f"'{header[:64]}' is no header: want 'name: value'")
        key = name.strip().lower()
        fields[key] = f"{fields[key]},{value.strip()}" if key in fields and key != "content-type" else value.strip()
    try:
        url = urlsplit(target if "://" in target else f"http://{target}")  # without a host: http:///path
        port = url.port or 0
    except ValueError as error:
        raise BadRequest(f"'{target[:64]}': {error}") from None
    if url.netloc:
        fields.setdefault("host", url.netloc)
    query: dict[str, str] = {}
    for part in filter(None, url.query.split("&")):
        name, _, value = part.partition("=")
        query.setdefault(name, value)
    return Request(method.upper(), url.path or "/", fields, query), port


def explain(reader: Reader, service: ServiceName, request: Request, *, port: int = 0) -> list[RequestExplanation]:
    """Explain a request for each TCP port with a route and each namespace of callers with its own routes.

    ``port``: explain this port only; 0 for every port.
    """
    subject = resolve(reader, service, which="all")
    routes = attached(reader, service).routes
    explanations = []
    for service_port in subject.ports if subject is not None else ():
        on_port = of_port(routes, service, service_port)
        if on_port and port in (0, service_port.port):
            callers: dict[str, list[Route]] = {"": [], **by_callers(on_port, service)}
            explanations += [
                _explained(reader, service, service_port, name, own, request) for name, own in callers.items()
            ]
    return explanations


def refused(reader: Reader, service: ServiceName) -> list[str]:
    """Return a sentence for each refused route of a Service, and for ports without a listener of the node's Envoy."""
    sentences = [
        f"{left_out.route.owner} has no effect: {left_out.message}" for left_out in attached(reader, service).refused
    ]
    for row in reader.by(PROXY_LISTENERS, "service", service):
        for left_out in row.left_out:
            ports = ", ".join(map(str, left_out.ports[:SHOWN])) + (", …" if len(left_out.ports) > SHOWN else "")
            sentences.append(f"{row.owner} has no effect for port {ports} on this node: {left_out.why}")
    return sentences


def _explained(
    reader: Reader, service: ServiceName, port: Port, callers: str, routes: Sequence[Route], request: Request
) -> RequestExplanation:
    matched = list(islice(matching(entries(routes), request), SHOWN + 1))
    first = matched[0] if matched else None
    other_matches = tuple(
        OtherMatch(each.name, spelled(each.match), precedes(matched[0], each)) for each in matched[1:]
    )
    backends = tuple(_parts(reader, first, service_port=(service, port.port))) if first is not None else ()
    return RequestExplanation(
        service=service,
        port=port.port,
        callers=callers,
        served=envoy.serves(reader, listener_name(service, port.port, callers)),
        rule=first.name if first is not None else "",
        match=spelled(first.match) if first is not None else "",
        reason=(other_matches[0].reason if other_matches else "no other matches") if first is not None else "",
        answer=_answer(first, request, backends) if routes else "",
        backends=backends,
        mirrors=tuple(_mirrors(first)) if first is not None else (),
        others=other_matches,
    )


def _answer(entry: Entry | None, request: Request, backends: Sequence[BackendPart]) -> str:
    if entry is None:
        return "404: no rule matches"
    if entry.rule.cors is not None and request.method == "OPTIONS" and request.headers.keys() >= PREFLIGHT:
        return "200: a preflight of CORS"
    if (redirect := entry.rule.redirect) is not None:
        return f"{redirect.status}: a redirect"
    return "" if any(each.weight for each in backends) else "500: the rule has no backend with a weight"


def _parts(reader: Reader, entry: Entry, *, service_port: tuple[ServiceName, int]) -> Iterator[BackendPart]:
    total = sum(backend.weight for backend in entry.rule.backends)
    for backend in entry.rule.backends:
        service, port = service_port if backend.to.kind == "Cluster" else (backend.to.service, backend.to.port)
        plan = reader.get(ROUTE_PLANS, PlanKey(service, port, "TCP", "any"))
        if plan is not None and backend.to.kind == "Cluster":
            plan = toward(plan, backend.to.name)
        clusters = shares.by_cluster(plan) if plan is not None else {}
        error = backend.message if backend.reason else unresolved(reader, entry.route, backend.to)[1]
        problem = f"500: {error}" if error else _unreachable(reader, service, port, has_backend=bool(clusters))
        part = backend.weight / total if total else 0.0
        yield BackendPart(_named(backend.to), backend.weight, part, {} if problem else clusters, problem)


def _unreachable(reader: Reader, service: ServiceName, port: int, *, has_backend: bool) -> str:
    """Error of a part that Envoy cannot forward; empty if it can."""
    if untrusted := backend_tls.problem(reader, service, port):
        return f"503: {untrusted}"
    return "" if has_backend else "503: it has no backend"


def _mirrors(entry: Entry) -> Iterator[str]:
    for mirror in entry.rule.mirrors:
        yield f"a copy of {100 * mirror.numerator / mirror.denominator:.3g}% goes to {_named(mirror.to)}"


def _named(target: ServiceRef) -> str:
    return f"{target.kind} {target.name}:{target.port}" if target.port else f"{target.kind} {target.name}"


def spelled(match: Match) -> str:
    """Format a match: ``PathPrefix /v2, method GET, header x-who=me``, with ``~`` before an expression."""
    asked = [f"{match.path_type} {match.path}"] + ([f"method {match.method}"] if match.method else [])
    for what, values in (("header", match.headers), ("query", match.query)):
        asked += [f"{what} {each.name}{'~' if each.regex else '='}{each.value}" for each in values]
    return ", ".join(asked)
