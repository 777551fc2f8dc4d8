"""Which endpoints of a peer count: of services that it exports, at addresses that are not the own cluster's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from rows.balancing_world import World, make

from isthmus.loadbalancer import explain
from isthmus.loadbalancer.selection import Place
from isthmus.model.clusters import Cluster, Reachability, reachability, reachability_changed
from isthmus.model.names import ClusterName
from isthmus.model.services import EXPORTERS, Node, Port

C1, C2, C3 = (ClusterName(f"c{n}") for n in (1, 2, 3))
OWN = make.cluster("c1", own=True, own_ranges=("10.1.0.0/16", "10.96.0.0/16", "fd00:1::/48"))


def addresses(world: World) -> list[str]:
    return [row.key.address for row in world.backends]


def world(*rows: Any, clusters: tuple[ClusterName, ...] = (C1, C3)) -> World:
    return World().put(make.derived(), make.imported(clusters=clusters), *rows)


def notes(world: World) -> list[str]:
    world.settle()
    return list(explain.explain(world.db.snapshot(), make.DERIVED, place=Place(C1, "n1", "")).notes)


def test_endpoints_of_a_cluster_that_does_not_export_the_service_do_not_count() -> None:
    seen = world(make.endpoints("c2", "10.2.1.1"), make.endpoints("c3", "10.3.1.1"))
    assert addresses(seen) == ["10.3.1.1"]
    assert notes(seen) == ["c2: 1 endpoints are not used: it does not export the service"]
    seen.put(make.imported(clusters=(C2, C3)))
    assert addresses(seen) == ["10.2.1.1", "10.3.1.1"]
    seen.put(make.imported(clusters=(C3,)))
    assert addresses(seen) == ["10.3.1.1"]


def test_a_record_alone_makes_no_backend_of_an_import_that_nobody_exports() -> None:
    seen = World().put(make.imported(clusters=()), make.endpoints("c2", "10.2.1.1"))
    assert addresses(seen) == []


def test_while_an_import_is_missing_the_exporters_that_its_derived_service_names_count() -> None:
    named = make.derived(annotations=((EXPORTERS, "c1,c3"),))
    seen = World().put(named, make.endpoints("c2", "10.2.1.1"), make.endpoints("c3", "10.3.1.1"))
    assert addresses(seen) == ["10.3.1.1"]
    seen.put(make.imported(clusters=()))  # written again, its status not yet
    assert addresses(seen) == ["10.3.1.1"]
    seen.put(make.imported(clusters=(C2,)))
    assert addresses(seen) == ["10.2.1.1"]


def test_of_a_derived_service_that_names_no_exporters_all_count_while_its_import_is_missing() -> None:
    """Other implementations name none; before the imports are listed at a start, calls have to go on."""
    seen = World().put(make.derived(), make.endpoints("c2", "10.2.1.1"), make.endpoints("c3", "10.3.1.1"))
    assert addresses(seen) == ["10.2.1.1", "10.3.1.1"]


def test_a_global_service_takes_the_endpoints_of_every_cluster() -> None:
    seen = World().put(make.globally(), make.endpoints("c2", "10.2.1.1", service="demo/echo"))
    assert addresses(seen) == ["10.2.1.1"]


def test_a_peer_names_no_api_server_of_ours() -> None:
    """It need not be a node: others run the control plane of a managed cluster."""
    own = make.endpoints("c1", "192.0.2.6", service="default/kubernetes", source="kubernetes", part="kubernetes")
    seen = world(OWN, make.endpoints("c3", "192.0.2.6", "10.3.1.1"), own)
    assert addresses(seen) == ["10.3.1.1"]
    assert notes(seen) == ["c3: 1 endpoints are not used: 192.0.2.6: an API server of this cluster has it"]
    seen.delete(own)
    assert addresses(seen) == ["10.3.1.1", "192.0.2.6"]
    seen.put(make.endpoints("c3", "192.0.2.6", service="default/kubernetes"))  # its own, as it publishes them
    assert addresses(seen) == ["10.3.1.1", "192.0.2.6"]


def test_endpoints_that_the_own_cluster_knows_by_itself_need_no_export_of_another() -> None:
    seen = world(make.endpoints("c1", "10.1.1.1"), make.endpoints("c2", "10.2.1.1", source="kubernetes"), clusters=())
    assert addresses(seen) == ["10.1.1.1", "10.2.1.1"]


@pytest.mark.parametrize("address", ["10.1.7.7", "10.96.0.1", "fd00:1::9", "192.168.7.1"])
def test_a_peer_names_no_address_of_our_pods_nodes_and_services(address: str) -> None:
    node = Node("n1", ("192.168.7.1",), pod_ranges=("10.244.3.0/24",))
    seen = world(OWN, node, make.endpoints("c3", address, "10.3.1.1"), make.endpoints("c1", "10.1.1.1"))
    assert addresses(seen) == ["10.1.1.1", "10.3.1.1"]
    assert notes(seen)[0].startswith(f"c3: 1 endpoints are not used: {address}: ")


def test_where_no_ranges_are_configured_those_that_nodes_give_to_pods_are_ours() -> None:
    node = Node("n1", ("192.168.7.1",), pod_ranges=("10.244.3.0/24",))
    seen = world(node, make.endpoints("c3", "10.244.3.4", "10.3.1.1"))
    assert addresses(seen) == ["10.3.1.1"]
    seen.put(OWN)  # a network that gives out addresses by itself: those of nodes may be another cluster's
    assert addresses(seen) == ["10.244.3.4", "10.3.1.1"]


def test_a_node_that_joins_takes_its_address_back_at_once_and_nothing_else_is_computed_again() -> None:
    seen = world(OWN, make.endpoints("c3", "192.168.7.9", "10.3.1.1"))
    assert addresses(seen) == ["10.3.1.1", "192.168.7.9"]
    before = {row.key.address: row for row in seen.backends}
    seen.put(Node("n9", ("192.168.7.9",)))
    assert addresses(seen) == ["10.3.1.1"]
    seen.delete(Node("n9", ("192.168.7.9",)))
    assert addresses(seen) == ["10.3.1.1", "192.168.7.9"]
    assert {row.key.address: row for row in seen.backends} == before


@pytest.mark.parametrize(
    ("own", "peer", "found"),
    [
        (None, None, "direct"),
        (make.cluster("c1"), None, "direct"),
        (make.cluster("c1", network="a"), None, "none"),
        (make.cluster("c1", network="a"), make.cluster("c2", network="a"), "direct"),
        (make.cluster("c1", network="a"), make.cluster("c2", network="a", gateways=("gw:1",)), "direct"),
        (make.cluster("c1"), make.cluster("c2", network="b"), "none"),
        (make.cluster("c1"), make.cluster("c2", network="b", gateways=("gw:1",)), "gateway"),
        (make.cluster("c1", network="a", gateways=("gw:1",)), make.cluster("c2"), "none"),
    ],
)
def test_a_peer_is_reached(own: Cluster | None, peer: Cluster | None, found: Reachability) -> None:
    assert reachability(own, peer) == found


def test_what_may_change_how_a_cluster_is_reached() -> None:
    row = make.cluster("c2", network="b", gateways=("gw:1",))
    assert not reachability_changed(row, structs.replace(row, state="ready", gateways=("gw:2",)))
    assert reachability_changed(row, structs.replace(row, gateways=()))
    assert reachability_changed(row, structs.replace(row, network=""))
    assert not reachability_changed(None, make.cluster("c2"))


def named(cluster: str, name: str, *, number: int = 80) -> Any:
    """Endpoints of a cluster whose Service has one port of this name and number."""
    backend = make.endpoint("10.9.1.1", ports=(Port(name, 8080),))
    service_ports = () if cluster == "c1" else (Port(name, number),)
    return make.endpoints(cluster, backend, service_ports=service_ports)


@pytest.mark.parametrize("cluster", ["c1", "c2"])
@pytest.mark.parametrize("order", ["endpoints first", "import first"])
def test_a_renamed_port_is_called_whichever_of_import_and_endpoints_arrives_first(cluster: str, order: str) -> None:
    web = (Port("web", 80),)
    steps = [[named(cluster, "web")], [make.imported(ports=web), make.derived(ports=web)]]
    seen = world(named(cluster, "http"), clusters=(C1, C2))
    for rows in steps if order == "endpoints first" else reversed(steps):
        seen.put(*rows)
        assert list(seen.reached().values()) == [[f"{cluster}/10.9.1.1:8080"]]


def test_a_port_of_another_number_is_no_port_of_the_import() -> None:
    assert addresses(world(named("c2", "metrics", number=9090), clusters=(C1, C2))) == []


def test_one_address_with_two_numbers_of_a_port_is_two_backends() -> None:
    both = make.endpoint("172.30.9.7", ports=(Port("http", 8080), Port("http", 9090)))
    seen = world(make.endpoints("c3", both))
    assert list(seen.reached().values()) == [["c3/172.30.9.7:8080", "c3/172.30.9.7:9090"]]
