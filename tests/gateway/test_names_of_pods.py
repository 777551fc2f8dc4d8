"""Pods of islands by their names: an address on the node stands for each, without Envoy."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from meshes.island_world import C3, DOMAIN
from meshes.route_world import C1, C2, RouteWorld
from msgspec.structs import replace

from isthmus.gateway.listeners import NodeSettings
from isthmus.gateway.naming import service_sni
from isthmus.gateway.pods import assign_addresses
from isthmus.loadbalancer.explain import explain, services_called
from isthmus.loadbalancer.selection import Place
from isthmus.model.clusters import Cluster
from isthmus.model.islands import GatewayCheck, IslandListener, IslandPod, TrustBundle
from isthmus.model.names import ClusterName, ServiceName, derived, pod_id
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Namespace, Port, Service
from isthmus.model.tables import (
    BACKENDS,
    CLUSTERS,
    ENDPOINT_SETS,
    FRONTENDS,
    GATEWAY_CHECKS,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    NAMES,
    NAMESPACES,
    PLANS,
    POLICIES,
    SERVICES,
    TRUST_BUNDLES,
    XDS,
    XDS_SERVED,
)
from isthmus.model.xds import ServedListener
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.rules import problem

WEB = ServiceName("demo/web")
APEX = f"web.demo.svc.{DOMAIN}"
RANGE = IPv4Network("241.0.0.0/8")


def node(*, pod_ports: int = 100, addresses: tuple[str, ...] = ("169.254.7.1",)) -> RouteWorld:
    """c1's node, with the islands c2 and c3, all with pods of the same addresses."""
    ranges = (RANGE, IPv6Network("fd00:7:1::/64"))
    of = NodeSettings(C1, DOMAIN, Path("/run/isthmus/proxy"), addresses, 19_100, 4_000, 0.25, pod_ports, ranges)
    world = RouteWorld(island=of).put(CLUSTERS, Cluster(name=C1, own=True, network="one"))
    for cluster in (C2, C3):
        world.put(CLUSTERS, Cluster(name=cluster, network=f"of {cluster}", gateways=("192.0.2.1:15443",)))
        world.put(TRUST_BUNDLES, TrustBundle((cluster,)))
    return world.put(NAMESPACES, Namespace("demo"))


def served(world: RouteWorld) -> RouteWorld:
    """With all listeners in Envoy."""
    return world.put(XDS_SERVED, *(ServedListener(row.name) for row in world.rows(ISLAND_LISTENERS)))


def names(world: RouteWorld) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(row.name, row.type): row.answers for row in world.rows(NAMES) if row.service == WEB}


def listeners(world: RouteWorld) -> dict[str, IslandListener]:
    return {row.service: row for row in world.rows(ISLAND_LISTENERS)}


def pod(cluster: str, host: str) -> str:
    return f"{derived(WEB)}.{cluster}.{host}"


def reached(world: RouteWorld) -> dict[str, list[str]]:
    """Frontend → what its plan calls, with the cluster."""
    plans = {plan.key: plan for plan in world.rows(PLANS)}
    return {
        f"{row.key.address}:{row.key.port}": [
            f"{each.cluster}/{each.address}:{each.port}" for group in plans[row.plan].groups for each in group.targets
        ]
        for row in world.rows(FRONTENDS)
    }


def test_each_pod_of_an_island_has_a_name_and_an_address_here_that_leads_to_it_alone() -> None:
    world = served(node().headless(WEB, c1=["web-0=10.1.0.1:80"], c2=["web-0=10.1.0.1:80", "web-1=10.1.0.2:80"]))
    found = names(world)
    assert found[f"web-0.c1.{APEX}", "A"] == ("10.1.0.1",)
    [first], [second] = (found[f"web-{n}.c2.{APEX}", "A"] for n in (0, 1))
    assert ip_address(first) in RANGE
    assert set(found[APEX, "A"]) == {"10.1.0.1", first, second}
    at = listeners(world)
    assert reached(world) == {
        f"{address}:80": [f"c2/169.254.7.1:{at[pod('c2', f'web-{n}')].listen_port}"]
        for n, address in enumerate((first, second))
    }
    sni = service_sni(WEB, 80, DOMAIN, pod=pod_id(WEB, "web-1", ""))
    [row] = [each for each in world.rows(XDS) if each.name == at[pod("c2", "web-1")].name and each.type == "listener"]
    assert problem(MESSAGES["listener"], row.body) == ""
    assert sni.encode() in row.body
    assert not [each.name for each in world.rows(XDS) if each.name.startswith("pods beside")], "no other pod is called"


