"""UDP between islands: datagrams in tunnels of CONNECT-UDP (RFC 9298), over the mutual TLS to a gateway. Pure.

    pod ── datagrams ──▶ listener ─▶ HTTP/2 ─▶ internal listener ══ TLS, by SNI ══▶ gateway ── datagrams ──▶ pod

A client's address and port are a session: a stream of HTTP/2, which the gateway gives a pod. The sessions of a port
that begin within RENEWED_AFTER share a connection to a gateway (of each worker thread of the node's Envoy). It passes a
listener within Envoy that treats it as one of TCP: it has the SNI of the port, gateways that fail are passed over for
others, and the caller is authorised by the handshake, before the gateway reads a byte of HTTP. Nothing that a caller
writes in a request chooses where its datagrams go: the SNI does.

UDP has nobody who would notice a gateway that has fallen silent. So the node pings each of these connections, and ends
one that does not answer; its sessions end with it, and the next datagram of each begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from isthmus.gateway.http import before_routing, by_sni, destination
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import HTTP_OPTIONS
from isthmus.proxy.listeners import HCM, ROUTER
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import UNLIMITED, address, resource

RECEIVE: Final = {"max_rx_datagram_size": {"value": 65_535}}
"""What Envoy reads of pods at most; by default it drops what is larger than 1,500 bytes."""
UDP_PROXY: Final = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
ROUTE: Final = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
CAPSULES: Final = "envoy.extensions.filters.udp.udp_proxy.session.http_capsule.v3.FilterConfig"
UPGRADE: Final = "CONNECT-UDP"
STAT_PREFIX: Final = "udp"
TARGET_END: Final = " udp"
"""How the names of clusters of Envoy that are reached so end, behind the SNI."""
PING_EVERY: Final = 0.2
"""Seconds between two pings of a node's connection to a gateway."""
IDLE: Final = 60.0
"""Seconds without a datagram either way after which a session ends, and without a session a connection."""
RENEWED_AFTER: Final = 10.0
"""Seconds after which new sessions get another connection: through all gateways, and the island itself again where
another one was called in its place."""
GATEWAY_PING_EVERY: Final = 10.0
"""Seconds between two pings of a gateway's connection, and for an answer: a node that has vanished keeps no streams."""
STREAM_IDLE: Final = 2 * IDLE
"""Seconds without a datagram either way after which a gateway ends a stream that its node has not: it holds a port."""
CONNECT_ATTEMPTS: Final = 4
"""Streams that are begun for a session until its datagrams are dropped."""
RETRY_AFTER: Final = 0.02
WAITING: Final = {"max_buffered_datagrams": {"value": 16}, "max_buffered_bytes": {"value": 16_384}}
"""What a session keeps until its stream is there; more is dropped."""
SESSIONS: Final = 4_096
"""Of one port at a node, together with its connections to gateways: whoever sends from ever new ports takes no more of
Envoy. As many streams a connection has at most, so that one is enough for a node."""


def tunnel(row: IslandListener) -> str:
    """The listener within Envoy that the tunnels of a port pass."""
    return f"tunnel of {row.name}"


def calling(row: IslandListener, sni: str, *, patience: float) -> Iterator[Resource]:
    """The listener for the datagrams of pods, and the cluster that is :func:`tunnel`.

    ``patience``: seconds that a connect to a gateway has, of any island that is called. A ping has twice as many: one
    of a new connection has to outlive a connect that fails, and to end a connection for nothing costs all its sessions.
    """
    datagrams, owner = f"datagrams of {row.name}", f"ServiceImport {row.import_of}"
    yield _listener(row, sni, datagrams, owner)
    within = {"address": {"envoy_internal_address": {"server_listener_name": tunnel(row)}}}
    yield resource(
        "cluster",
        datagrams,
        owner,
        row.name,
        type="STATIC",
        connect_timeout=duration(patience),
        load_assignment={"cluster_name": datagrams, "endpoints": [{"lb_endpoints": [{"endpoint": within}]}]},
        typed_extension_protocol_options={HTTP_OPTIONS: _options(patience)},
        circuit_breakers=_bounds(),
    )


