"""UDP between islands: datagrams in tunnels of CONNECT-UDP (RFC 9298), over the mutual TLS to a gateway. Pure.

    pod ── datagrams ──▶ listener ─▶ HTTP/2 ─▶ internal listener ══ TLS, by SNI ══▶ gateway ── datagrams ──▶ pod

A client's address and port are a session: a stream of HTTP/2, which the gateway gives a pod. The sessions of a port
that begin within RENEWED_AFTER share a connection to a gateway (of each worker thread of the node's Envoy). It passes a
listener within Envoy that treats it as one of TCP: it has the SNI of the port, gateways that fail are passed over for
others, and the caller is authorised by the handshake, before the gateway reads a byte of HTTP. Nothing that a caller
writes in a request chooses where its datagrams go: the SNI does.

A sender of UDP does not notice that a gateway has fallen silent. So the node checks the gateways that it has tunnels to
often (:data:`CHECK_INTERVAL`), and ends all tunnels to one that does not answer; their sessions end with them, and the
next datagram of each begins a new one, through another gateway. Where no gateway of any island answers, and the plan
has pods that need none, the node's own Envoy ends the tunnel, as a gateway does (:func:`beside`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from isthmus.gateway.http import before_routing, by_sni, destination
from isthmus.model.islands import IslandListener
from isthmus.model.names import ClusterName
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import CONNECT_TIMEOUT, HTTP_OPTIONS
from isthmus.proxy.listeners import HCM, ROUTER
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import address, bounded, eds_cluster, eds_localities, resource

RECEIVE: Final = {"max_rx_datagram_size": {"value": 65_535}}
"""What Envoy reads of pods at most; by default it drops what is larger than 1,500 bytes."""
UDP_PROXY: Final = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
ROUTE: Final = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
CAPSULES: Final = "envoy.extensions.filters.udp.udp_proxy.session.http_capsule.v3.FilterConfig"
UPGRADE: Final = "CONNECT-UDP"
STAT_PREFIX: Final = "udp"
TARGET_END: Final = " udp"
"""How the names of clusters of Envoy that are reached so end, behind the SNI."""
CHECK_INTERVAL: Final = 0.1
"""Seconds between two checks of a gateway that tunnels may go to. With two that fail and 0.25 s until a client's
next datagram, that makes less than a second until its next answer."""
CHECK_AGAIN: Final = 0.01
"""Seconds from a check that failed to the next one, which decides: one fails also where a gateway is replaced."""
PING_EVERY: Final = 1.0
"""Seconds between two pings of a node's connection to a gateway."""
PING_TIMEOUT: Final = 10.0
"""Seconds for an answer: only of a connection that is broken while its gateway passes checks. Longer than connects to
some gateways take that fail, since it begins before there is a connection."""
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


def calling(row: IslandListener, sni: str) -> Iterator[Resource]:
    """The listener for the datagrams of pods, and the cluster that is :func:`tunnel`."""
    datagrams, owner = f"datagrams of {row.name}", f"ServiceImport {row.import_of}"
    yield _listener(row, sni, datagrams, owner)
    within = {"address": {"envoy_internal_address": {"server_listener_name": tunnel(row)}}}
    yield resource(
        "cluster",
        datagrams,
        owner,
        row.name,
        type="STATIC",
        load_assignment={"cluster_name": datagrams, "endpoints": [{"lb_endpoints": [{"endpoint": within}]}]},
        typed_extension_protocol_options={HTTP_OPTIONS: _options()},
        circuit_breakers=bounded(max_connections=SESSIONS),  # as such a session counts
    )


def tunnels_to(pods: str) -> str:
    """The cluster of Envoy that ends tunnels here, for pods that need no gateway, and its listener within Envoy."""
    return f"tunnels to {pods}"


def beside(row: IslandListener, pods: str, *, present: bool) -> Iterator[Resource]:
    """What is :func:`tunnels_to` a cluster of pods: it ends the tunnels of a port as a gateway does.

    ``present``: whether there is any pod; without one tunnels have to go elsewhere.
    """
    name, owner = tunnels_to(pods), f"ServiceImport {row.import_of}"
    within = {"endpoint": {"address": {"envoy_internal_address": {"server_listener_name": name}}}}
    yield eds_cluster(name, owner, row.name, connect_timeout=CONNECT_TIMEOUT)
    yield eds_localities(name, owner, row.name, [{"lb_endpoints": [within]}] if present else [])
    yield resource(
        "listener",
        name,
        owner,
        row.name,
        internal_listener={},
        filter_chains=[{"name": name, "filters": [manager(row.cluster, pods)]}],
        stat_prefix=STAT_PREFIX,
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


def _options() -> Any:
    """How long a connection to a gateway is used, and its pings."""
    pings = {"interval": duration(PING_EVERY), "timeout": duration(PING_TIMEOUT)}
    return packed(
        HTTP_OPTIONS,
        common_http_protocol_options={
            "idle_timeout": duration(IDLE),
            "max_connection_duration": duration(RENEWED_AFTER),
        },
        explicit_http_config={"http2_protocol_options": {"connection_keepalive": pings}},
    )


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