def test_no_row_that_follows_has_the_address_of_an_islands_pod() -> None:
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80", "=10.1.0.2:80"], c3=["web-0=10.1.0.1:80"]))
    for table in (ISLAND_PODS, ISLAND_LISTENERS, FRONTENDS, BACKENDS, PLANS, NAMES, XDS):
        text = repr(world.rows(table))
        assert not any(each in text for each in ("10.1.0.", "10-1-0-")), table.name
    [unnamed] = {name for name, _ in names(world) if name.count(".") > APEX.count(".") and "web-0" not in name}
    assert unnamed.startswith("241-"), "by the address that stands for it"


def test_a_pod_that_replaces_another_has_its_address_and_its_listener() -> None:
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80", "web-1=10.1.0.2:80"]))
    before = names(world), reached(world), [(row.name, row.version) for row in world.rows(XDS)]
    world.replicas(WEB, C2, "web-0=10.1.0.9:80", "web-1=10.1.0.2:80")
    assert (names(world), reached(world), [(row.name, row.version) for row in world.rows(XDS)]) == before
    world.replicas(WEB, C2, "web-1=10.1.0.2:80")
    assert set(names(world)) == {(APEX, "A"), (APEX, "SRV"), (f"web-1.c2.{APEX}", "A")}
    assert [row.hostname for row in world.rows(ISLAND_PODS)] == ["web-1"]


def test_overlapping_islands_have_other_addresses_for_pods_of_one_name() -> None:
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80"], c3=["web-0=10.1.0.1:80"]))
    assert len(names(world)[APEX, "A"]) == 2
    assert {to.partition("/")[0] for targets in reached(world).values() for to in targets} == {"c2", "c3"}


def test_a_port_of_srv_is_the_pods_own() -> None:
    world = node().headless(WEB, c2=["web-0=10.1.0.1:8080"])
    assert names(world)[APEX, "SRV"] == (f"0 100 8080 web-0.c2.{APEX}.",)


def test_a_port_of_udp_has_a_listener_of_its_own_beside_that_of_tcp_at_the_same_number() -> None:
    world = node().headless(WEB, c2=["web-0=10.1.0.1:53"])
    [found] = world.rows(ENDPOINT_SETS)
    ports = (Port("tcp", 53), Port("dns", 53, "UDP"), Port("other", 54, "SCTP"))
    world.put(ENDPOINT_SETS, replace(found, endpoints=(replace(found.endpoints[0], ports=ports),)))
    served(world)
    at = {(row.port, row.protocol): row.listen_port for row in world.rows(ISLAND_LISTENERS)}
    assert len(set(at.values())) == 2
    plans = {plan.key: plan for plan in world.rows(PLANS)}
    targets = {
        (row.key.port, row.key.protocol): [each.port for group in plans[row.plan].groups for each in group.targets]
        for row in world.rows(FRONTENDS)
    }
    assert set(at) == {(53, "TCP"), (53, "UDP")}
    assert targets == {key: [port] for key, port in at.items()}
    assert names(world)[f"_dns._udp.{APEX}", "SRV"] == (f"0 100 53 web-0.c2.{APEX}.",)
    sni = service_sni(WEB, 53, DOMAIN, protocol="UDP", pod=pod_id(WEB, "web-0", ""))
    tunnels = [row for row in world.rows(XDS) if row.type == "listener" and sni.encode() in row.body]
    assert len(tunnels) == 2, "where datagrams arrive, and within Envoy"
    assert [problem(MESSAGES[row.type], row.body) for row in tunnels] == ["", ""]


def test_before_envoy_serves_a_pods_listener_its_calls_are_refused_and_its_name_is_there() -> None:
    world = node().headless(WEB, c2=["web-0=10.1.0.1:80"])
    assert (f"web-0.c2.{APEX}", "A") in names(world)
    assert list(reached(world).values()) == [[]]
    assert all(reached(served(world)).values())


