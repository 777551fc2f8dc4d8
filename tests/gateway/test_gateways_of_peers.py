"""Gateways that a peer publishes: every node would dial them, so none may be at an address of the own cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshes.island_world import DOMAIN
from meshes.route_world import C1, C2, RouteWorld
from msgspec.structs import replace

from isthmus.gateway.listeners import NodeSettings
from isthmus.model.clusters import Cluster
from isthmus.model.islands import TrustBundle
from isthmus.model.names import ServiceName, derived
from isthmus.model.services import Endpoint, EndpointSet, Node, Port, Service
from isthmus.model.sources import CLUSTERSET, KUBERNETES
from isthmus.model.tables import (
    CLUSTERS,
    ENDPOINT_SETS,
    ISLAND_LISTENERS,
    NODES,
    PLANS,
    REFUSED_GATEWAYS,
    SERVICES,
    TRUST_BUNDLES,
    XDS,
    XDS_SERVED,
)
from isthmus.model.xds import ServedListener
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message

ECHO = "demo/echo"
GOOD = "172.30.1.99:15443"
"""On the network of our nodes, and none of them."""
OWN = Cluster(
    name=C1,
    own=True,
    network="one",
    own_ranges=("10.1.0.0/16", "fd00:1::/64", "10.96.0.0/16", "172.30.1.0/24"),
    service_ranges=("10.96.0.0/16",),
    node_ranges=("172.30.1.0/24",),
    gateways=("192.0.2.9:15443",),
)
NODE = Node("n1", addresses=("172.30.1.11", "fd00:30::11"))
API = ServiceName("default/kubernetes")


def api_server(address: str = "172.30.1.2", *, source: str = KUBERNETES, cluster: str = "c1") -> EndpointSet:
    endpoint = Endpoint(address, (Port("https", 6443),))
    return EndpointSet(API, cluster, source, "kubernetes", (endpoint,))  # type: ignore[arg-type]


@pytest.fixture
def world() -> RouteWorld:
    """c1's node, and the island c2."""
    node = NodeSettings(C1, DOMAIN, Path("/run/isthmus/proxy"), ("169.254.7.1",), 19_100, 100)
    made = RouteWorld(island=node).put(CLUSTERS, OWN).put(NODES, NODE).put(ENDPOINT_SETS, api_server())
    made.put(TRUST_BUNDLES, TrustBundle((C2,)))
    return gateways(made, GOOD).imported(ECHO, c2=["10.1.0.1:8080"])


def gateways(world: RouteWorld, *addresses: str) -> RouteWorld:
    return world.put(CLUSTERS, Cluster(name=C2, network="two", gateways=addresses))


def dialed(world: RouteWorld) -> list[str]:
    """The gateways of c2 that Envoy has."""
    [row] = [row for row in world.rows(XDS) if (row.type, row.name) == ("endpoints", "island c2")]
    found = message(MESSAGES["endpoints"]).FromString(row.body)
    at = [host.endpoint.address.socket_address for each in found.endpoints for host in each.lb_endpoints]
    return [f"[{each.address}]:{each.port_value}" if ":" in each.address else f"{each.address}:{each.port_value}"
            for each in at]  # fmt: skip


def reasons(world: RouteWorld) -> dict[str, str]:
    return {row.address: row.message for row in world.rows(REFUSED_GATEWAYS)}


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("172.30.1.2:6443", "172.30.1.2 is an address of an API server of this cluster"),
        ("172.30.1.2:2379", "172.30.1.2 is an address of an API server of this cluster"),
        ("172.30.1.11:10250", "172.30.1.11 is an address of a node of this cluster"),
        ("[fd00:30::11]:10250", "fd00:30::11 is an address of a node of this cluster"),
        ("10.1.3.4:80", "10.1.3.4 is in 10.1.0.0/16, a range of this cluster"),
        ("[fd00:1::4]:80", "fd00:1::4 is in fd00:1::/64, a range of this cluster"),
        ("10.96.0.1:443", "10.96.0.1 is in 10.96.0.0/16, a range of this cluster"),
        ("[::ffff:10.96.0.1]:443", "10.96.0.1 is in 10.96.0.0/16, a range of this cluster"),
        ("127.0.0.1:2379", "127.0.0.1 is reserved (loopback)"),
        ("[::1]:2379", "::1 is reserved (loopback)"),
        ("169.254.169.254:80", "169.254.169.254 is reserved (link-local)"),
        ("192.0.2.9:15443", "192.0.2.9 is an address of a gateway of this cluster"),
    ],
)
def test_a_peer_names_no_address_of_our_own_as_its_gateway(world: RouteWorld, address: str, why: str) -> None:
    gateways(world, address, GOOD)
    assert dialed(world) == [GOOD]
    assert reasons(world) == {address: why}


def test_a_gateway_on_the_network_of_our_nodes_that_is_none_of_them_is_called(world: RouteWorld) -> None:
    assert dialed(world) == [GOOD]
    world.put(NODES, Node("n2", addresses=("172.30.1.99",)))
    assert dialed(world) == []
    world.delete(NODES, Node("n2", addresses=("172.30.1.99",)))
    assert dialed(world) == [GOOD]
    assert reasons(world) == {}


def test_without_configured_ranges_a_services_address_is_known_by_the_service(world: RouteWorld) -> None:
    world.put(CLUSTERS, replace(OWN, own_ranges=(), service_ranges=(), node_ranges=()))
    gateways(world, "10.96.0.77:443", GOOD)
    assert "10.96.0.77:443" in dialed(world)
    service = Service(name=API, source=KUBERNETES, cluster_ips=("10.96.0.77",), ports=(Port("https", 443),))
    world.put(SERVICES, service)
    assert dialed(world) == [GOOD]
    assert reasons(world) == {"10.96.0.77:443": "10.96.0.77 is the address of Service default/kubernetes"}
    world.delete(SERVICES, service)
    assert "10.96.0.77:443" in dialed(world)


def test_an_island_whose_gateways_are_all_refused_has_no_part_of_the_calls(world: RouteWorld) -> None:
    """Nothing checks them, and no check is no failure."""
    world.put(XDS_SERVED, *(ServedListener(row.name) for row in world.rows(ISLAND_LISTENERS)))

    def targets() -> list[str]:
        service = derived(ServiceName(ECHO))
        plans = [plan for plan in world.rows(PLANS) if plan.key.service == service]
        return [target.cluster for plan in plans for group in plan.groups for target in group.targets]

    assert targets() == [C2]
    gateways(world, "172.30.1.2:6443")
    assert targets() == []
    gateways(world, "172.30.1.2:6443", GOOD)
    assert targets() == [C2]


def test_a_peer_that_publishes_endpoints_of_the_api_servers_service_makes_no_address_ours(world: RouteWorld) -> None:
    world.put(ENDPOINT_SETS, api_server("172.30.1.99", source=CLUSTERSET, cluster="c2"))
    assert dialed(world) == [GOOD]
