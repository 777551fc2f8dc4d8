"""HTTPRoute, GRPCRoute, TCPRoute, UDPRoute and ReferenceGrant objects as rows.

The bounds are those of the Gateway API's definitions, kept here as well for servers that do not enforce one. The field
``invalid`` gives the reason why a whole object is invalid; a backend that cannot be used is marked alone, as the
conditions Accepted and ResolvedRefs of the Gateway API require.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain, islice
from typing import Any, Final, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from isthmus import bounds, expressions
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.kube.objects import gateway as wire
from isthmus.kube.objects import refusals as refused
from isthmus.model.l4_routes import L4Kind, L4Route
from isthmus.model.names import ServiceName, service_name
from isthmus.model.routes import (
    MAX_REFUSAL,
    MAX_REFUSALS,
    ROUTE_KINDS,
    BackendRef,
    Cors,
    Grant,
    HeaderEdit,
    Match,
    Mirror,
    NodeRefusals,
    ParentKind,
    ParentRef,
    PathEdit,
    PathEditType,
    PathType,
    Redirection,
    Retries,
    Rewrite,
    Route,
    RouteKind,
    RouteRefusal,
    RouteRule,
    ServiceRef,
    Session,
    SessionType,
    ValueMatch,
    with_rules,
)
from isthmus.sources.normal import name_of
from isthmus.sources.unread import unread

T = TypeVar("T")
AnyRoute = wire.HttpRoute | wire.GrpcRoute | wire.TcpRoute | wire.UdpRoute

MAX_RULES: Final = 16
MAX_MATCHES: Final = 128
"""Matches of all rules of a route."""
MAX_BYTES: Final = 128 * 1024
"""Size of a route's rules as JSON."""
MAX_SIZE: Final = 1024 * 1024
"""Bytes: largest estimated Envoy configuration of a route."""
RULE_SIZE, ENTRY_SIZE, HEADER_SIZE = 300, 24, 16
"""Bytes of a rule, of a backend or matched value, and of a header, without their names and values."""
MAX_LIST: Final = 16
"""Backends, filters, headers, query parameters and edits of one list."""
MAX_TEXT: Final = 1024
MAX_VALUE: Final = 4 * MAX_TEXT
"""Characters of a header's or a parameter's value."""
MAX_NAME: Final = 253
"""Characters of the name of an object or a namespace."""
MAX_TIMEOUT: Final = 31_536_000
"""Seconds, a year."""
MAX_WEIGHT: Final = 1_000_000
MAX_ATTEMPTS: Final = 16

MAX_UNREAD: Final = 16
"""Fields without effect that a row names."""

