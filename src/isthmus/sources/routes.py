"""HTTPRoute, GRPCRoute and ReferenceGrant objects as rows.

The bounds are those of the Gateway API's definitions, kept here as well for servers that do not enforce one. What is
wrong with the whole object becomes its field ``invalid``; a backend that cannot be used is marked by itself, as the
Gateway API has it (conditions Accepted and ResolvedRefs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Final, TypeVar, cast, get_args

from msgspec.structs import replace

from isthmus.kube.objects import gateway as wire
from isthmus.kube.objects import refusals as refused
from isthmus.model.names import ServiceName, service_name
from isthmus.model.routes import (
    MAX_REFUSAL,
    MAX_REFUSALS,
    ROUTE_KINDS,
    BackendRef,
    Grant,
    HeaderEdit,
    Match,
    Mirror,
    NodeRefusals,
    ParentKind,
    ParentRef,
    PathEdit,
    PathType,
    Redirection,
    Retries,
    Rewrite,
    Route,
    RouteKind,
    RouteRefusal,
    RouteRule,
    ServiceRef,
    ValueMatch,
)
from isthmus.sources import expressions
from isthmus.sources.normal import name_of

T = TypeVar("T")

MAX_RULES: Final = 16
MAX_MATCHES: Final = 128
"""Matches of all rules of a route."""
MAX_LIST: Final = 16
"""Backends, filters, headers, query parameters and edits of one list."""
MAX_TEXT: Final = 1024
MAX_WEIGHT: Final = 1_000_000
MAX_ATTEMPTS: Final = 16

KINDS: Final[dict[tuple[str, str], ParentKind]] = {
    ("", "Service"): "Service",
    ("multicluster.x-k8s.io", "ServiceImport"): "ServiceImport",
}
CLUSTER: Final = ("isthmus.io", "Cluster")
"""A cluster of the clusterset as a backend: what the parent has there."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]{1,256}\Z")
VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*\Z")
HOST: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
PATH: Final = re.compile(r"/[^\x00-\x20?#\x7f]*\Z")
GRPC_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
DURATION: Final = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,5})s)?(?:(\d{1,5})ms)?\Z")
"""GEP-2257."""


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A route cannot be followed; the message names the field."""


def http_route(route: wire.HttpRoute) -> Route:
    """The row of an HTTPRoute."""
    return _route("HTTPRoute", route, _http_match)


def grpc_route(route: wire.GrpcRoute) -> Route:
    """The row of a GRPCRoute."""
    return _route("GRPCRoute", route, _grpc_match)


def _route(kind: RouteKind, route: wire.HttpRoute | wire.GrpcRoute, match: Callable[[Any, str], Match]) -> Route:
    meta = route.metadata
    row = Route(
        kind=kind,
        name=name_of(meta),
        parents=_parents(route.spec.parent_refs, meta.namespace),
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
    try:
        numbered: Iterator[tuple[str, wire.HttpRule | wire.GrpcRule]] = _numbered(route.spec.rules, "spec.rules")
        rules = [(rule, _matches(rule.matches, field, match)) for field, rule in numbered]
        return replace(row, rules=_rules(rules, meta.namespace))
    except Invalid as why:
        return replace(row, invalid=str(why))


def grant(found: wire.ReferenceGrant) -> Grant:
    """The row of a ReferenceGrant: what it grants to routes, of Services and ServiceImports."""
    sources = {(each.kind, each.namespace) for each in found.spec.from_ or () if each.group == wire.GROUP}
    targets = {(KINDS[each.group, each.kind], each.name or "") for each in found.spec.to or () if _known(each)}
    return Grant(name=name_of(found.metadata), sources=frozenset(sources), targets=frozenset(targets))


def refusals(found: refused.RefusedRoutes) -> NodeRefusals:
    """The row of a node's report. What names no kind of routes is left out."""
    routes = tuple(
        RouteRefusal(
            kind, service_name(each.namespace, each.name), ServiceName(each.service), each.message[:MAX_REFUSAL]
        )
        for each in (found.routes or ())[:MAX_REFUSALS]
        for kind in ROUTE_KINDS
        if kind == each.kind
    )
    return NodeRefusals(name=found.metadata.name, routes=routes)


def _known(to: wire.GrantTo) -> bool:
    return (to.group, to.kind) in KINDS


def _parents(found: list[wire.ParentRef] | None, namespace: str) -> tuple[ParentRef, ...]:
    """The parents that are Services or ServiceImports; gateways are others' business."""
    refs = []
    for each in (found or ())[: MAX_LIST * 2]:
        kind = KINDS.get((wire.GROUP if each.group is None else each.group, each.kind or "Gateway"))
        if kind is not None and each.name:
            name = service_name(each.namespace or namespace, each.name)
            refs.append(ParentRef(kind, name, each.port or 0, each.section_name or "", each.namespace or ""))
    return tuple(dict.fromkeys(refs))