def _listener(row: IslandListener, sni: str, datagrams: str, owner: str) -> Resource:
    """Where pods send, with a tunnel for each session, by the cluster ``datagrams``."""
    tunneling = {
        "proxy_host": sni,
        "target_host": sni,
        "default_target_port": row.port,
        "retry_options": {
            "max_connect_attempts": {"value": CONNECT_ATTEMPTS},
            "backoff_options": {"base_interval": duration(RETRY_AFTER)},
        },
        "buffer_options": WAITING,
    }
    proxy = packed(
        UDP_PROXY,
        stat_prefix=STAT_PREFIX,
        matcher={"on_no_match": {"action": {"name": "route", "typed_config": packed(ROUTE, cluster=datagrams)}}},
        idle_timeout=duration(IDLE),
        session_filters=[{"name": "envoy.filters.udp.session.http_capsule", "typed_config": packed(CAPSULES)}],
        tunneling_config=tunneling,
    )
    (first, *more) = [address(each, row.listen_port, protocol="UDP") for each in row.addresses]
    return resource(
        "listener",
        row.name,
        owner,
        row.name,
        address=first,
        additional_addresses=[{"address": each} for each in more],
        listener_filters=[{"name": "envoy.filters.udp_listener.udp_proxy", "typed_config": proxy}],
        udp_listener_config={"downstream_socket_config": RECEIVE},
        enable_reuse_port={"value": True},
        traffic_direction="OUTBOUND",
        stat_prefix=STAT_PREFIX,
    )


def _options(patience: float) -> Any:
    """How long a connection to a gateway is used, and its pings."""
    pings = {"interval": duration(PING_EVERY), "interval_jitter": {"value": 0}, "timeout": duration(patience * 2)}
    return packed(
        HTTP_OPTIONS,
        common_http_protocol_options={
            "idle_timeout": duration(IDLE),
            "max_connection_duration": duration(RENEWED_AFTER),
        },
        explicit_http_config={"http2_protocol_options": {"connection_keepalive": pings}},
    )


def _bounds() -> dict[str, Any]:
    """What a port has at most: each session of Envoy's UDP proxy counts as a connection of its cluster."""
    others = dict.fromkeys(("max_pending_requests", "max_requests", "max_retries"), UNLIMITED)
    return {"thresholds": [{"max_connections": {"value": SESSIONS}, **others}]}


def manager(caller: ClusterName, cluster: str = "") -> dict[str, Any]:
    """The network filter of a gateway that takes a member's tunnels, and nothing else, and sends their datagrams to a
    cluster of Envoy; without one to that of their SNI."""
    route = {
        "match": {"connect_matcher": {}},
        "route": {
            **destination(cluster),
            "timeout": duration(0),
            "hash_policy": [{"connection_properties": {"source_ip": True}}],
            "upgrade_configs": [{"upgrade_type": UPGRADE, "connect_config": {}}],
        },
    }
    pings = {"interval": duration(GATEWAY_PING_EVERY), "timeout": duration(GATEWAY_PING_EVERY)}
    config = packed(
        HCM,
        stat_prefix=STAT_PREFIX,
        codec_type="HTTP2",
        http_filters=[
            {"name": "envoy.filters.http.router", "typed_config": packed(ROUTER, suppress_envoy_headers=True)}
        ],
        upgrade_configs=[{"upgrade_type": UPGRADE}],
        http2_protocol_options={
            "allow_connect": True,
            "connection_keepalive": pings,
            "max_concurrent_streams": {"value": SESSIONS},
        },
        generate_request_id={"value": False},
        stream_idle_timeout=duration(STREAM_IDLE),
        early_header_mutation_extensions=before_routing(by_sni(TARGET_END)),
        route_config={
            "name": cluster or f"udp {caller}",
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
        },
    )
    return {"name": "envoy.filters.network.http_connection_manager", "typed_config": config}
