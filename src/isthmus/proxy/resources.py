"""Makes rows of xDS resources out of fields; the one place that encodes them."""

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
"""A ``ConfigSource``: what refers to further resources gets them on the same stream."""
OVERPROVISIONING: Final = 1_000_000
"""Percent: a priority with any host takes all calls (Envoy's default would spill below 72 % of healthy hosts)."""
KEEPALIVE: Final = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
"""Seconds until an idle connection is probed, and between probes, and their number: one to a host that has vanished
ends after a minute. An end beyond Envoy cannot notice: its own probes are answered by Envoy."""
KEPT_ALIVE: Final = {"tcp_keepalive": {name: {"value": value} for name, value in KEEPALIVE.items()}}
"""An ``UpstreamConnectionOptions``, of clusters that are called by TCP."""
UNLIMITED: Final = 1_000_000


def bounded(*, max_connections: int = UNLIMITED) -> dict[str, Any]:
    """Circuit breakers, which have limits by default: whose calls are limited is not Envoy's to decide."""
    limits = dict.fromkeys(("max_pending_requests", "max_requests", "max_retries"), UNLIMITED)
    limits["max_connections"] = max_connections
    return {"thresholds": [{name: {"value": limit} for name, limit in limits.items()}]}


def resource(type_: ResourceType, name: str, owner: str = "", unit: str = "", **fields: Any) -> Resource:
    """A row of the table ``xds``; ``fields`` are those of the type's message, without its name.

    Raises ValueError or TypeError where a field cannot have such a value, which is a defect of the caller.
    """
    named = {"cluster_name" if type_ == "endpoints" else "name": name}
    body = message(MESSAGES[type_])(**named, **fields).SerializeToString(deterministic=True)
    version = blake2b(body, digest_size=8).hexdigest()
    return Resource(type=type_, name=name, version=version, body=body, owner=owner, unit=unit)


def kept_alive() -> list[dict[str, Any]]:
    """The ``SocketOption``s by which a listener's connections are probed as well."""
    by_number = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): KEEPALIVE["keepalive_time"],
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): KEEPALIVE["keepalive_interval"],
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): KEEPALIVE["keepalive_probes"],
    }
    return [{"level": level, "name": name, "int_value": value} for (level, name), value in by_number.items()]


def address(host: str, port: int, *, protocol: Literal["TCP", "UDP"] = "TCP") -> dict[str, Any]:
    """An ``Address``."""
    return {"socket_address": {"address": host, "port_value": port, "protocol": protocol}}


def hosts(addresses: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """An ``LbEndpoint`` for each address."""
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
    """A cluster whose endpoints come on the same stream, at once, and which are followed also when few are healthy.

    ``connect_timeout``: seconds. ``locality_weights``: whether localities have weights. ``panic``: percent of healthy
    endpoints below which the others are called as well.
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
    """The endpoints of such a cluster, all in one locality."""
    found = hosts(addresses)
    return eds_localities(name, owner, unit, [{"lb_endpoints": found}] if found else [])


def tcp_proxy(cluster: str, *, stat_prefix: str, attempts: int, idle: float = 0.0, **more: Any) -> dict[str, Any]:
    """The filter that passes bytes on to a cluster, with so many attempts to connect. ``idle``: seconds without a byte
    after which a connection ends; 0: it stays."""
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
    """The endpoints of such a cluster; a priority is followed as long as one of its endpoints is healthy."""
    policy = {"overprovisioning_factor": {"value": OVERPROVISIONING}}
    return resource("endpoints", name, owner, unit, endpoints=localities, policy=policy)