def _numbered(found: Sequence[T] | None, field: str) -> Iterator[tuple[str, T]]:
    if len(found or ()) > MAX_RULES:
        raise Invalid(f"{field}: {len(found or ())} rules, more than {MAX_RULES}")
    for number, each in enumerate(found or ()):
        yield f"{field}[{number}]", each


def _matches(found: Sequence[T] | None, field: str, match: Callable[[T, str], Match]) -> tuple[Match, ...]:
    if found is not None and len(found) > MAX_MATCHES:
        raise Invalid(f"{field}.matches: {len(found)} matches, more than {MAX_MATCHES}")
    return tuple(match(each, f"{field}.matches[{n}]") for n, each in enumerate(found or ())) or (Match(),)


def _rules(found: Sequence[tuple[wire.Rule, tuple[Match, ...]]], namespace: str) -> tuple[RouteRule, ...]:
    if (total := sum(len(matches) for _, matches in found)) > MAX_MATCHES:
        raise Invalid(f"spec.rules: {total} matches, more than {MAX_MATCHES}")
    return tuple(_rule(rule, matches, f"spec.rules[{n}]", namespace) for n, (rule, matches) in enumerate(found))


def _rule(rule: wire.Rule, matches: tuple[Match, ...], field: str, namespace: str) -> RouteRule:
    _bounded(rule.backend_refs, f"{field}.backendRefs")
    backends = tuple(
        _backend(each, f"{field}.backendRefs[{n}]", namespace) for n, each in enumerate(rule.backend_refs or ())
    )
    row = RouteRule(matches=matches, backends=backends)
    _bounded(rule.filters, f"{field}.filters")
    for number, each in enumerate(rule.filters or ()):
        row = _filtered(row, each, f"{field}.filters[{number}]", namespace)
    if row.redirect is not None and (row.backends or row.rewrite is not None):
        raise Invalid(f"{field}.filters: RequestRedirect excludes backends and URLRewrite")
    edits = [each.path for each in (row.redirect, row.rewrite) if each is not None and each.path is not None]
    if any(each.type == "ReplacePrefixMatch" for each in edits) and any(m.path_type != "PathPrefix" for m in matches):
        raise Invalid(f"{field}.filters: ReplacePrefixMatch wants matches of type PathPrefix")
    return replace(row, **_patience(rule, field))


def _patience(rule: wire.Rule, field: str) -> dict[str, object]:
    """Timeouts and retries."""
    found: dict[str, object] = {}
    if rule.timeouts is not None:
        whole = _seconds(rule.timeouts.request, f"{field}.timeouts.request")
        each = _seconds(rule.timeouts.backend_request, f"{field}.timeouts.backendRequest")
        if whole and each > whole:
            raise Invalid(f"{field}.timeouts.backendRequest: longer than request")
        found |= {"timeout": whole, "backend_timeout": each}
    if rule.retry is not None:
        codes = tuple(sorted(set(rule.retry.codes or ())))
        if len(codes) > MAX_LIST * 4 or not all(400 <= code <= 599 for code in codes):
            raise Invalid(f"{field}.retry.codes: want codes from 400 to 599")
        attempts = 1 if rule.retry.attempts is None else rule.retry.attempts
        if not 0 <= attempts <= MAX_ATTEMPTS:
            raise Invalid(f"{field}.retry.attempts: {attempts} is not between 0 and {MAX_ATTEMPTS}")
        found["retries"] = Retries(codes, attempts, _seconds(rule.retry.backoff, f"{field}.retry.backoff"))
    return found


def _filtered(row: RouteRule, found: wire.Filter, field: str, namespace: str) -> RouteRule:
    match found.type:
        case "RequestHeaderModifier" if found.request_header_modifier is not None:
            return replace(row, request=_edit(found.request_header_modifier, f"{field}.requestHeaderModifier"))
        case "ResponseHeaderModifier" if found.response_header_modifier is not None:
            return replace(row, response=_edit(found.response_header_modifier, f"{field}.responseHeaderModifier"))
        case "RequestRedirect" if found.request_redirect is not None:
            return replace(row, redirect=_redirection(found.request_redirect, f"{field}.requestRedirect"))
        case "URLRewrite" if found.url_rewrite is not None:
            path = _path_edit(found.url_rewrite.path, f"{field}.urlRewrite.path")
            host = _host(found.url_rewrite.hostname, f"{field}.urlRewrite.hostname")
            return replace(row, rewrite=Rewrite(host, path))
        case "RequestMirror" if found.request_mirror is not None:
            return replace(row, mirrors=(*row.mirrors, _mirror(found.request_mirror, field, namespace)))
        case other:
            raise Invalid(f"{field}.type: '{other[:64]}' is not supported, or its field is missing")


