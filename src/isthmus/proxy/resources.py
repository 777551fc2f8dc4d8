"""Builds rows of xDS resources from fields; the only place that encodes them."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, Literal

from isthmus.model.xds import Resource, ResourceType
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import duration, message, packed

TCP_PROXY: Final = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
ADS: Final = {"ads": {}, "resource_api_version": "V3"}
"""A ``ConfigSource``: resources referred to are fetched on the same stream."""
OVERPROVISIONING: Final = 1_000_000
"""Percent. A priority with any healthy host takes all calls; Envoy's default would spill below 72 % healthy hosts."""
KEEPALIVE: Final = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
"""Seconds until an idle connection is probed, seconds between probes, and their number: a connection to a vanished host
ends after a minute. Neither end can notice by its own probes, because Envoy answers them."""
KEPT_ALIVE: Final = {"tcp_keepalive": {name: {"value": value} for name, value in KEEPALIVE.items()}}
"""An ``UpstreamConnectionOptions`` for clusters that are called by TCP."""
UNLIMITED: Final = 1_000_000


def bounded(*, max_connections: int = UNLIMITED) -> dict[str, Any]:
    """Circuit breakers without limits, except ``max_connections``. By default Envoy limits requests by itself."""
    limits = dict.fromkeys(("max_pending_requests", "max_requests", "max_retries"), UNLIMITED)
    limits["max_connections"] = max_connections
    return {"thresholds": [{name: {"value": limit} for name, limit in limits.items()}]}


def resource(
    type_: ResourceType, name: str, owner: str = "", unit: str = "", *, joined: bytes = b"", **fields: Any
) -> Resource:
    """Return a row of the table ``xds``; ``fields`` are those of the type's message, without its name.

    ``joined``: further fields, encoded and already checked by the rules of Envoy's API. Raises ValueError or TypeError
    for an invalid value of a field, which is a defect of the caller.
    """
    named = {"cluster_name" if type_ == "endpoints" else "name": name}
    body = message(MESSAGES[type_])(**named, **fields).SerializeToString(deterministic=True) + joined
    version = blake2b(body, digest_size=8).hexdigest()
    return Resource(type=type_, name=name, version=version, body=body, owner=owner, unit=unit, checked=bool(joined))


def kept_alive() -> list[dict[str, Any]]:
    """Return the ``SocketOption``s that enable keepalive on a listener's connections."""
    by_number = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): KEEPALIVE["keepalive_time"],
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): KEEPALIVE["keepalive_interval"],
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): KEEPALIVE["keepalive_probes"],
    }
    return [{"level": level, "name": name, "int_value": value} for (level, name), value in by_number.items()]


def address(host: str, port: int, *, protocol: Literal["TCP", "UDP"] = "TCP") -> dict[str, Any]:
    """Return an ``Address``."""
    return {"socket_address": {"address": host, "port_value": port, "protocol": protocol}}


def hosts(addresses: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return an ``LbEndpoint`` for each address."""
    return [{"endpoint": {"address": address(*each)}} for each in addresses]


def eds_cluster(
    name: str,
    owner: str,
    unit: str,
    *,
    connect_timeout: float,
    locality_weights: bool = False,
    panic: int = 0,
    **fields: Any,
) -> Resource:
    """Return a cluster whose endpoints arrive on the same stream and apply at once.

    ``connect_timeout``: seconds. ``locality_weights``: localities have weights. ``panic``: percentage of healthy
    endpoints below which unhealthy ones are called as well; 0 disables it.
    """
    weighted: dict[str, Any] = {"locality_weighted_lb_config": {}} if locality_weights else {}
    return resource(
        "cluster",
        name,
        owner,
        unit,
        type="EDS",
        eds_cluster_config={"eds_config": ADS},
        connect_timeout=duration(connect_timeout),
        common_lb_config={"healthy_panic_threshold": {"value": panic}, "update_merge_window": duration(0), **weighted},
        circuit_breakers=bounded(),
        **fields,
    )


def eds_endpoints(name: str, owner: str, unit: str, addresses: Iterable[tuple[str, int]]) -> Resource:
    """Return the endpoints of such a cluster in one locality."""
    endpoints = hosts(addresses)
    return eds_localities(name, owner, unit, [{"lb_endpoints": endpoints}] if endpoints else [])


def tcp_proxy(cluster: str, *, stat_prefix: str, attempts: int, idle: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return the filter that forwards bytes to a cluster. ``attempts``: of connecting.

    ``idle``: seconds without a byte after which a connection is closed; 0 disables it.
    """
    config = packed(
        TCP_PROXY,
        stat_prefix=stat_prefix,
        cluster=cluster,
        idle_timeout=duration(idle),
        max_connect_attempts={"value": attempts},
        **more,
    )
    return {"name": "envoy.filters.network.tcp_proxy", "typed_config": config}


def eds_localities(name: str, owner: str, unit: str, localities: list[dict[str, Any]]) -> Resource:
    """Return the endpoints of such a cluster. A priority gets calls as long as one of its endpoints is healthy."""
    policy = {"overprovisioning_factor": {"value": OVERPROVISIONING}}
    return resource("endpoints", name, owner, unit, endpoints=localities, policy=policy)