def test_a_policy_of_the_import_does_not_keep_calls_from_the_pod_that_they_name() -> None:
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80"]))
    tier = Tier((Share(C3, 1),))
    policy = Policy(policy_kind="TrafficPolicy", name=WEB, kind="ServiceImport", target=WEB, tiers=(tier,))
    before = reached(world)
    assert all(before.values())
    world.put(POLICIES, policy).replicas(WEB, C2)
    assert reached(served(world.replicas(WEB, C2, "web-0=10.1.0.1:80"))) == before


def test_a_pod_of_an_island_whose_gateways_are_silent_is_called_all_the_same() -> None:
    """There is nothing else to call: Envoy tries them."""
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80"]))
    world.put(GATEWAY_CHECKS, GatewayCheck(cluster=C2, address="192.0.2.1:15443", healthy=False))
    assert all(reached(world).values())


def test_one_island_cannot_take_the_room_of_another() -> None:
    many = [f"p-{n:03}=10.1.0.{n}:80" for n in range(1, 200)]
    world = node(pod_ports=100).headless(WEB, c2=many, c3=["web-0=10.1.0.1:80"])
    found = [row.cluster for row in world.rows(ISLAND_PODS)]
    assert (found.count(C2), found.count(C3)) == (50, 1)
    assert [row.hostname for row in world.db.snapshot().by(ISLAND_PODS, "cluster", C2)][:1] == ["p-001"]
    assert len(listeners(world)) == 51
    assert {row.listen_port for row in listeners(world).values()} <= set(range(23_100, 23_200))


def test_pods_take_no_port_from_services() -> None:
    world = node(pod_ports=2).imported("demo/echo", c2=["10.1.0.1:8080"])
    [before] = world.rows(ISLAND_LISTENERS)
    world.headless(WEB, c2=[f"web-{n}=10.1.0.{n}:80" for n in range(1, 20)])
    assert before in world.rows(ISLAND_LISTENERS)
    assert 19_100 <= before.listen_port < 23_100


def test_on_a_node_of_both_families_a_pod_has_an_address_of_each() -> None:
    world = served(node(addresses=("169.254.7.1", "fd00:7::1")).headless(WEB, c2=["web-0=10.1.0.1:80"]))
    found = names(world)
    assert [len(found[f"web-0.c2.{APEX}", kind]) for kind in ("A", "AAAA")] == [1, 1]
    assert sorted(to for targets in reached(world).values() for to in targets)[0].startswith("c2/169.254.7.1:")
    assert all(len(targets) == 1 for targets in reached(world).values())


def test_an_import_that_is_no_longer_exported_leaves_nothing() -> None:
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80"], c3=["web-0=10.1.0.1:80"]))
    world.headless(WEB, c3=["web-0=10.1.0.1:80"])
    assert {row.cluster for row in world.rows(ISLAND_PODS)} == {C3}
    world.put(CLUSTERS, Cluster(name=C3, network="one"))
    assert (world.rows(ISLAND_PODS), listeners(world), world.rows(FRONTENDS)) == ([], {}, [])
    assert names(world)[f"web-0.c3.{APEX}", "A"] == ("10.1.0.1",), "flat now"


def test_a_service_that_has_the_address_keeps_it() -> None:
    """The range is to be nobody else's; where it is, what was there goes on."""
    world = served(node().headless(WEB, c2=["web-0=10.1.0.1:80"]))
    [frontend] = world.rows(FRONTENDS)
    other = Service(name=ServiceName("demo/other"), source="kubernetes", cluster_ips=(frontend.key.address,))
    port = replace(world.rows(ISLAND_PODS)[0].ports[0])
    world.put(SERVICES, replace(other, ports=(port,), import_of=ServiceName("demo/other")))
    [row] = world.rows(FRONTENDS)
    assert (row.service, row.shadowed) == ("demo/other", (frontend.service,))
    assert world.db.snapshot().by(PLANS, "service", frontend.service) == []
    world.endpoints("demo/other", C1, "10.1.0.9:80")
    assert world.rows(FRONTENDS) == [row]
    world.delete(SERVICES, world.db.snapshot().get(SERVICES, (ServiceName("demo/other"), "kubernetes")))
    assert world.rows(FRONTENDS) == [frontend]


