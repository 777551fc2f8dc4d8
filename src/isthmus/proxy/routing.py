"""Routes as Envoy's routes: a list of matches in order, each with what becomes of the request. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from isthmus.model.routes import BackendRef, HeaderEdit, Match, Mirror, PathEdit, RouteRule, ServiceRef, ValueMatch
from isthmus.model.xds import Resource
from isthmus.proxy.attachment import Entry
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import resource

UNRESOLVED: Final = "unresolved"
"""A cluster that never is: what goes to a reference that does not hold is answered with 500."""
OVERWRITE, APPEND = "OVERWRITE_IF_EXISTS_OR_ADD", "APPEND_IF_EXISTS_OR_ADD"
OWN_HEADERS: Final = ("x-envoy-external-address", "x-envoy-internal")
"""What Envoy would add to a request beside ``x-forwarded-for`` and ``x-forwarded-proto``."""
CONNECT_RETRIES: Final = 2
"""Attempts with another backend where none was reached; the request was not sent, so nothing happens twice."""
UNSENT: Final = ("connect-failure", "refused-stream")
"""Failures after which a request is sent again, whatever it is."""
PREVIOUS_HOSTS: Final = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
STATUS: Final = {
    301: "MOVED_PERMANENTLY",
    302: "FOUND",
    303: "SEE_OTHER",
    307: "TEMPORARY_REDIRECT",
    308: "PERMANENT_REDIRECT",
}

Cluster = Callable[[Entry, ServiceRef], str]
"""The cluster that a reference means, or UNRESOLVED."""


def cluster_name(service: str, port: int, only: str = "") -> str:
    """What Envoy's cluster of a port of a Service is called, and its listener and routes; or of one cluster's part."""
    return f"{service}:{port}@{only}" if only else f"{service}:{port}"


def route_configuration(
    name: str, tried: Sequence[Entry], cluster: Cluster, *, unit: str, default: str = ""
) -> Resource:
    """The routes of a port. What nothing matches is answered with 404, or goes to the cluster ``default``."""
    found = [_route(entry, cluster) for entry in tried]
    if default:
        found.append({"name": "default", "match": {"prefix": "/"}, "route": route_action(default)})
    host = {"name": "all", "domains": ["*"], "routes": found}
    owner = min((entry.route for entry in tried), key=lambda route: route.created).owner if tried else ""
    return resource("routes", name, owner, unit, virtual_hosts=[host], request_headers_to_remove=OWN_HEADERS)


def _route(entry: Entry, cluster: Cluster) -> dict[str, Any]:
    rule = entry.rule
    found: dict[str, Any] = {"name": entry.name, "match": _match(entry.match, grpc=entry.route.kind == "GRPCRoute")}
    found |= _edited(rule.request, rule.response)
    weighted = [each for each in rule.backends if each.weight]
    if rule.redirect is not None:
        return found | {"redirect": _redirect(rule, entry.match)}
    if not weighted:
        return found | {"direct_response": {"status": 500}}
    action = route_action("") | _patience(rule) | _rewrite(rule, entry.match)
    if rule.mirrors:
        action["request_mirror_policies"] = [_mirror(each, cluster(entry, each.to)) for each in rule.mirrors]
    if len(weighted) == 1:
        [backend] = weighted
        found |= _edited(_joined(rule.request, backend.request), _joined(rule.response, backend.response))
        return found | {"route": action | {"cluster": cluster(entry, backend.to)}}
    clusters = [_weighted(each, cluster(entry, each.to)) for each in weighted]
    return found | {"route": action | {"weighted_clusters": {"clusters": clusters}}}


def route_action(
    cluster: str, *, retry_on: Iterable[str] = UNSENT, attempts: int = CONNECT_RETRIES, **more: Any
) -> dict[str, Any]:
    """What all actions have. A client's address is hashed only for clusters that balance by it.

    ``more``: fields of the retries.
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
    found: dict[str, Any] = {"timeout": duration(rule.timeout)}
    more: dict[str, Any] = {}
    if rule.backend_timeout:
        more["per_try_timeout"] = duration(rule.backend_timeout)
    if rule.retries is None:
        return found | {"retry_policy": _retry_policy(UNSENT, CONNECT_RETRIES, **more)}
    on = [*UNSENT, "reset"]
    if rule.retries.codes:
        on.append("retriable-status-codes")
        more["retriable_status_codes"] = rule.retries.codes
    if rule.retries.backoff:
        backoff = duration(rule.retries.backoff)
        more["retry_back_off"] = {"base_interval": backoff, "max_interval": duration(rule.retries.backoff * 10)}
    return found | {"retry_policy": _retry_policy(on, rule.retries.attempts, **more)}


