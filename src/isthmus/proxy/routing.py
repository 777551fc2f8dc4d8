"""Converts routes to Envoy's routes: an ordered list of matches, each with its action. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from isthmus import expressions
from isthmus.model.routes import (
    RULE,
    BackendRef,
    Cors,
    EncodedMatch,
    HeaderEdit,
    Match,
    Mirror,
    PathEdit,
    Redirection,
    Route,
    RouteRule,
    ServiceRef,
    Session,
    ValueMatch,
)
from isthmus.model.xds import Resource
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import duration, embedded, message, packed
from isthmus.proxy.resources import resource
from isthmus.proxy.rules import problem

UNRESOLVED: Final = "unresolved"
"""Name of a cluster that never exists: requests for an invalid reference are answered with 500."""
OVERWRITE, APPEND = "OVERWRITE_IF_EXISTS_OR_ADD", "APPEND_IF_EXISTS_OR_ADD"
OWN_HEADERS: Final = ("x-envoy-external-address", "x-envoy-internal")
"""Headers that Envoy would add to a request, apart from ``x-forwarded-for`` and ``x-forwarded-proto``."""
CONNECT_RETRIES: Final = 2
"""Retries with another backend if none was reached. The request was not sent, so it is never executed twice."""
UNSENT: Final = ("connect-failure", "refused-stream")
"""Failures after which any request is safe to retry."""
PREVIOUS_HOSTS: Final = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
STATUS: Final = {
    301: "MOVED_PERMANENTLY",
    302: "FOUND",
    303: "SEE_OTHER",
    307: "TEMPORARY_REDIRECT",
    308: "PERMANENT_REDIRECT",
}

CORS_FILTER, SESSION_FILTER = "envoy.filters.http.cors", "envoy.filters.http.stateful_session"
CORS: Final = "envoy.extensions.filters.http.cors.v3.Cors"
CORS_POLICY: Final = "envoy.extensions.filters.http.cors.v3.CorsPolicy"
SESSION: Final = "envoy.extensions.filters.http.stateful_session.v3.StatefulSession"
SESSION_OF_ROUTE: Final = "envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute"
COOKIE: Final = "envoy.extensions.http.stateful_session.cookie.v3.CookieBasedSessionState"
HEADER: Final = "envoy.extensions.http.stateful_session.header.v3.HeaderBasedSessionState"

ROUTE: Final = "envoy.config.route.v3.Route"
MATCH: Final = "envoy.config.route.v3.RouteMatch"
HOST: Final = "envoy.config.route.v3.VirtualHost"

Cluster = Callable[[ServiceRef], str]
"""Function from a reference to the name of its Envoy cluster, or UNRESOLVED."""


def cluster_name(service: str, port: int, only: str = "") -> str:
    """Name of a Service port's Envoy cluster, listener and routes. ``only``: of one member's part of the cluster."""
    return f"{service}:{port}@{only}" if only else f"{service}:{port}"


def encoded(route: Route, number: int, rule: RouteRule, cluster: Cluster) -> tuple[Sequence[bytes], str]:
    """Return a message for each match of a rule, and the reason why Envoy would refuse one, empty if it would not.

    Messages differ only in the match and in a replaced prefix; the rest is encoded and checked once.
    """
    name, grpc = f"{route.owner}{RULE}{number + 1}", route.kind == "GRPCRoute"
    same = _bytes(**_rule(rule, cluster), **_filters(rule, name))
    bodies: list[bytes] = []
    for match in rule.matches:
        fields = _match(match, grpc=grpc)
        bodies.append(same + _bytes(name=name, match=fields, **_prefix_fields(rule, match)))
        wrong = problem(MATCH, message(MATCH)(**fields).SerializeToString()) if len(bodies) > 1 else ""
        if wrong := wrong or (problem(ROUTE, bodies[0]) if len(bodies) == 1 else ""):
            return (), wrong
    return bodies, ""


def _bytes(**fields: Any) -> bytes:
    encoded_route: bytes = message(ROUTE)(**fields).SerializeToString(deterministic=True)
    return encoded_route


def route_configuration(name: str, tried: Sequence[EncodedMatch], *, owner: str, unit: str) -> Resource:
    """Return the routes of a port from encoded matches, in the order in which they are tried. Without a match: 404.

    They are joined as bytes: building and checking the messages of thousands of matches would take seconds.
    """
    host: bytes = message(HOST)(name="all", domains=["*"]).SerializeToString(deterministic=True)
    field = message(HOST).DESCRIPTOR.fields_by_name["routes"].number
    host += b"".join(embedded(field, each.body) for each in tried)
    field = message(MESSAGES["routes"]).DESCRIPTOR.fields_by_name["virtual_hosts"].number
    more = embedded(field, host)
    return resource("routes", name, owner, unit, joined=more, request_headers_to_remove=OWN_HEADERS)


def _rule(rule: RouteRule, cluster: Cluster) -> dict[str, Any]:
    """Return the fields of a rule's route that do not depend on the match."""
    fields = _edited(rule.request, rule.response)
    weighted = [each for each in rule.backends if each.weight]
    if rule.redirect is not None:
        return fields | {"redirect": _redirect(rule.redirect)}
    if not weighted:
        return fields | {"direct_response": {"status": 500}}
    action = route_action("") | _patience(rule) | _rewrite(rule)
    if rule.mirrors:
        action["request_mirror_policies"] = [_mirror(each, cluster(each.to)) for each in rule.mirrors]
    if len(weighted) == 1:
        [backend] = weighted
        fields |= _edited(_joined(rule.request, backend.request), _joined(rule.response, backend.response))
        return fields | {"route": action | {"cluster": cluster(backend.to)}}
    clusters = [_weighted(each, cluster(each.to)) for each in weighted]
    return fields | {"route": action | {"weighted_clusters": {"clusters": clusters}}}