def test_explain_has_each_pod_of_an_island_without_its_address() -> None:
    world = served(node(pod_ports=4).headless(WEB, c2=["web-0=10.1.0.1:80", "web-1=10.1.0.2:80", "web-2=10.1.0.3:80"]))
    now = world.db.snapshot()
    assert services_called(now, WEB) == [derived(WEB), pod("c2", "web-0"), pod("c2", "web-1")]
    found = [explain(now, each, place=Place(C1, "n1")) for each in services_called(now, WEB)]
    assert [len(each.paths) for each in found] == [0, 1, 1]
    assert "10.1.0." not in repr(found)
    notes = " ".join(found[0].notes)
    assert "c2: 2 of its 3 endpoints have an address on this node, by which the gateways are called for them" in notes
    assert "gateway.pod_ports" in notes


NAMES_OF_PODS = st.sets(st.text("abc", min_size=1, max_size=4), max_size=40)


def of_cluster(cluster: str, found: set[str]) -> list[ServiceName]:
    return [ServiceName(f"{each}.{cluster}") for each in found]


@given(NAMES_OF_PODS, st.sampled_from([24, 26, 30, 8]))
def test_addresses_are_in_their_range_one_for_each_and_depend_on_the_names_alone(found: set[str], bits: int) -> None:
    network = IPv4Network(f"241.0.0.0/{bits}")
    wanted = of_cluster(C2, found)
    given_out = assign_addresses({C2: wanted}, network)
    assert given_out == assign_addresses({C2: reversed(wanted)}, network)
    room = (2 ** ((33 - bits) // 2) - 2) // 2
    assert len(set(given_out.values())) == len(given_out) == min(len(wanted), room)
    assert all(ip_address(each) in network for each in given_out.values())
    assert {str(network[0]), str(network[-1])}.isdisjoint(given_out.values())


@given(NAMES_OF_PODS, NAMES_OF_PODS, st.sampled_from(["241.0.0.0/8", "241.0.0.0/24", "241.0.0.0/28"]))
def test_no_name_of_a_pod_changes_an_address_of_another_islands_pod(
    victim: set[str], attacker: set[str], prefix: str
) -> None:
    """Also where the blocks are so few and small that all are full, and whichever island is the first by name."""
    network = IPv4Network(prefix)
    for mine, its in ((C2, C3), (C3, C2)):
        wanted = of_cluster(mine, victim)
        alone = assign_addresses({mine: wanted, its: []}, network)
        beside = assign_addresses({mine: wanted, its: of_cluster(its, attacker)}, network)
        assert {name: address for name, address in beside.items() if name in wanted} == alone
        assert len(set(beside.values())) == len(beside)


def test_an_island_that_joins_moves_no_pod_of_one_before_it_by_name() -> None:
    """Where two come to one block, as they do in a range of few."""
    network, found = IPv4Network("241.0.0.0/24"), {"a", "b"}
    clusters = [ClusterName(f"c{number:02}") for number in range(20)]
    names = {cluster: of_cluster(cluster, found) for cluster in clusters}
    all_of_them = assign_addresses(names, network)
    assert len(set(all_of_them.values())) == len(all_of_them) == 2 * 16, "as many islands as there are blocks"
    for number in range(20):
        before = assign_addresses({cluster: names[cluster] for cluster in clusters[:number]}, network)
        assert before.items() <= all_of_them.items()


def test_no_pod_has_the_first_or_the_last_address_of_the_range() -> None:
    """They are the network itself and its broadcast address; half of a block's other addresses are used."""
    network = IPv4Network("241.0.0.0/24")
    for number in range(20):
        found = {f"{number}-{each}" for each in range(7)}
        names = {cluster: of_cluster(cluster, found) for cluster in (ClusterName(f"c{each}") for each in range(16))}
        given_out = set(assign_addresses(names, network).values())
        assert len(given_out) == 16 * 7
        assert {str(network[0]), str(network[-1])}.isdisjoint(given_out)


def test_the_row_of_a_pod_names_no_service_that_kubernetes_could_have() -> None:
    [row] = node().headless(WEB, c2=["web-0=10.1.0.1:80"]).rows(ISLAND_PODS)
    assert isinstance(row, IslandPod)
    assert row.name == f"{derived(WEB)}.c2.web-0"
