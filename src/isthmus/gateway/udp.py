"""UDP between islands: datagrams in tunnels of CONNECT-UDP (RFC 9298), over the mutual TLS to a gateway. Pure.

    pod ── datagrams ──▶ listener ─▶ HTTP/2 ─▶ internal listener ══ TLS, by SNI ══▶ gateway ── datagrams ──▶ pod

Each client address and port is a session: an HTTP/2 stream, for which the gateway chooses a pod. Sessions of a port
that start within RENEWED_AFTER share a connection to a gateway (in each worker thread of the node's Envoy). It passes
an internal listener of Envoy, where it is a TCP connection like any other: it has the port's SNI, failing gateways are
skipped, and the handshake authorises the caller before the gateway reads a byte of HTTP. The destination of datagrams
depends only on the SNI, not on the caller's request.

A sender of UDP does not notice a silent gateway. So the node checks the gateways of its tunnels often
(:data:`CHECK_INTERVAL`) and closes all tunnels to one that does not answer. Their sessions end, and the next datagram
of each starts a new session through another gateway. If no gateway of any island answers and the plan has pods that
need none, the node's own Envoy terminates the tunnel, as a gateway does (:func:`local_tunnels`).
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
"""Maximum size of a datagram from a pod. By default Envoy drops datagrams above 1,500 bytes."""
UDP_PROXY: Final = "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig"
ROUTE: Final = "envoy.extensions.filters.udp.udp_proxy.v3.Route"
CAPSULES: Final = "envoy.extensions.filters.udp.udp_proxy.session.http_capsule.v3.FilterConfig"
UPGRADE: Final = "CONNECT-UDP"
STAT_PREFIX: Final = "udp"
TARGET_END: Final = " udp"
"""Suffix of the Envoy cluster names used for UDP; the rest of the name is the SNI."""
CHECK_INTERVAL: Final = 0.1
"""Seconds between checks of a gateway with tunnels. With two failing checks and 0.25 s until a client's next datagram,
its next answer arrives in less than a second."""
CHECK_AGAIN: Final = 0.01
"""Seconds from a failed check to the next, which decides: a single one also fails while a gateway is replaced."""
PING_EVERY: Final = 1.0
"""Seconds between pings of a node's connection to a gateway."""
PING_TIMEOUT: Final = 10.0
"""Seconds for an answer, which matter if a connection breaks while its gateway passes checks. Longer than failing
connects to several gateways take, since the time starts before the connection is established."""
IDLE: Final = 60.0
"""Seconds without a datagram in either direction after which a session ends, and without a session a connection."""
RENEWED_AFTER: Final = 10.0
"""Seconds after which new sessions use a new connection, so that all gateways are used in turn, and the island itself
again after a fallback to another one."""
GATEWAY_PING_EVERY: Final = 10.0
"""Seconds between pings of a gateway's connection, and for an answer: a vanished node must not keep its streams."""
STREAM_IDLE: Final = 2 * IDLE
"""Seconds without a datagram after which a gateway ends a stream that its node has not ended, since it holds a port."""
CONNECT_ATTEMPTS: Final = 4
"""Streams that are tried for a session before its datagrams are dropped."""
RETRY_AFTER: Final = 0.02
WAITING: Final = {"max_buffered_datagrams": {"value": 16}, "max_buffered_bytes": {"value": 16_384}}
"""Datagrams that a session buffers until its stream is established; further ones are dropped."""
SESSIONS: Final = 4_096
"""Maximum sessions of one port at a node, including its connections to gateways: bounds a client that sends from ever
new ports. A connection has as many streams, so that one suffices for a node."""


def tunnel(row: IslandListener) -> str:
    """Name of the internal listener that the tunnels of a port pass."""
    return f"tunnel of {row.name}"


def calling(row: IslandListener, sni: str) -> Iterator[Resource]:
    """Yield the listener for datagrams of pods, and the Envoy cluster of :func:`tunnel`."""
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
        circuit_breakers=bounded(max_connections=SESSIONS),  # a session counts as a connection
    )


def tunnels_to(pods: str) -> str:
    """Name of the Envoy cluster, and of its internal listener, that terminates tunnels to pods that need no gateway."""
    return f"tunnels to {pods}"


def local_tunnels(row: IslandListener, pods: str, *, any_pod: bool) -> Iterator[Resource]:
    """Yield the resources of :func:`tunnels_to` a cluster of pods, which terminate tunnels of a port as a gateway does.

    ``any_pod``: False if the cluster is empty, so that tunnels use another fallback.
    """
    name, owner = tunnels_to(pods), f"ServiceImport {row.import_of}"
    within = {"endpoint": {"address": {"envoy_internal_address": {"server_listener_name": name}}}}
    yield eds_cluster(name, owner, row.name, connect_timeout=CONNECT_TIMEOUT)
    yield eds_localities(name, owner, row.name, [{"lb_endpoints": [within]}] if any_pod else [])
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
    """Return the listener for pods, with a tunnel for each session through the cluster ``datagrams``."""
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
    """Return HTTP options for connections to gateways: lifetimes and pings."""
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
    """Return a gateway's network filter that accepts only a member's tunnels.

    It sends their datagrams to an Envoy cluster; by default to that of the SNI.
    """
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