def _weighted(backend: BackendRef, cluster: str) -> dict[str, Any]:
    found = {"name": cluster, "weight": {"value": backend.weight}}
    return found | _edited(backend.request, backend.response)


def _mirror(mirror: Mirror, cluster: str) -> dict[str, Any]:
    """Envoy counts in parts of a million at most."""
    millionths = round(1_000_000 * mirror.numerator / mirror.denominator)
    fraction = {"numerator": millionths, "denominator": "MILLION"}
    return {"cluster": cluster, "runtime_fraction": {"default_value": fraction}}


def _match(match: Match, *, grpc: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"grpc": {}} if grpc else {}
    prefix = match.path.rstrip("/")
    if match.path_type == "Exact":
        found["path"] = match.path
    elif match.path_type == "RegularExpression":
        found["safe_regex"] = {"regex": match.path}
    elif prefix:
        found["path_separated_prefix"] = prefix
    else:
        found["prefix"] = "/"
    headers = [{"name": each.name, "string_match": _text(each)} for each in match.headers]
    if match.method:
        headers.append({"name": ":method", "string_match": {"exact": match.method}})
    if headers:
        found["headers"] = headers
    if match.query:
        found["query_parameters"] = [{"name": each.name, "string_match": _text(each)} for each in match.query]
    return found


def _text(wanted: ValueMatch) -> dict[str, Any]:
    return {"safe_regex": {"regex": wanted.value}} if wanted.regex else {"exact": wanted.value}


def _joined(first: HeaderEdit, second: HeaderEdit) -> HeaderEdit:
    return HeaderEdit(first.set + second.set, first.add + second.add, first.remove + second.remove)


def _edited(request: HeaderEdit, response: HeaderEdit) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for direction, edit in (("request", request), ("response", response)):
        options = [_header(name, value, OVERWRITE) for name, value in edit.set]
        options += [_header(name, value, APPEND) for name, value in edit.add]
        if options:
            found[f"{direction}_headers_to_add"] = options
        if edit.remove:
            found[f"{direction}_headers_to_remove"] = edit.remove
    return found


def _header(name: str, value: str, action: str) -> dict[str, Any]:
    """A literal header: Envoy would take a percent sign for one of its commands."""
    header = {"key": name, "value": value.replace("%", "%%")}
    return {"header": header, "append_action": action, "keep_empty_value": True}


def _redirect(rule: RouteRule, match: Match) -> dict[str, Any]:
    assert rule.redirect is not None
    to = rule.redirect
    found: dict[str, Any] = {"response_code": STATUS[to.status]}
    if to.scheme:
        found["scheme_redirect"] = to.scheme
    if to.host:
        found["host_redirect"] = to.host
    if to.port:
        found["port_redirect"] = to.port
    if to.path is not None and to.path.type == "ReplaceFullPath":
        found["path_redirect"] = to.path.value or "/"
    elif to.path is not None:
        found |= _prefix_edit(to.path, match)
    return found


def _rewrite(rule: RouteRule, match: Match) -> dict[str, Any]:
    if rule.rewrite is None:
        return {}
    found: dict[str, Any] = {}
    if rule.rewrite.host:
        found["host_rewrite_literal"] = rule.rewrite.host
    path = rule.rewrite.path
    if path is not None and path.type == "ReplaceFullPath":
        found["regex_rewrite"] = _regex_edit(".*", path.value or "/")
    elif path is not None:
        found |= _prefix_edit(path, match)
    return found


def _prefix_edit(path: PathEdit, match: Match) -> dict[str, Any]:
    """The prefix in place of the one that matched. Without it, or with '/', no slash is doubled."""
    prefix, new = match.path.rstrip("/"), path.value.rstrip("/")
    if not prefix:
        return {"regex_rewrite": _regex_edit("^/*", f"{new}/")} if new else {}
    if new:
        return {"prefix_rewrite": new}
    return {"regex_rewrite": _regex_edit(f"^{re.escape(prefix)}/*", "/")}


def _regex_edit(pattern: str, value: str) -> dict[str, Any]:
    expression = pattern if pattern.startswith("^") else f"^{pattern}$"
    return {"pattern": {"regex": expression}, "substitution": value.replace("\\", "\\\\")}