def _mirror(found: wire.RequestMirror, field: str, namespace: str) -> Mirror:
    to, reason, message = _ref(found.backend_ref, f"{field}.requestMirror.backendRef", namespace)
    if reason:
        raise Invalid(message)
    if found.fraction is not None:
        denominator = 100 if found.fraction.denominator is None else found.fraction.denominator
        if not 0 <= found.fraction.numerator <= denominator or not 0 < denominator <= MAX_WEIGHT:
            raise Invalid(f"{field}.requestMirror.fraction: is not between 0 and 1")
        return Mirror(to, found.fraction.numerator, denominator)
    percent = 100 if found.percent is None else found.percent
    if not 0 <= percent <= 100:
        raise Invalid(f"{field}.requestMirror.percent: {percent} is not between 0 and 100")
    return Mirror(to, percent, 100)


def _backend(found: wire.BackendRef, field: str, namespace: str) -> BackendRef:
    ref = wire.ObjectRef(found.group, found.kind, found.namespace, found.name, found.port)
    to, reason, message = _ref(ref, field, namespace)
    weight = 1 if found.weight is None else found.weight
    if not 0 <= weight <= MAX_WEIGHT:
        raise Invalid(f"{field}.weight: {weight} is not between 0 and {MAX_WEIGHT}")
    backend = BackendRef(to, weight, reason, message)
    _bounded(found.filters, f"{field}.filters")
    for number, each in enumerate(found.filters or ()):
        where = f"{field}.filters[{number}]"
        if each.type == "RequestHeaderModifier" and each.request_header_modifier is not None:
            backend = replace(backend, request=_edit(each.request_header_modifier, where))
        elif each.type == "ResponseHeaderModifier" and each.response_header_modifier is not None:
            backend = replace(backend, response=_edit(each.response_header_modifier, where))
        else:
            raise Invalid(f"{where}.type: '{each.type[:64]}' is not supported for one backend")
    return backend


def _ref(found: wire.ObjectRef, field: str, namespace: str) -> tuple[ServiceRef, str, str]:
    """The target, and the reason and message why it cannot be used; empty: it can, as far as the reference goes."""
    if (found.group, found.kind) == CLUSTER:
        if found.namespace or found.port:
            raise Invalid(f"{field}: a Cluster takes no namespace and no port: the port is the one that is called")
        return ServiceRef("Cluster", ServiceName(found.name[:MAX_TEXT])), "", ""
    kind = KINDS.get((found.group or "", found.kind or "Service"))
    to = ServiceRef(kind or "Service", service_name(found.namespace or namespace, found.name), found.port or 0)
    if kind is None:
        kinds = "Service, ServiceImport and Cluster"
        return to, "InvalidKind", f"{field}: kind '{(found.kind or '')[:64]}' is none of {kinds}"
    if not found.name or not 0 < (found.port or 0) < 65536:
        return to, "BackendNotFound", f"{field}: name or port is missing"
    return to, "", ""


def _http_match(found: wire.HttpMatch, field: str) -> Match:
    kind, path = "PathPrefix", "/"
    if found.path is not None:
        kind, path = found.path.type or "PathPrefix", "/" if found.path.value is None else found.path.value
    if kind not in get_args(PathType):
        raise Invalid(f"{field}.path.type: '{kind[:64]}' is not known")
    if kind == "RegularExpression":
        _regex(path, f"{field}.path.value")
    elif len(path) > MAX_TEXT or PATH.match(path) is None:
        raise Invalid(f"{field}.path.value: '{path[:64]}' is no absolute path")
    if found.method is not None and found.method not in METHODS:
        raise Invalid(f"{field}.method: '{found.method[:64]}' is not known")
    return Match(
        path=path,
        path_type=cast("PathType", kind),
        method=found.method or "",
        headers=_values(found.headers, f"{field}.headers", headers=True),
        query=_values(found.query_params, f"{field}.queryParams", headers=False),
    )


