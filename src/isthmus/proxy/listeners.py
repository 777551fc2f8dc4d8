"""Listeners of HTTP for a port of a Service: a filter chain for each group of callers with routes of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from isthmus.model.xds import Resource
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import ADS, address, resource

HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER: Final = "envoy.extensions.filters.http.router.v3.Router"
STAT_PREFIX: Final = "isthmus"
BUFFER: Final = {"value": 65_536}
"""Bytes that Envoy buffers of a connection whose other side is slow."""


class Chain(NamedTuple):
    """Callers by their addresses, and the name of the routes for their requests; without addresses: everybody else."""

    routes: str
    callers: tuple[str, ...]


def http_listener(
    name: str, addresses: Sequence[tuple[str, int]], chains: Iterable[Chain], owner: str, unit: str
) -> Resource:
    """A listener on one or several addresses. Two processes may have it at once (``reuse_port``)."""
    (first, *more) = [address(host, port) for host, port in addresses]
    return resource(
        "listener",
        name,
        owner,
        unit,
        address=first,
        additional_addresses=[{"address": each} for each in more],
        filter_chains=[_chain(each) for each in chains],
        enable_reuse_port={"value": True},
        per_connection_buffer_limit_bytes=BUFFER,
        traffic_direction="OUTBOUND",
        stat_prefix=STAT_PREFIX,
    )


def http_manager(*, trusted: bool = False, **fields: Any) -> dict[str, Any]:
    """The network filter of HTTP, with routes as its fields have them.

    It is as if no proxy were there: nothing of the answer is changed, and no stream is cut for being idle.
    ``trusted``: what callers write to ``x-forwarded-for`` and ``x-forwarded-proto`` stays as it is.
    """
    router = packed(ROUTER, suppress_envoy_headers=True, dynamic_stats={"value": False})  # a tenth of a request's time
    manager = packed(
        HCM,
        stat_prefix=STAT_PREFIX,
        http_filters=[{"name": "envoy.filters.http.router", "typed_config": router}],
        upgrade_configs=[{"upgrade_type": "websocket"}],
        server_header_transformation="PASS_THROUGH",
        generate_request_id={"value": False},
        use_remote_address={"value": not trusted},
        normalize_path={"value": True},
        stream_idle_timeout=duration(0),
        http_protocol_options={"accept_http_10": True},
        **fields,
    )
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}


def _chain(chain: Chain) -> dict[str, Any]:
    manager = http_manager(rds={"route_config_name": chain.routes, "config_source": ADS})
    found: dict[str, Any] = {
        "name": chain.routes,
        "filters": [manager],
    }
    if chain.callers:
        ranges = [
            {"address_prefix": each, "prefix_len": {"value": 128 if ":" in each else 32}} for each in chain.callers
        ]
        found["filter_chain_match"] = {"source_prefix_ranges": ranges}
    return found
