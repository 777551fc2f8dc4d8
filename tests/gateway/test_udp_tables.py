"""What bounds datagrams between islands in the configuration of Envoys, without Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshes.route_world import C1, C2, RouteWorld

from isthmus.gateway import udp
from isthmus.gateway.alternatives import tunnelled
from isthmus.gateway.islands import LONGEST_TIMEOUT
from isthmus.gateway.listeners import NodeSettings
from isthmus.model.clusters import Cluster
from isthmus.model.islands import IslandListener, TrustBundle
from isthmus.model.names import ServiceName
from isthmus.model.tables import CLUSTERS, TRUST_BUNDLES, XDS
from isthmus.proxy.clusters import HTTP_OPTIONS
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.rules import problem

ECHO = ServiceName("demo/echo")
ROW = IslandListener(
    service=ECHO,
    cluster=C2,
    port=80,
    protocol="UDP",
    addresses=("169.254.7.1", "fd00:7::1"),
    listen_port=19_100,
    import_of=ECHO,
)


def node() -> tuple[Any, Any]:
    """The listener and the cluster of a node."""
    found = []
    for row in udp.calling(ROW, "80.echo"):
        assert problem(MESSAGES[row.type], row.body) == ""
        found.append(message(MESSAGES[row.type]).FromString(row.body))
    listener, cluster = found
    return listener, cluster


def datagrams_of(listener: Any) -> Any:
    return unpacked(listener.listener_filters[0].typed_config)


def test_the_sessions_of_a_port_are_bounded_at_a_node_and_nothing_else_is() -> None:
    _, cluster = node()
    [bounds] = cluster.circuit_breakers.thresholds
    assert bounds.max_connections.value == 4_096
    assert {bounds.max_pending_requests.value, bounds.max_requests.value, bounds.max_retries.value} == {1_000_000}


def test_a_waiting_session_keeps_little() -> None:
    listener, _ = node()
    waiting = datagrams_of(listener).tunneling_config.buffer_options
    assert (waiting.max_buffered_datagrams.value, waiting.max_buffered_bytes.value) == (16, 16_384)


def test_a_gateway_ends_a_stream_later_than_a_node_would_and_bounds_those_of_a_connection() -> None:
    listener, _ = node()
    manager: Any = unpacked(udp.manager(C1)["typed_config"])
    assert (datagrams_of(listener).idle_timeout.seconds, manager.stream_idle_timeout.seconds) == (60, 120)
    assert manager.http2_protocol_options.max_concurrent_streams.value == 4_096, "one connection is enough for a node"


def test_a_ping_outlives_connects_that_fail_to_two_gateways_that_are_far_away() -> None:
    _, cluster = node()
    options: Any = unpacked(cluster.typed_extension_protocol_options[HTTP_OPTIONS])
    pings = options.explicit_http_config.http2_protocol_options.connection_keepalive
    assert pings.timeout.ToTimedelta().total_seconds() >= 2 * LONGEST_TIMEOUT


def test_an_islands_gateways_have_tunnels_as_long_as_it_has_a_port_of_udp() -> None:
    settings = NodeSettings(C1, "clusterset.local", Path("/run/isthmus/proxy"), ("169.254.7.1",), 19_100, 100)
    world = RouteWorld(island=settings).put(CLUSTERS, Cluster(name=C1, own=True, network="one"))
    world.put(CLUSTERS, Cluster(name=C2, network="two", gateways=("192.0.2.1:15443",)))
    world.put(TRUST_BUNDLES, TrustBundle((C2,)))

    def tunnels() -> list[str]:
        return [row.type for row in world.rows(XDS) if row.name == tunnelled(C2)]

    world.imported("demo/web", c2=["10.1.0.1:80"])
    assert tunnels() == []
    world.imported(ECHO, protocol="UDP", c2=["10.1.0.1:53"])
    assert sorted(tunnels()) == ["cluster", "endpoints"]
    world.imported(ECHO, protocol="TCP", c2=["10.1.0.1:53"])
    assert tunnels() == []