def route_filters() -> list[dict[str, Any]]:
    """Return the HTTP filters that rules configure, off for all others."""
    filters = {CORS_FILTER: packed(CORS), SESSION_FILTER: packed(SESSION)}
    return [{"name": name, "typed_config": config, "disabled": True} for name, config in filters.items()]


def _filters(rule: RouteRule, name: str) -> dict[str, Any]:
    """Return the field that switches filters on for a rule of this name, empty if it uses none."""
    configs: dict[str, Any] = {}
    if rule.cors is not None:
        configs[CORS_FILTER] = packed(CORS_POLICY, **_cors(rule.cors))
    if rule.session is not None:
        configs[SESSION_FILTER] = packed(
            SESSION_OF_ROUTE, stateful_session={"session_state": _state(rule.session, name)}
        )
    return {"typed_per_filter_config": configs} if configs else {}


def _cors(cors: Cors) -> dict[str, Any]:
    """Return the fields of a policy. A preflight of another origin is answered without allow-origin."""
    exposed = [each for each in cors.exposed if each != "*" or not cors.credentials]  # the API excludes both together
    return {
        "allow_origin_string_match": [_origin(each) for each in cors.origins],
        "allow_methods": ",".join(cors.methods),
        "allow_headers": ",".join(cors.headers),
        "expose_headers": ",".join(exposed),
        "max_age": str(cors.max_age),
        "allow_credentials": {"value": cors.credentials},
        "forward_not_matching_preflights": {"value": False},
    }


def _origin(origin: str) -> dict[str, Any]:
    scheme, wildcard, rest = origin.partition("*")
    if not wildcard or origin == "*":
        return {"exact": origin}
    return {"safe_regex": {"regex": f"{expressions.literal(scheme)}[^/:]+{expressions.literal(rest)}"}}


def _state(session: Session, name: str) -> dict[str, Any]:
    """Return the state of sessions. By default each rule has a cookie or header of its own."""
    token = session.name or f"isthmus-{crc32(name.encode()):08x}"
    if session.type == "Header":
        return {"name": "envoy.http.stateful_session.header", "typed_config": packed(HEADER, name=token)}
    cookie: dict[str, Any] = {"name": token, "path": "/"}
    if session.lifetime:
        cookie["ttl"] = duration(session.lifetime)
    return {"name": "envoy.http.stateful_session.cookie", "typed_config": packed(COOKIE, cookie=cookie)}


def _prefix_fields(rule: RouteRule, match: Match) -> dict[str, Any]:
    """Return the action field that replaces the matched prefix; empty if the rule does not."""
    if rule.redirect is not None:
        path, action = rule.redirect.path, "redirect"
    else:
        path, action = rule.rewrite.path if rule.rewrite is not None else None, "route"
    if (
        path is None
        or path.type != "ReplacePrefixMatch"
        or (action == "route" and not any(b.weight for b in rule.backends))
    ):
        return {}
    return {action: edit} if (edit := _prefix_edit(path, match)) else {}


def route_action(
    cluster: str, *, retry_on: Iterable[str] = UNSENT, attempts: int = CONNECT_RETRIES, **more: Any
) -> dict[str, Any]:
    """Return the fields that all route actions share. The hash of the client's address matters only to Maglev clusters.

    ``more``: fields of the retry policy.
    """
    fields: dict[str, Any] = {"cluster": cluster} if cluster else {}
    return fields | {
        "timeout": duration(0),
        "cluster_not_found_response_code": "INTERNAL_SERVER_ERROR",
        "hash_policy": [{"connection_properties": {"source_ip": True}}],
        "retry_policy": _retry_policy(retry_on, attempts, **more),
    }


