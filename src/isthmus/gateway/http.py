"""HTTP and gRPC between islands, at the node that calls and at the gateway. Pure.

The node retries a request if the gateway's connection is lost before any answer, provided that this is safe
(:data:`RETRIED`). The gateway balances each request by itself, and adds a header with the caller's cluster.

Servers can trust that header: it is the member whose filter chain accepted the connection, by its certificate. The
gateway removes a client's own header of that name, also in spellings that servers equate (CGI and WSGI have no hyphen).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, Final

from isthmus.model.names import ClusterName
from isthmus.proxy.clusters import http_options
from isthmus.proxy.listeners import http_manager
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.routing import OVERWRITE, OWN_HEADERS, UNSENT, route_action
from isthmus.proxy.tracing import UNTRACED

CALLER: Final = "x-isthmus-cluster"
"""Request header with the verified cluster of the caller."""
SPELLINGS: Final = tuple(f"x{first}isthmus{second}cluster" for first, second in product("-_", repeat=2))
TARGET: Final = "x-isthmus-target"
"""Request header within the gateway with the destination's Envoy cluster. Callers cannot set it, pods do not receive
it."""
TARGET_END: Final = " http"
"""Suffix of the Envoy cluster names used for HTTP; the rest of the name is the SNI."""
HEADER_MUTATION: Final = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
RETRIED: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE")
"""Idempotent methods (RFC 9110 section 9.2.2)."""
HOSTLESS: Final = "localhost"
"""Host of a request of HTTP/1.0 that has none even here: nodes of ours add the service's name."""
UNUSED: Final = 5.0
"""Seconds without a request after which a connection to a gateway is closed. A gateway accepts 10,000 of a cluster: so
2,000 clients may come and go each second, which is more handshakes than two cores do."""
RETRY_AFTER: Final = 0.002
"""Base pause before a retry in seconds. It is short, since another gateway gets the retry."""


def calling_options(*, preconnect: bool) -> dict[str, Any]:
    """Return fields of the Envoy clusters by which requests are sent to gateways.

    Each client has its own connections, new or kept open by itself: a connection opened earlier, or left by another
    client's request, could lead to a gateway that is gone by now. With ``preconnect`` that is accepted.
    """
    if preconnect:
        return {"typed_extension_protocol_options": http_options(http2=False)}
    # Envoy keeps a connection when its client has gone, and nobody else may use it: only the timeout ends it.
    options = http_options(http2=False, idle=UNUSED)
    return {"typed_extension_protocol_options": options, "connection_pool_per_downstream_connection": True}


def calling(cluster: str, *, attempts: int, host: str, tracing: Mapping[str, Any] = UNTRACED) -> dict[str, Any]:
    """Return a node's network filter that sends requests to an island's gateways.

    A request that no gateway received is retried; one that was sent and not answered, only if its method is idempotent.
    There is no retry after the first byte of an answer, nor of a body larger than Envoy's buffer.
    ``host``: that of requests of HTTP/1.0 without one. ``tracing``: fields of the connection manager.
    """
    action = partial(route_action, cluster, attempts=attempts, retry_back_off={"base_interval": duration(RETRY_AFTER)})
    methods = {"name": ":method", "string_match": {"safe_regex": {"regex": "|".join(RETRIED)}}}
    routes = [
        {
            "match": {"prefix": "/", "headers": [methods]},
            "route": action(retry_on=(*UNSENT, "reset")),
        },
        {"match": {"prefix": "/"}, "route": action(retry_on=(*UNSENT, "reset-before-request"))},
    ]
    configuration = {
        "name": cluster,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        "request_headers_to_remove": OWN_HEADERS,
    }
    return http_manager(host=host, route_config=configuration, trusted=True, **tracing)


def manager(caller: ClusterName, cluster: str = "", tracing: Mapping[str, Any] = UNTRACED) -> dict[str, Any]:
    """Return a gateway's network filter for a member's requests to an Envoy cluster; by default that of the SNI.

    The gateway adds no ``x-forwarded-for``, since it sees only the other island's node. It sets ``x-forwarded-proto``
    to http if no proxy has set it: Envoy would mistake the TLS between islands for the client's.
    """
    action = route_action("") | destination(cluster)
    routes = {
        "name": cluster or f"http {caller}",
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": action}]}],
        "request_headers_to_remove": [*SPELLINGS, TARGET, *OWN_HEADERS],  # removed before the next ones are added
        "request_headers_to_add": [{"header": {"key": CALLER, "value": caller}, "append_action": OVERWRITE}],
    }
    return http_manager(
        host=HOSTLESS,
        route_config=routes,
        trusted=True,
        early_header_mutation_extensions=before_routing(
            ("x-forwarded-proto", "http", "ADD_IF_ABSENT"), by_sni(TARGET_END)
        ),
        **tracing,
    )


def forbidding() -> dict[str, Any]:
    """Return a gateway's network filter that answers every request by 403, of gRPC by PERMISSION_DENIED.

    It closes the connection after a request, so that the policy in force judges each request.
    """
    body = {"inline_string": "an ExportPolicy does not allow this caller\n"}
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 403, "body": body}}
    hosts = [{"name": "all", "domains": ["*"], "routes": [route]}]
    return http_manager(
        host=HOSTLESS,
        route_config={"name": "forbidden", "virtual_hosts": hosts},
        trusted=True,
        common_http_protocol_options={"idle_timeout": duration(UNUSED), "max_requests_per_connection": {"value": 1}},
    )


def destination(cluster: str) -> dict[str, Any]:
    """Return the action fields for a destination: an Envoy cluster, or by default that of the SNI."""
    return {"cluster": cluster} if cluster else {"cluster_header": TARGET}


def by_sni(end: str) -> tuple[str, str, str]:
    """Return the header change that selects the Envoy cluster named after the request's SNI and this suffix."""
    return TARGET, f"%REQUESTED_SERVER_NAME%{end}", OVERWRITE


def before_routing(*changes: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return an extension that changes headers before routing; each change is (name, value, append action)."""
    mutations = [
        {"append": {"header": {"key": name, "value": value}, "append_action": action}}
        for name, value, action in changes
    ]
    return [
        {
            "name": "envoy.http.early_header_mutation.header_mutation",
            "typed_config": packed(HEADER_MUTATION, mutations=mutations),
        }
    ]