def _grpc_match(found: wire.GrpcMatch, field: str) -> Match:
    headers = _values(found.headers, f"{field}.headers", headers=True)
    method = found.method or wire.GrpcMethod()
    service, name = method.service or "", method.method or ""
    if not service and not name:
        return Match(headers=headers)
    if method.type == "RegularExpression":
        expression = f"/{service or '[^/]+'}/{name or '[^/]+'}"
        _regex(expression, f"{field}.method")
        return Match(expression, "RegularExpression", headers=headers)
    for part, text in (("service", service), ("method", name)):
        if text and (len(text) > MAX_TEXT or GRPC_NAME.match(text) is None):
            raise Invalid(f"{field}.method.{part}: '{text[:64]}' is no name of gRPC")
    if service and name:
        return Match(f"/{service}/{name}", "Exact", headers=headers)
    if service:
        return Match(f"/{service}", "PathPrefix", headers=headers)
    return Match(f"/[^/]+/{re.escape(name)}", "RegularExpression", headers=headers)


def _values(found: list[wire.HeaderMatch] | None, field: str, *, headers: bool) -> tuple[ValueMatch, ...]:
    """Matches of names, each once: of several the first counts. Names of headers are compared without case."""
    _bounded(found, field)
    values: dict[str, ValueMatch] = {}
    for number, each in enumerate(found or ()):
        if NAME.match(each.name) is None or len(each.value) > MAX_TEXT * 4:
            raise Invalid(f"{field}[{number}]: '{each.name[:64]}' is no name, or its value is too long")
        name = each.name.lower() if headers else each.name
        if each.type == "RegularExpression":
            _regex(each.value, f"{field}[{number}].value")
        values.setdefault(name, ValueMatch(name, each.value, each.type == "RegularExpression"))
    return tuple(sorted(values.values()))


def _edit(found: wire.HeaderModifier, field: str) -> HeaderEdit:
    for part, each in (("set", found.set), ("add", found.add), ("remove", found.remove)):
        _bounded(each, f"{field}.{part}")
    for header in (*(found.set or ()), *(found.add or ())):
        if NAME.match(header.name) is None or VALUE.match(header.value) is None or len(header.value) > MAX_TEXT * 4:
            raise Invalid(f"{field}: '{header.name[:64]}' and its value are no header")
    for name in found.remove or ():
        if NAME.match(name) is None:
            raise Invalid(f"{field}.remove: '{name[:64]}' is no header's name")
    return HeaderEdit(
        tuple((each.name.lower(), each.value) for each in found.set or ()),
        tuple((each.name.lower(), each.value) for each in found.add or ()),
        tuple(name.lower() for name in found.remove or ()),
    )


def _redirection(found: wire.RequestRedirect, field: str) -> Redirection:
    if found.scheme not in (None, "http", "https"):
        raise Invalid(f"{field}.scheme: '{(found.scheme or '')[:16]}' is neither http nor https")
    status = found.status_code or 302
    if status not in (301, 302, 303, 307, 308):
        raise Invalid(f"{field}.statusCode: {status} is none of 301, 302, 303, 307, 308")
    if not 0 <= (found.port or 0) < 65536:
        raise Invalid(f"{field}.port: {found.port} is no port")
    host = _host(found.hostname, f"{field}.hostname")
    return Redirection(found.scheme or "", host, found.port or 0, _path_edit(found.path, f"{field}.path"), status)


def _path_edit(found: wire.PathModifier | None, field: str) -> PathEdit | None:
    if found is None:
        return None
    value = found.replace_full_path if found.type == "ReplaceFullPath" else found.replace_prefix_match
    if found.type not in ("ReplaceFullPath", "ReplacePrefixMatch") or value is None:
        raise Invalid(f"{field}.type: '{found.type[:64]}' is not known, or its field is missing")
    if len(value) > MAX_TEXT or (value and PATH.match(value) is None):
        raise Invalid(f"{field}: '{value[:64]}' is no absolute path")
    return PathEdit("ReplaceFullPath" if found.type == "ReplaceFullPath" else "ReplacePrefixMatch", value)


def _host(found: str | None, field: str) -> str:
    if found and HOST.match(found) is None:
        raise Invalid(f"{field}: '{found[:64]}' is no host name")
    return found or ""


def _regex(text: str, field: str) -> None:
    """Refuse what Envoy would: it would keep back all routes of the Service for one expression."""
    if not text or len(text) > MAX_TEXT:
        raise Invalid(f"{field}: '{text[:64]}' is empty or too long")
    if why := expressions.problem(text):
        raise Invalid(f"{field}: '{text[:64]}' is {why}")


def _seconds(text: str | None, field: str) -> float:
    if not text:
        return 0.0
    found = DURATION.match(text)
    if found is None:
        raise Invalid(f"{field}: '{text[:32]}' is no duration")
    hours, minutes, seconds, millis = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def _bounded(found: Sized | None, field: str) -> None:
    count = len(found or ())
    if count > MAX_LIST:
        raise Invalid(f"{field}: {count} entries, more than {MAX_LIST}")