def _retry_policy(on: Iterable[str], attempts: int, **more: Any) -> dict[str, Any]:
    predicate = {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": packed(PREVIOUS_HOSTS)}
    return {
        "retry_on": ",".join(on),
        "num_retries": {"value": attempts},
        "retry_host_predicate": [predicate],
        "host_selection_retry_max_attempts": 5,
        **more,
    }


def _patience(rule: RouteRule) -> dict[str, Any]:
    fields: dict[str, Any] = {"timeout": duration(rule.timeout)}
    more: dict[str, Any] = {}
    if rule.backend_timeout:
        more["per_try_timeout"] = duration(rule.backend_timeout)
    if rule.retries is None:
        return fields | {"retry_policy": _retry_policy(UNSENT, CONNECT_RETRIES, **more)}
    on = [*UNSENT, "reset"]
    if rule.retries.codes:
        on.append("retriable-status-codes")
        more["retriable_status_codes"] = rule.retries.codes
    if rule.retries.backoff:
        backoff = duration(rule.retries.backoff)
        more["retry_back_off"] = {"base_interval": backoff, "max_interval": duration(rule.retries.backoff * 10)}
    return fields | {"retry_policy": _retry_policy(on, rule.retries.attempts, **more)}


def _weighted(backend: BackendRef, cluster: str) -> dict[str, Any]:
    fields = {"name": cluster, "weight": {"value": backend.weight}}
    return fields | _edited(backend.request, backend.response)


def _mirror(mirror: Mirror, cluster: str) -> dict[str, Any]:
    """Return the policy of a mirror, in millionths, the smallest unit of Envoy."""
    millionths = round(1_000_000 * mirror.numerator / mirror.denominator)
    fraction = {"numerator": millionths, "denominator": "MILLION"}
    return {"cluster": cluster, "runtime_fraction": {"default_value": fraction}}


def _match(match: Match, *, grpc: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"grpc": {}} if grpc else {}
    prefix = match.path.rstrip("/")
    if match.path_type == "Exact":
        fields["path"] = match.path
    elif match.path_type == "RegularExpression":
        fields["safe_regex"] = {"regex": match.path}
    elif prefix:
        fields["path_separated_prefix"] = prefix
    else:
        fields["prefix"] = "/"
    headers = [{"name": each.name, "string_match": _text(each)} for each in match.headers]
    if match.method:
        headers.append({"name": ":method", "string_match": {"exact": match.method}})
    if headers:
        fields["headers"] = headers
    if match.query:
        fields["query_parameters"] = [{"name": each.name, "string_match": _text(each)} for each in match.query]
    return fields


def _text(condition: ValueMatch) -> dict[str, Any]:
    return {"safe_regex": {"regex": condition.value}} if condition.regex else {"exact": condition.value}


def _joined(first: HeaderEdit, second: HeaderEdit) -> HeaderEdit:
    return HeaderEdit(first.set + second.set, first.add + second.add, first.remove + second.remove)


def _edited(request: HeaderEdit, response: HeaderEdit) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for direction, edit in (("request", request), ("response", response)):
        options = [_header(name, value, OVERWRITE) for name, value in edit.set]
        options += [_header(name, value, APPEND) for name, value in edit.add]
        if options:
            fields[f"{direction}_headers_to_add"] = options
        if edit.remove:
            fields[f"{direction}_headers_to_remove"] = edit.remove
    return fields


def _header(name: str, value: str, action: str) -> dict[str, Any]:
    """Return a literal header. Percent signs are escaped, which Envoy would read as format commands."""
    header = {"key": name, "value": value.replace("%", "%%")}
    return {"header": header, "append_action": action, "keep_empty_value": True}


def _redirect(redirection: Redirection) -> dict[str, Any]:
    fields: dict[str, Any] = {"response_code": STATUS[redirection.status]}
    if redirection.scheme:
        fields["scheme_redirect"] = redirection.scheme
    if redirection.host:
        fields["host_redirect"] = redirection.host
    if redirection.port:
        fields["port_redirect"] = redirection.port
    if redirection.path is not None and redirection.path.type == "ReplaceFullPath":
        fields["path_redirect"] = redirection.path.value or "/"
    return fields


def _rewrite(rule: RouteRule) -> dict[str, Any]:
    if rule.rewrite is None:
        return {}
    fields: dict[str, Any] = {}
    if rule.rewrite.host:
        fields["host_rewrite_literal"] = rule.rewrite.host
    path = rule.rewrite.path
    if path is not None and path.type == "ReplaceFullPath":
        fields["regex_rewrite"] = _regex_edit(".*", path.value or "/")
    return fields


def _prefix_edit(path: PathEdit, match: Match) -> dict[str, Any]:
    """Return the rewrite of the matched prefix. If either prefix is empty or '/', no slash is doubled."""
    prefix, new = match.path.rstrip("/"), path.value.rstrip("/")
    if not prefix:
        return {"regex_rewrite": _regex_edit("^/*", f"{new}/")} if new else {}
    if new:
        return {"prefix_rewrite": new}
    return {"regex_rewrite": _regex_edit(f"^{expressions.literal(prefix)}/*", "/")}


def _regex_edit(pattern: str, value: str) -> dict[str, Any]:
    expression = pattern if pattern.startswith("^") else f"^{pattern}$"
    return {"pattern": {"regex": expression}, "substitution": value.replace("\\", "\\\\")}
