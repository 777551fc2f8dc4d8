"""HTTP and gRPC between islands, at the node that calls and at the gateway. Pure.

The node sends a request again where the gateway's connection is lost before anything was answered, if that can do no
harm (:data:`RETRIED`). The gateway balances each request by itself, and adds the caller's cluster to it.

That header is the gateway's word: it is the member whose filter chain took the connection, by its certificate, and what
a client sends under its name, or under a spelling that servers take for it (CGI and WSGI know no hyphen), is removed.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, Final, Literal

from isthmus.model.names import ClusterName
from isthmus.model.services import Port
from isthmus.proxy.clusters import http_options
from isthmus.proxy.derived import HTTP2
from isthmus.proxy.listeners import http_manager
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.routing import OVERWRITE, OWN_HEADERS, UNSENT, route_action

CALLER: Final = "x-isthmus-cluster"
"""Header of a request: the cluster that calls, verified."""
SPELLINGS: Final = tuple(f"x{one}isthmus{two}cluster" for one, two in product("-_", repeat=2))
TARGET: Final = "x-isthmus-target"
"""Header of a request within the gateway: the cluster of Envoy that it goes to. Callers do not choose it, pods do not
get it."""
TARGET_END: Final = " http"
"""How the names of clusters of Envoy that are reached so end, behind the SNI."""
HEADER_MUTATION: Final = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
RETRIED: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE")
"""Methods that have the same effect once or several times (RFC 9110 section 9.2.2)."""
RETRY_AFTER: Final = 0.002
"""Seconds until a request is sent again, about: it goes to another gateway, which has no need of a rest."""
HTTP1: Final = frozenset({"http", "kubernetes.io/ws"})


def version(port: Port) -> Literal[1, 2] | None:
    """Whether a port's pods speak HTTP (1), or HTTP/2 alone (2); None: neither, as far as is declared.

    By its ``appProtocol``, else by its name: ``http``, ``grpc``, or one of these and a hyphen before the rest.
    """
    declared = port.app_protocol or port.name.partition("-")[0]
    if port.protocol != "TCP":
        return None
    return 2 if declared in HTTP2 else 1 if declared in HTTP1 else None


def calling_options(*, preconnect: bool) -> dict[str, Any]:
    """Fields of clusters of Envoy by which requests are sent to gateways.

    Each client has connections of its own, so that its request goes on one that was just made, or that it has kept
    itself: one that was made before, or that another client's request left, could meet a gateway that is gone by now.
    With ``preconnect`` that is accepted.
    """
    options = {"typed_extension_protocol_options": http_options(http2=False)}
    return options if preconnect else {"connection_pool_per_downstream_connection": True} | options


def calling(cluster: str, *, attempts: int) -> dict[str, Any]:
    """The network filter of a node that sends requests to the gateways of an island.

    A request that no gateway got is sent to another one; one that was sent and not answered only where its method
    allows it. Nothing is sent again once a byte of the answer is there, or whose body is larger than Envoy's buffer.
    """
    again = partial(route_action, cluster, attempts=attempts, retry_back_off={"base_interval": duration(RETRY_AFTER)})
    methods = {"name": ":method", "string_match": {"safe_regex": {"regex": "|".join(RETRIED)}}}
    routes = [
        {
            "match": {"prefix": "/", "headers": [methods]},
            "route": again(retry_on=(*UNSENT, "reset")),
        },
        {"match": {"prefix": "/"}, "route": again(retry_on=(*UNSENT, "reset-before-request"))},
    ]
    configuration = {
        "name": cluster,
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        "request_headers_to_remove": OWN_HEADERS,
    }
    return http_manager(route_config=configuration, trusted=True)


def manager(caller: ClusterName, cluster: str = "") -> dict[str, Any]:
    """The network filter that sends requests of a member to a cluster of Envoy; without one to that of their SNI.

    The gateway adds no ``x-forwarded-for``: it sees a node of another island. Without a mark of another proxy a request
    is plain HTTP, as its client sent it; Envoy would take the TLS between the islands for the client's.
    """
    action = route_action("") | destination(cluster)
    routes = {
        "name": cluster or f"http {caller}",
        "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": action}]}],
        "request_headers_to_remove": [*SPELLINGS, TARGET, *OWN_HEADERS],  # before the next are added
        "request_headers_to_add": [{"header": {"key": CALLER, "value": caller}, "append_action": OVERWRITE}],
    }
    return http_manager(
        route_config=routes,
        trusted=True,
        early_header_mutation_extensions=before_routing(
            ("x-forwarded-proto", "http", "ADD_IF_ABSENT"), by_sni(TARGET_END)
        ),
    )


def destination(cluster: str) -> dict[str, Any]:
    """The part of a route's action that says where to: a cluster of Envoy; without one that of the SNI."""
    return {"cluster": cluster} if cluster else {"cluster_header": TARGET}


def by_sni(end: str) -> tuple[str, str, str]:
    """The change that makes a request go to the cluster of its SNI, whose name has this end."""
    return TARGET, f"%REQUESTED_SERVER_NAME%{end}", OVERWRITE


def before_routing(*changes: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Changes of headers before a route is chosen: of each its name, value and what is done where it is there."""
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
