"""Builds HTTP listeners for ports of Services. Bytes that are not HTTP pass them unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.model.names import ServiceName, split
from isthmus.model.xds import Resource
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import ADS, address, resource, tcp_proxy
from isthmus.proxy.routing import route_filters
from isthmus.proxy.tracing import UNTRACED

HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER: Final = "envoy.extensions.filters.http.router.v3.Router"
HTTP_INSPECTOR: Final = "envoy.extensions.filters.listener.http_inspector.v3.HttpInspector"
INSPECTED: Final = ("http/1.0", "http/1.1", "h2c")
"""The inspector's names of the protocols that are HTTP."""
SILENT: Final = 90.0
"""Seconds for which a new connection may be silent before it is passed on as bytes, since its server may speak first.
HTTP clients keep unused connections for as long (Go 90 s, .NET 60 s), and routes must apply to their requests."""
CONNECT_ATTEMPTS: Final = 3
"""Connect attempts for connections passed on as bytes, as for requests."""
STAT_PREFIX: Final = "isthmus"
BUFFER: Final = {"value": 65_536}
"""Bytes that Envoy buffers of a connection whose other side is slow."""


def http_listener(
    name: str,
    addresses: Sequence[tuple[str, int]],
    owner: str,
    unit: str,
    *,
    cluster: str,
    host: str,
    tracing: Mapping[str, Any] = UNTRACED,
) -> Resource:
    """Return a listener on one or several addresses, which uses the routes of the same name.

    Two processes may open it at once (``reuse_port``). Bytes that are not HTTP are passed on to ``cluster`` unchanged.
    ``tracing``: fields of the connection manager (:mod:`isthmus.proxy.tracing`).
    """
    (first, *more) = [address(host, port) for host, port in addresses]
    manager = http_manager(
        host=host, filters=route_filters(), rds={"route_config_name": name, "config_source": ADS}, **tracing
    )
    return resource(
        "listener",
        name,
        owner,
        unit,
        address=first,
        additional_addresses=[{"address": each} for each in more],
        listener_filters=[{"name": "envoy.filters.listener.http_inspector", "typed_config": packed(HTTP_INSPECTOR)}],
        listener_filters_timeout=duration(SILENT),
        continue_on_listener_filters_timeout=True,
        filter_chains=[
            {"name": name, "filter_chain_match": {"application_protocols": INSPECTED}, "filters": [manager]},
        ],
        default_filter_chain={
            "name": f"{name} bytes",
            "filters": [tcp_proxy(cluster, stat_prefix=STAT_PREFIX, attempts=CONNECT_ATTEMPTS)],
        },
        enable_reuse_port={"value": True},
        per_connection_buffer_limit_bytes=BUFFER,
        traffic_direction="OUTBOUND",
        stat_prefix=STAT_PREFIX,
    )


def host_of(service: ServiceName) -> str:
    """Host of a service in requests that have none."""
    namespace, name = split(service)
    return f"{name}.{namespace}"


def http_manager(
    *, host: str, trusted: bool = False, filters: Sequence[Mapping[str, Any]] = (), **fields: Any
) -> dict[str, Any]:
    """Return the HTTP connection manager; ``fields`` configure its routes. ``filters``: before the router.

    It is transparent: answers are not changed, and idle streams are not closed. ``trusted``: keep the callers'
    ``x-forwarded-for`` and ``x-forwarded-proto``. ``host``: for requests of HTTP/1.0 without one (RFC 1945), which
    Envoy sends on as HTTP/1.1, where it is required.
    """
    router = packed(ROUTER, suppress_envoy_headers=True, dynamic_stats={"value": False})  # a tenth of a request's time
    manager = packed(
        HCM,
        stat_prefix=STAT_PREFIX,
        http_filters=[*filters, {"name": "envoy.filters.http.router", "typed_config": router}],
        upgrade_configs=[{"upgrade_type": "websocket"}],
        server_header_transformation="PASS_THROUGH",
        generate_request_id={"value": False},
        use_remote_address={"value": not trusted},
        normalize_path={"value": True},
        stream_idle_timeout=duration(0),
        http_protocol_options={"accept_http_10": True, "default_host_for_http_10": host},
        **fields,
    )
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
