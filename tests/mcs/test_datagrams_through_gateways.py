"""An import says which of its ports of UDP are called through gateways, and how large a datagram may be."""

from __future__ import annotations

from rows.mcs_world import World

from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.services import Port

DNS = Port("dns", 53, "UDP")
HTTP = Port("http", 80)


def at(world: World, **networks: str) -> None:
    for name, network in networks.items():
        gateways = (f"192.0.2.{name[1:]}:15443",) if network else ()
        row = Cluster(name=ClusterName(name), own=name == "c1", network=network, gateways=gateways)
        world.put(tables.CLUSTERS, row)


def message(world: World) -> str | None:
    found = world.condition("ServiceImport", "UDPThroughGateways")
    return f"{found['reason']}: {found['message']}" if found is not None else None


def test_ports_of_udp_of_islands_are_in_a_condition(world: World) -> None:
    at(world, c1="one", c2="two", c3="one")
    world.export("c2", ports=(HTTP, DNS))
    world.export("c3", ports=(HTTP, DNS))
    want = "Tunnelled: 53/UDP of c2: called through gateways, by tunnels of TCP: datagrams of 1 to 65507 bytes pass"
    assert message(world) == want


def test_the_condition_follows_the_networks(world: World) -> None:
    at(world, c1="", c2="")
    world.export("c2", ports=(DNS,))
    assert message(world) is None
    at(world, c2="two")
    assert message(world) is not None
    at(world, c2="")
    assert message(world) is None


def test_ports_of_tcp_alone_have_none(world: World) -> None:
    at(world, c1="one", c2="two")
    world.export("c2", ports=(HTTP,))
    assert message(world) is None


def test_a_cluster_whose_port_means_something_else_is_not_named(world: World) -> None:
    at(world, c1="one", c2="two", c3="three")
    world.export("c2", ports=(DNS,), created="2026-01-01T00:00:00Z")
    world.export("c3", ports=(Port("dns", 5353, "UDP"),), created="2026-01-02T00:00:00Z")
    assert "53/UDP of c2:" in (message(world) or "")