ANY: Final = msgspec.json.Decoder()
HTTP_RULES: Final = msgspec.json.Decoder(list[wire.HttpRule] | None)
L4_RULES: Final = msgspec.json.Decoder(list[wire.L4Rule] | None)
GRPC_RULES: Final = msgspec.json.Decoder(list[wire.GrpcRule] | None)
KINDS: Final[dict[tuple[str, str], ParentKind]] = {
    ("", "Service"): "Service",
    ("multicluster.x-k8s.io", "ServiceImport"): "ServiceImport",
}
CLUSTER: Final = ("isthmus.io", "Cluster")
"""Kind of a backend that is a cluster of the clusterset: the parent's endpoints there."""
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
NAME: Final = Syntax(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+", most=256, meaning="the name of a header or a parameter")
VALUE: Final = Syntax(r"[^\x00-\x08\x0a-\x1f\x7f]*", most=MAX_VALUE, meaning="the value of a header")
HOST: Final = Syntax(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", most=253, meaning="a host name")
PATH: Final = Syntax(r"/[^\x00-\x20?#\x7f]*", most=MAX_TEXT, meaning="an absolute path")
ORIGIN: Final = Syntax(
    r"(https?)://((?:\*\.)?(?:[A-Za-z0-9-]+\.)*[A-Za-z0-9-]+|\*)(?::([0-9]{1,5}))?",
    most=MAX_NAME + 15,
    meaning="an origin",
)
DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
GRPC_NAME: Final = Syntax(r"[A-Za-z_][A-Za-z0-9_.]*", most=MAX_TEXT, meaning="a name of gRPC")


class Invalid(Exception):  # noqa: N818 about the object, not about us
    """A route cannot be followed; the message names the field."""


def http_route(route: wire.HttpRoute) -> Route:
    """The row of an HTTPRoute."""
    return _route("HTTPRoute", route, HTTP_RULES, _http_match, wire.HttpRule)


def grpc_route(route: wire.GrpcRoute) -> Route:
    """The row of a GRPCRoute."""
    return _route("GRPCRoute", route, GRPC_RULES, _grpc_match, wire.GrpcRule)


def tcp_route(route: wire.TcpRoute) -> L4Route:
    """The row of a TCPRoute."""
    return _l4_route("TCPRoute", route)


def udp_route(route: wire.UdpRoute) -> L4Route:
    """The row of a UDPRoute."""
    return _l4_route("UDPRoute", route)


def _l4_route(kind: L4Kind, route: wire.TcpRoute | wire.UdpRoute) -> L4Route:
    meta = route.metadata
    row = L4Route(
        kind=kind,
        name=name_of(meta),
        parents=_parents(route.spec.parent_refs, meta.namespace),
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
    try:
        backends = _l4_backends(_decoded(route, L4_RULES), kind, meta.namespace)
    except (Invalid, OutOfBounds) as error:
        return replace(row, invalid=str(error))
    return replace(row, backends=backends, unread=_unread(route, wire.L4Rule))


def _l4_backends(rules: Sequence[wire.L4Rule], kind: L4Kind, namespace: str) -> tuple[BackendRef, ...]:
    if len(rules) != 1:
        raise Invalid(f"spec.rules: {len(rules)} rules, a {kind} has one")
    [rule], field = rules, "spec.rules[0].backendRefs"
    _bounded(rule.backend_refs, field)
    return tuple(_l4_backend(ref, f"{field}[{n}]", namespace) for n, ref in enumerate(rule.backend_refs or ()))


def _l4_backend(ref: wire.L4Target, field: str, namespace: str) -> BackendRef:
    weight = bounds.count(1 if ref.weight is None else ref.weight, most=MAX_WEIGHT, field=f"{field}.weight")
    target, reason, message = _service_ref(ref, field, namespace, kinds="Service and ServiceImport")
    return BackendRef(target, weight, reason, message)


def _route(
    kind: RouteKind,
    route: wire.HttpRoute | wire.GrpcRoute,
    decoder: msgspec.json.Decoder[Any],
    match: Callable[[Any, str], Match],
    rule: type[wire.Rule],
) -> Route:
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
        numbered: Iterator[tuple[str, wire.HttpRule | wire.GrpcRule]] = _numbered(
            _decoded(route, decoder), "spec.rules"
        )
        matched = [(rule, _matches(rule.matches, field, match)) for field, rule in numbered]
        rules = _rules(matched, meta.namespace)
    except (Invalid, OutOfBounds) as error:
        return replace(row, invalid=str(error))
    if (size := estimated_size(rules)) > MAX_SIZE:
        return replace(row, invalid=f"spec.rules: about {size} bytes of Envoy's configuration, more than {MAX_SIZE}")
    return replace(with_rules(row, rules), size=size, unread=_unread(route, rule))


def _decoded(route: AnyRoute, decoder: msgspec.json.Decoder[Any]) -> Sequence[Any]:
    """Decode the rules of a route. Raises Invalid if they are so large that decoding would block the event loop."""
    raw = route.spec.rules
    if (size := len(memoryview(raw))) > MAX_BYTES:
        raise Invalid(f"spec.rules: {size} bytes, more than {MAX_BYTES}")
    try:
        return bounds.json(raw, decoder) or ()
    except msgspec.MsgspecError as error:
        raise Invalid(f"spec.rules: {error}") from None


def _unread(route: AnyRoute, rule: type[wire.Rule | wire.L4Rule]) -> tuple[str, ...]:
    """Return the fields of a valid route that nothing follows, at most MAX_UNREAD of them."""
    try:
        rules = bounds.json(route.spec.rules, ANY) or ()
    except msgspec.MsgspecError:  # a number in a field that is not read may be larger than any that can be
        rules = ()
    hosts = ("spec.hostnames",) if route.spec.hostnames else ()
    fields = (field for n, each in enumerate(rules) for field in unread(each, rule, f"spec.rules[{n}]"))
    return tuple(islice(chain(hosts, fields), MAX_UNREAD))


def estimated_size(rules: Iterable[RouteRule]) -> int:
    """Estimate the bytes of the rules' Envoy configuration, in which each match repeats the actions of its rule."""
    return sum(len(rule.matches) * _size_of_rule(rule) + sum(map(_size_of_match, rule.matches)) for rule in rules)


def _size_of_rule(rule: RouteRule) -> int:
    edits = [rule.request, rule.response]
    for backend in rule.backends:
        edits += [backend.request, backend.response]
    targets = [*(backend.to for backend in rule.backends), *(mirror.to for mirror in rule.mirrors)]
    names = sum(ENTRY_SIZE + len(target.name) for target in targets)
    cors = rule.cors or Cors()
    listed = sum(ENTRY_SIZE + len(each) for each in (*cors.origins, *cors.methods, *cors.headers, *cors.exposed))
    return RULE_SIZE + names + listed + sum(map(_size_of_edit, edits))


def _size_of_edit(edit: HeaderEdit) -> int:
    written = sum(HEADER_SIZE + len(name) + len(value) for name, value in (*edit.set, *edit.add))
    return written + sum(map(len, edit.remove))


def _size_of_match(match: Match) -> int:
    return len(match.path) + sum(
        ENTRY_SIZE + len(each.name) + len(each.value) for each in (*match.headers, *match.query)
    )


def grant(reference_grant: wire.ReferenceGrant) -> Grant:
    """Return the row of a ReferenceGrant: its grants to routes of references to Services and ServiceImports."""
    sources = {(each.kind, each.namespace) for each in reference_grant.spec.from_ or () if each.group == wire.GROUP}
    targets = {
        (KINDS[each.group, each.kind], each.name or "") for each in reference_grant.spec.to or () if _routable(each)
    }
    return Grant(name=name_of(reference_grant.metadata), sources=frozenset(sources), targets=frozenset(targets))


def refusals(report: refused.RefusedRoutes) -> NodeRefusals:
    """Return the row of a node's report, without entries of an unknown kind of routes."""
    routes = tuple(
        RouteRefusal(
            kind,
            service_name(each.namespace, each.name),
            ServiceName(each.service),
            each.message[:MAX_REFUSAL],
            "NoPortLeft" if each.reason == "NoPortLeft" else "RefusedByEnvoy",
        )
        for each in (report.routes or ())[:MAX_REFUSALS]
        for kind in ROUTE_KINDS
        if kind == each.kind
    )
    return NodeRefusals(name=report.metadata.name, routes=routes)


def _routable(target: wire.GrantTo) -> bool:
    return (target.group, target.kind) in KINDS


def _parents(listed: list[wire.ParentRef] | None, namespace: str) -> tuple[ParentRef, ...]:
    """Return the parents that are Services or ServiceImports; other controllers serve gateways."""
    refs = []
    for ref in (listed or ())[: MAX_LIST * 2]:
        kind = KINDS.get((wire.GROUP if ref.group is None else ref.group, ref.kind or "Gateway"))
        if kind is not None and ref.name:
            name = _name(ref.namespace, ref.name, "spec.parentRefs", namespace)
            port = bounds.port(ref.port, field="spec.parentRefs.port") if ref.port else 0
            section = bounds.text(ref.section_name or "", most=MAX_NAME, field="spec.parentRefs.sectionName")
            refs.append(ParentRef(kind, name, port, section, ref.namespace or ""))
    return tuple(dict.fromkeys(refs))


def _name(namespace: str | None, name: str, field: str, own: str) -> ServiceName:
    """Return the referenced name. A reference without a namespace is to ``own``."""
    return service_name(
        bounds.text(namespace or own, most=MAX_NAME, field=f"{field}.namespace"),
        bounds.text(name, most=MAX_NAME, field=f"{field}.name"),
    )


def _numbered(rules: Sequence[T] | None, field: str) -> Iterator[tuple[str, T]]:
    if len(rules or ()) > MAX_RULES:
        raise Invalid(f"{field}: {len(rules or ())} rules, more than {MAX_RULES}")
    for number, rule in enumerate(rules or ()):
        yield f"{field}[{number}]", rule


def _matches(matches: Sequence[T] | None, field: str, match: Callable[[T, str], Match]) -> tuple[Match, ...]:
    if matches is not None and len(matches) > MAX_MATCHES:
        raise Invalid(f"{field}.matches: {len(matches)} matches, more than {MAX_MATCHES}")
    return tuple(match(each, f"{field}.matches[{n}]") for n, each in enumerate(matches or ())) or (Match(),)


def _rules(matched: Sequence[tuple[wire.Rule, tuple[Match, ...]]], namespace: str) -> tuple[RouteRule, ...]:
    if (total := sum(len(matches) for _, matches in matched)) > MAX_MATCHES:
        raise Invalid(f"spec.rules: {total} matches, more than {MAX_MATCHES}")
    return tuple(_rule(rule, matches, f"spec.rules[{n}]", namespace) for n, (rule, matches) in enumerate(matched))


def _rule(rule: wire.Rule, matches: tuple[Match, ...], field: str, namespace: str) -> RouteRule:
    _bounded(rule.backend_refs, f"{field}.backendRefs")
    backends = tuple(
        _backend(ref, f"{field}.backendRefs[{n}]", namespace) for n, ref in enumerate(rule.backend_refs or ())
    )
    row = RouteRule(matches=matches, backends=backends)
    _bounded(rule.filters, f"{field}.filters")
    for number, rule_filter in enumerate(rule.filters or ()):
        row = _filtered(row, rule_filter, f"{field}.filters[{number}]", namespace)
    if row.redirect is not None and (row.backends or row.rewrite is not None):
        raise Invalid(f"{field}.filters: RequestRedirect excludes backends and URLRewrite")
    edits = [edit.path for edit in (row.redirect, row.rewrite) if edit is not None and edit.path is not None]
    if any(edit.type == "ReplacePrefixMatch" for edit in edits) and any(m.path_type != "PathPrefix" for m in matches):
        raise Invalid(f"{field}.filters: ReplacePrefixMatch wants matches of type PathPrefix")
    if rule.session_persistence is not None:
        row = replace(row, session=_session(rule.session_persistence, backends, f"{field}.sessionPersistence"))
    return replace(row, **_patience(rule, field))


def _session(session: wire.SessionPersistence, backends: Sequence[BackendRef], field: str) -> Session:
    """Return the session of a rule. Raises Invalid where Envoy could not keep what the object asks for."""
    kind: SessionType = bounds.choice(session.type or "Cookie", get_args(SessionType), field=f"{field}.type")
    if sum(1 for each in backends if each.weight) > 1:
        raise Invalid(f"{field}: not supported with several backends: a session would follow their weights")
    name = NAME.text(session.session_name, field=f"{field}.sessionName") if session.session_name else ""
    lifetime = _seconds(session.absolute_timeout, f"{field}.absoluteTimeout")
    cookie = session.cookie_config or wire.CookieConfig()
    lasting = bounds.choice(
        cookie.lifetime_type or "Session", ("Session", "Permanent"), field=f"{field}.cookieConfig.lifetimeType"
    )
    if (lasting == "Permanent") != bool(lifetime) or (lifetime and kind != "Cookie"):
        raise Invalid(f"{field}.absoluteTimeout: supported for cookies of lifetimeType Permanent alone, which want one")
    return Session(kind, name, lifetime)


def _patience(rule: wire.Rule, field: str) -> dict[str, object]:
    """Return the timeouts and retries of a rule, by field."""
    settings: dict[str, object] = {}
    if rule.timeouts is not None:
        whole = _seconds(rule.timeouts.request, f"{field}.timeouts.request")
        attempt = _seconds(rule.timeouts.backend_request, f"{field}.timeouts.backendRequest")
        if whole and attempt > whole:
            raise Invalid(f"{field}.timeouts.backendRequest: longer than request")
        settings |= {"timeout": whole, "backend_timeout": attempt}
    if rule.retry is not None:
        listed = bounds.size(rule.retry.codes or [], most=MAX_LIST * 4, field=f"{field}.retry.codes")
        codes = tuple(
            sorted({bounds.count(code, least=400, most=599, field=f"{field}.retry.codes") for code in listed})
        )
        attempts = 1 if rule.retry.attempts is None else rule.retry.attempts
        bounds.count(attempts, most=MAX_ATTEMPTS, field=f"{field}.retry.attempts")
        settings["retries"] = Retries(codes, attempts, _seconds(rule.retry.backoff, f"{field}.retry.backoff"))
    return settings


def _filtered(row: RouteRule, rule_filter: wire.Filter, field: str, namespace: str) -> RouteRule:
    match rule_filter.type:
        case "RequestHeaderModifier" if rule_filter.request_header_modifier is not None:
            return replace(row, request=_edit(rule_filter.request_header_modifier, f"{field}.requestHeaderModifier"))
        case "ResponseHeaderModifier" if rule_filter.response_header_modifier is not None:
            return replace(row, response=_edit(rule_filter.response_header_modifier, f"{field}.responseHeaderModifier"))
        case "RequestRedirect" if rule_filter.request_redirect is not None:
            return replace(row, redirect=_redirection(rule_filter.request_redirect, f"{field}.requestRedirect"))
        case "URLRewrite" if rule_filter.url_rewrite is not None:
            path = _path_edit(rule_filter.url_rewrite.path, f"{field}.urlRewrite.path")
            host = _host(rule_filter.url_rewrite.hostname, f"{field}.urlRewrite.hostname")
            return replace(row, rewrite=Rewrite(host, path))
        case "RequestMirror" if rule_filter.request_mirror is not None:
            return replace(row, mirrors=(*row.mirrors, _mirror(rule_filter.request_mirror, field, namespace)))
        case "CORS" if rule_filter.cors is not None:
            matches = (*row.matches, *_preflights(row.matches))
            return replace(row, cors=_cors(rule_filter.cors, f"{field}.cors"), matches=matches)
        case other:
            raise Invalid(f"{field}.type: {bounds.shown(other)} is not supported, or its field is missing")


def _preflights(matches: Iterable[Match]) -> Iterator[Match]:
    """Yield matches of the preflights of requests that are matched by their method: preflights have another one."""
    for each in matches:
        if each.method not in ("", "OPTIONS"):
            asked = ValueMatch("access-control-request-method", each.method)
            yield replace(each, method="OPTIONS", headers=tuple(sorted((*each.headers, asked))))


def _cors(cors: wire.Cors, field: str) -> Cors:
    most = MAX_LIST * 4
    listed: dict[str, tuple[str, ...]] = {}
    for name, values in (("allowHeaders", cors.allow_headers), ("exposeHeaders", cors.expose_headers)):
        bounds.size(values or (), most=most, field=f"{field}.{name}")
        listed[name] = tuple(NAME.text(each, field=f"{field}.{name}") for each in values or ())
    methods = bounds.size(cors.allow_methods or [], most=len(METHODS), field=f"{field}.allowMethods")
    origins = bounds.size(cors.allow_origins or [], most=most, field=f"{field}.allowOrigins")
    max_age = 5 if cors.max_age is None else cors.max_age
    return Cors(
        origins=tuple(_origin(each, f"{field}.allowOrigins") for each in origins),
        methods=tuple(bounds.choice(each, ("*", *METHODS), field=f"{field}.allowMethods") for each in methods),
        headers=listed["allowHeaders"],
        exposed=listed["exposeHeaders"],
        credentials=bool(cors.allow_credentials),
        max_age=bounds.count(max_age, least=1, most=MAX_TIMEOUT, field=f"{field}.maxAge"),
    )


def _origin(text: str, field: str) -> str:
    """Return an origin as browsers send it: in lower case, without a default port (RFC 6454, section 6.2)."""
    if text == "*":
        return text
    parts = ORIGIN.match(text)
    if parts is None:
        raise Invalid(f"{field}: {bounds.shown(text)} is not an origin, such as https://*.example.com")
    scheme, host, port = parts.groups()
    suffix = f":{port}" if port and port != DEFAULT_PORTS[scheme] else ""
    return f"{scheme}://{host.lower()}{suffix}"


def _mirror(request_mirror: wire.RequestMirror, field: str, namespace: str) -> Mirror:
    target, reason, message = _ref(request_mirror.backend_ref, f"{field}.requestMirror.backendRef", namespace)
    if reason:
        raise Invalid(message)
    if request_mirror.fraction is not None:
        where = f"{field}.requestMirror.fraction"
        whole = 100 if request_mirror.fraction.denominator is None else request_mirror.fraction.denominator
        denominator = bounds.count(whole, least=1, most=MAX_WEIGHT, field=f"{where}.denominator")
        numerator = bounds.count(request_mirror.fraction.numerator, most=denominator, field=f"{where}.numerator")
        return Mirror(target, numerator, denominator)
    percent = 100 if request_mirror.percent is None else request_mirror.percent
    return Mirror(target, bounds.count(percent, most=100, field=f"{field}.requestMirror.percent"), 100)


def _backend(backend_ref: wire.BackendRef, field: str, namespace: str) -> BackendRef:
    ref = wire.ObjectRef(backend_ref.group, backend_ref.kind, backend_ref.namespace, backend_ref.name, backend_ref.port)
    target, reason, message = _ref(ref, field, namespace)
    weight = bounds.count(
        1 if backend_ref.weight is None else backend_ref.weight, most=MAX_WEIGHT, field=f"{field}.weight"
    )
    backend = BackendRef(target, weight, reason, message)
    _bounded(backend_ref.filters, f"{field}.filters")
    for number, rule_filter in enumerate(backend_ref.filters or ()):
        where = f"{field}.filters[{number}]"
        if rule_filter.type == "RequestHeaderModifier" and rule_filter.request_header_modifier is not None:
            backend = replace(backend, request=_edit(rule_filter.request_header_modifier, where))
        elif rule_filter.type == "ResponseHeaderModifier" and rule_filter.response_header_modifier is not None:
            backend = replace(backend, response=_edit(rule_filter.response_header_modifier, where))
        else:
            raise Invalid(f"{where}.type: {bounds.shown(rule_filter.type)} is not supported for one backend")
    return backend


def _ref(object_ref: wire.ObjectRef, field: str, namespace: str) -> tuple[ServiceRef, str, str]:
    """Return the target, then the reason and message why the reference is invalid (both empty if it is valid)."""
    if (object_ref.group, object_ref.kind) == CLUSTER:
        if object_ref.namespace or object_ref.port:
            raise Invalid(f"{field}: a Cluster takes no namespace and no port: the port is the one that is called")
        return (
            ServiceRef("Cluster", ServiceName(bounds.text(object_ref.name, most=MAX_NAME, field=f"{field}.name"))),
            "",
            "",
        )
    return _service_ref(object_ref, field, namespace, kinds="Service, ServiceImport and Cluster")


def _service_ref(object_ref: wire.ObjectRef, field: str, namespace: str, *, kinds: str) -> tuple[ServiceRef, str, str]:
    """Return the same of a reference to a Service or ServiceImport. ``kinds``: those that a message names as valid."""
    kind = KINDS.get((object_ref.group or "", object_ref.kind or "Service"))
    port = bounds.port(object_ref.port, field=f"{field}.port") if object_ref.port else 0
    target = ServiceRef(kind or "Service", _name(object_ref.namespace, object_ref.name, field, namespace), port)
    if kind is None:
        shown = bounds.shown("/".join(filter(None, (object_ref.group, object_ref.kind or "Service"))))
        return target, "InvalidKind", f"{field}: kind {shown} is none of {kinds}"
    if not object_ref.name or not port:
        return target, "BackendNotFound", f"{field}: name or port is missing"
    return target, "", ""


def _http_match(wire_match: wire.HttpMatch, field: str) -> Match:
    kind, path = "PathPrefix", "/"
    if wire_match.path is not None:
        kind, path = (
            wire_match.path.type or "PathPrefix",
            "/" if wire_match.path.value is None else wire_match.path.value,
        )
    path_type: PathType = bounds.choice(kind, get_args(PathType), field=f"{field}.path.type")
    if path_type == "RegularExpression":
        _regex(path, f"{field}.path.value")
    else:
        PATH.text(path, field=f"{field}.path.value")
    return Match(
        path=path,
        path_type=path_type,
        method="" if wire_match.method is None else bounds.choice(wire_match.method, METHODS, field=f"{field}.method"),
        headers=_values(wire_match.headers, f"{field}.headers", headers=True),
        query=_values(wire_match.query_params, f"{field}.queryParams", headers=False),
    )


def _grpc_match(wire_match: wire.GrpcMatch, field: str) -> Match:
    headers = _values(wire_match.headers, f"{field}.headers", headers=True)
    method = wire_match.method or wire.GrpcMethod()
    service, name = method.service or "", method.method or ""
    if not service and not name:
        return Match(headers=headers)
    if method.type == "RegularExpression":
        expression = f"/{service or '[^/]+'}/{name or '[^/]+'}"
        _regex(expression, f"{field}.method")
        return Match(expression, "RegularExpression", headers=headers)
    for part, text in (("service", service), ("method", name)):
        if text:
            GRPC_NAME.text(text, field=f"{field}.method.{part}")
    if service and name:
        return Match(f"/{service}/{name}", "Exact", headers=headers)
    if service:
        return Match(f"/{service}", "PathPrefix", headers=headers)
    return Match(f"/[^/]+/{expressions.literal(name)}", "RegularExpression", headers=headers)


def _values(conditions: list[wire.HeaderMatch] | None, field: str, *, headers: bool) -> tuple[ValueMatch, ...]:
    """Return the sorted matches by name. The first match of a name wins. Header names are case-insensitive."""
    _bounded(conditions, field)
    values: dict[str, ValueMatch] = {}
    for number, condition in enumerate(conditions or ()):
        written = NAME.text(condition.name, field=f"{field}[{number}].name")
        bounds.size(condition.value, most=MAX_VALUE, field=f"{field}[{number}].value")
        name = written.lower() if headers else written
        if condition.type == "RegularExpression":
            _regex(condition.value, f"{field}[{number}].value")
        values.setdefault(name, ValueMatch(name, condition.value, condition.type == "RegularExpression"))
    return tuple(sorted(values.values()))


def _edit(modifier: wire.HeaderModifier, field: str) -> HeaderEdit:
    for part, entries in (("set", modifier.set), ("add", modifier.add), ("remove", modifier.remove)):
        _bounded(entries, f"{field}.{part}")
    for header in (*(modifier.set or ()), *(modifier.add or ())):
        NAME.text(header.name, field=f"{field}.name")
        VALUE.text(header.value, field=f"{field}.value")
    for name in modifier.remove or ():
        NAME.text(name, field=f"{field}.remove")
    return HeaderEdit(
        tuple((entries.name.lower(), entries.value) for entries in modifier.set or ()),
        tuple((entries.name.lower(), entries.value) for entries in modifier.add or ()),
        tuple(name.lower() for name in modifier.remove or ()),
    )


def _redirection(redirect: wire.RequestRedirect, field: str) -> Redirection:
    scheme = (
        "" if redirect.scheme is None else bounds.choice(redirect.scheme, ("http", "https"), field=f"{field}.scheme")
    )
    status = bounds.choice(redirect.status_code or 302, (301, 302, 303, 307, 308), field=f"{field}.statusCode")
    port = bounds.port(redirect.port, field=f"{field}.port") if redirect.port else 0
    host = _host(redirect.hostname, f"{field}.hostname")
    return Redirection(scheme, host, port, _path_edit(redirect.path, f"{field}.path"), status)


def _path_edit(modifier: wire.PathModifier | None, field: str) -> PathEdit | None:
    if modifier is None:
        return None
    value = modifier.replace_full_path if modifier.type == "ReplaceFullPath" else modifier.replace_prefix_match
    if value is None:
        raise Invalid(f"{field}.type: {bounds.shown(modifier.type)} is not supported, or its field is missing")
    kind: PathEditType = bounds.choice(modifier.type, get_args(PathEditType), field=f"{field}.type")
    return PathEdit(kind, PATH.text(value, field=field) if value else "")


def _host(hostname: str | None, field: str) -> str:
    return HOST.text(hostname, field=field) if hostname else ""


def _regex(text: str, field: str) -> None:
    """Raise Invalid for an expression that Envoy would reject, and with it all routes of the Service."""
    bounds.size(text, least=1, most=MAX_TEXT, field=field)
    if problem := expressions.problem(text):
        raise Invalid(f"{field}: {bounds.shown(text)} is {problem}")


def _seconds(text: str | None, field: str) -> float:
    return bounds.duration(text, most=MAX_TIMEOUT, field=field) if text else 0.0


def _bounded(entries: Sized | None, field: str) -> None:
    bounds.size(entries or (), most=MAX_LIST, field=field)
