"""Which route and rule get a request to a Service, why, and where it goes then: the code that makes Envoy's routes, run
for one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from isthmus.loadbalancer import shares
from isthmus.loadbalancer.services import resolve
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.routes import Match, Route, ServiceRef
from isthmus.model.services import Family, Port
from isthmus.model.tables import ROUTE_PLANS, XDS_SERVED
from isthmus.proxy.attachment import (
    Entry,
    Request,
    attached,
    by_callers,
    entries,
    matching,
    of_port,
    precedes,
    unresolved,
)
from isthmus.proxy.clusters import toward
from isthmus.proxy.routing import cluster_name
from isthmus.statedb import Reader

SHOWN: Final = 8
"""Other matches that are shown."""


class BadRequest(ValueError):  # noqa: N818 about the text, not about us
    """A text is no request; the message is the reason."""


class BackendPart(Struct, frozen=True):
    """A backend of the rule, and the part of the requests that it gets."""

    to: str
    """``Service demo/echo:80``"""
    weight: int
    part: float
    """0 to 1."""
    clusters: dict[Family, dict[ClusterName, float]]
    """Where that part goes, by family, as the planner has it."""
    problem: str
    """Why the part is answered with an error instead; empty: it is not."""


class OtherMatch(Struct, frozen=True):
    """A rule that matches as well, and why another one comes before it."""

    rule: str
    match: str
    reason: str


class RequestExplanation(Struct, frozen=True):
    """What becomes of a request to one port, from some callers."""

    service: ServiceName
    port: int
    callers: str
    """The namespace whose pods call; empty: every other."""
    served: bool
    """Whether this node's Envoy serves the port now; else calls go to the Service's own backends."""
    rule: str
    """``HTTPRoute demo/echo, rule 1``; empty: none matches, or none is for these callers."""
    match: str
    reason: str
    answer: str
    """What Envoy answers by itself; empty: the request goes to a backend."""
    backends: tuple[BackendPart, ...]
    mirrors: tuple[str, ...]
    others: tuple[OtherMatch, ...]


def parse(text: str, headers: Iterable[str] = ()) -> tuple[Request, int]:
    """The request that a text means, and the port that it names (0: none): ``GET /v2/x``, ``POST echo:8080/x?y=1``,
    ``GRPC pkg.Service/Method``. Headers as ``name: value``. BadRequest where it means none.
    """
    method, _, target = text.strip().partition(" ")
    target = target.strip()
    if not method.isalpha() or not target or any(each.isspace() for each in target):
        raise BadRequest(
            f"'{text[:64]}' is no request: want 'GET /path', 'POST host/path' or 'GRPC pkg.Service/Method'"
        )
    found = {"content-type": "application/grpc"} if method.upper() == "GRPC" else {}
    if found:
        if target.strip("/").count("/") != 1:
            raise BadRequest(f"'{target[:64]}' is no method of gRPC: want pkg.Service/Method")
        method, target = "POST", f"/{target.strip('/')}"
    for each in headers:
        name, colon, value = each.partition(":")
        if not name.strip() or not colon:
            raise BadRequest(f"'{each[:64]}' is no header: want 'name: value'")
        key = name.strip().lower()
        found[key] = f"{found[key]},{value.strip()}" if key in found and key != "content-type" else value.strip()
    try:
        url = urlsplit(target if "://" in target else f"http://{target}")  # without a host: http:///path
        port = url.port or 0
    except ValueError as why:
        raise BadRequest(f"'{target[:64]}': {why}") from None
    if url.netloc:
        found.setdefault("host", url.netloc)
    query: dict[str, str] = {}
    for part in filter(None, url.query.split("&")):
        name, _, value = part.partition("=")
        query.setdefault(name, value)
    return Request(method.upper(), url.path or "/", found, query), port


def explain(reader: Reader, service: ServiceName, request: Request, *, port: int = 0) -> list[RequestExplanation]:
    """What becomes of a request, for each TCP port with a route (or that one alone) and each namespace of callers that
    has routes of its own.
    """
    subject = resolve(reader, service, which="all")
    routes, _ = attached(reader, service)
    found = []
    for each in subject.ports if subject is not None else ():
        on_port = of_port(routes, service, each)
        if on_port and port in (0, each.port):
            callers: dict[str, list[Route]] = {"": [], **by_callers(on_port, service)}
            found += [_explained(reader, service, each, name, own, request) for name, own in callers.items()]
    return found


def refused(reader: Reader, service: ServiceName) -> list[str]:
    """A sentence for each route of a Service that does not count."""
    return [f"{route.owner} has no effect: {why}" for route, why in attached(reader, service)[1]]


def _explained(
    reader: Reader, service: ServiceName, port: Port, callers: str, routes: Sequence[Route], request: Request
) -> RequestExplanation:
    found = list(islice(matching(entries(routes), request), SHOWN + 1))
    first = found[0] if found else None
    others = tuple(OtherMatch(each.name, spelled(each.match), precedes(found[0], each)) for each in found[1:])
    backends = tuple(_parts(reader, first, of=(service, port.port))) if first is not None else ()
    return RequestExplanation(
        service=service,
        port=port.port,
        callers=callers,
        served=reader.get(XDS_SERVED, cluster_name(service, port.port)) is not None,
        rule=first.name if first is not None else "",
        match=spelled(first.match) if first is not None else "",
        reason=(others[0].reason if others else "no other matches") if first is not None else "",
        answer=_answer(first, backends) if routes else "",
        backends=backends,
        mirrors=tuple(_mirrors(first)) if first is not None else (),
        others=others,
    )


def _answer(entry: Entry | None, backends: Sequence[BackendPart]) -> str:
    if entry is None:
        return "404: no rule matches"
    if (to := entry.rule.redirect) is not None:
        return f"{to.status}: a redirect"
    return "" if any(each.weight for each in backends) else "500: the rule has no backend with a weight"


def _parts(reader: Reader, entry: Entry, *, of: tuple[ServiceName, int]) -> Iterator[BackendPart]:
    total = sum(each.weight for each in entry.rule.backends)
    for each in entry.rule.backends:
        service, port = of if each.to.kind == "Cluster" else (each.to.service, each.to.port)
        plans = [plan for plan in reader.by(ROUTE_PLANS, "service", service) if plan.key.port == port]
        if each.to.kind == "Cluster":
            plans = [toward(plan, each.to.name) for plan in plans]
        clusters = {plan.key.family: parts for plan in plans if (parts := shares.by_cluster(plan))}
        why = each.message if each.reason else unresolved(reader, entry.route, each.to)[1]
        problem = f"500: {why}" if why else "" if clusters else "503: it has no backend"
        part = each.weight / total if total else 0.0
        yield BackendPart(_named(each.to), each.weight, part, {} if why else clusters, problem)


def _mirrors(entry: Entry) -> Iterator[str]:
    for each in entry.rule.mirrors:
        yield f"a copy of {100 * each.numerator / each.denominator:.3g}% goes to {_named(each.to)}"


def _named(to: ServiceRef) -> str:
    return f"{to.kind} {to.name}:{to.port}" if to.port else f"{to.kind} {to.name}"


def spelled(match: Match) -> str:
    """What a match asks for: ``PathPrefix /v2, method GET, header x-who=me``; ``~`` before an expression."""
    asked = [f"{match.path_type} {match.path}"] + ([f"method {match.method}"] if match.method else [])
    for what, values in (("header", match.headers), ("query", match.query)):
        asked += [f"{what} {each.name}{'~' if each.regex else '='}{each.value}" for each in values]
    return ", ".join(asked)
