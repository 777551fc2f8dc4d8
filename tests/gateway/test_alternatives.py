"""What a node's tables come to where an island is not all that a service has, without Envoy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from meshes.island_world import C3, DOMAIN
from meshes.route_world import C1, C2, RouteWorld
from msgspec.structs import replace

from isthmus.gateway.alternatives import AGGREGATE, plan_of, resources
from isthmus.gateway.http import RETRIED
from isthmus.gateway.listeners import NodeSettings
from isthmus.loadbalancer import maglev
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Drain, Draining
from isthmus.model.islands import GatewayCheck, TrustBundle
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.policies import ANY_OTHER, Policy, Share, Tier
from isthmus.model.tables import (
    CLUSTERS,
    DRAINING,
    GATEWAY_CHECKS,
    ISLAND_LISTENERS,
    PLANS,
    POLICIES,
    TRUST_BUNDLES,
    XDS,
    XDS_SERVED,
)
from isthmus.model.xds import Resource, ServedListener
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.listeners import HCM
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.rules import problem

ECHO = "demo/echo"
TO_C2 = f"island c2 {derived(ServiceName(ECHO))}:80"


def node(*, ports: int = 4_000) -> RouteWorld:
    """c1's node, with the islands c2 and c3."""
    of = NodeSettings(C1, DOMAIN, Path("/run/isthmus/proxy"), ("169.254.7.1",), 19_100, ports)
    world = RouteWorld(island=of).put(CLUSTERS, Cluster(name=C1, own=True, network="one"))
    for cluster in (C2, C3):
        world.put(CLUSTERS, Cluster(name=cluster, network=f"of {cluster}", gateways=(f"{cluster}.example:15443",)))
        world.put(TRUST_BUNDLES, TrustBundle((cluster,)))
    return world


def test_an_island_that_exports_more_than_there_are_ports_takes_none_of_another_one() -> None:
    """The names, and so their order, are the island's to choose."""
    world = node(ports=10)
    for number in range(3):
        world.imported(f"demo/z{number}", c3=["10.1.0.1:8080"])
    before = world.rows(ISLAND_LISTENERS)
    for number in range(20):
        world.imported(f"demo/a{number}", c2=["10.1.0.1:8080"])
    after = world.rows(ISLAND_LISTENERS)
    assert Counter(row.cluster for row in after) == {C2: 6, C3: 3}
    assert all(row in after for row in before)


def test_an_island_that_comes_after_one_that_wants_all_ports_finds_some_and_takes_none() -> None:
    world = node(ports=10)
    for number in range(20):
        world.imported(f"demo/a{number}", c2=["10.1.0.1:8080"])
    before = world.rows(ISLAND_LISTENERS)
    for number in range(3):
        world.imported(f"demo/z{number}", c3=["10.1.0.1:8080"])
    after = world.rows(ISLAND_LISTENERS)
    assert Counter(row.cluster for row in after) == {C2: 8, C3: 2}
    assert all(row in after for row in before)


def served(world: RouteWorld) -> RouteWorld:
    """With all listeners in Envoy."""
    return world.put(XDS_SERVED, *(ServedListener(row.name) for row in world.rows(ISLAND_LISTENERS)))


def test_a_gateway_that_is_far_away_has_the_time_that_round_trips_to_it_take() -> None:
    world = node()

    def seconds(cluster: str) -> tuple[float, float]:
        found = decoded(world, "cluster", f"island {cluster}")
        check = found.health_checks[0].timeout
        return found.connect_timeout.ToTimedelta().total_seconds(), check.ToTimedelta().total_seconds()

    world.imported(ECHO, c2=["10.1.0.1:8080"])
    assert seconds("c2") == (0.25, 0.5)
    near = GatewayCheck(cluster=C2, address="192.0.2.1:15443", healthy=True, round_trip=1 / 16)
    far = GatewayCheck(cluster=C2, address="192.0.2.2:15443", healthy=False, round_trip=1 / 4)
    world.put(GATEWAY_CHECKS, near)
    assert seconds("c2") == (0.25, 0.5)
    world.put(GATEWAY_CHECKS, far)
    assert seconds("c2") == (1.0, 1.0)
    world.put(GATEWAY_CHECKS, replace(far, round_trip=64.0))
    assert seconds("c2") == (5.0, 5.0)
    assert seconds("c3") == (0.25, 0.5)


def test_gateways_are_checked_more_often_where_tunnels_go_to_them_within_the_time_of_a_connect() -> None:
    world = node()

    def seconds(cluster: str) -> tuple[float, float]:
        found = decoded(world, "cluster", f"island {cluster} udp")
        assert found.close_connections_on_host_health_failure
        [check] = found.health_checks
        fails = [check.interval, check.timeout, check.unhealthy_edge_interval, check.timeout]
        assert check.unhealthy_threshold.value == 2
        connect: float = found.connect_timeout.ToTimedelta().total_seconds()
        return connect, round(sum(each.ToTimedelta().total_seconds() for each in fails), 2)

    world.imported(ECHO, c2=["10.1.0.1:8080"])
    assert not [row for row in world.rows(XDS) if row.name.endswith(" udp")]
    world.imported("demo/datagrams", protocol="UDP", c2=["10.1.0.1:8080"])
    assert seconds("c2") == (0.25, 0.61)
    assert not decoded(world, "cluster", "island c2").close_connections_on_host_health_failure
    assert not [row for row in world.rows(XDS) if row.name == "island c3 udp"]
    world.put(GATEWAY_CHECKS, GatewayCheck(cluster=C2, address="192.0.2.2:15443", healthy=True, round_trip=1 / 4))
    assert seconds("c2") == (1.0, 2.11)


def row(world: RouteWorld, type_: str, name: str) -> Resource:
    found: Resource
    [found] = [each for each in world.rows(XDS) if (each.type, each.name) == (type_, name)]
    assert problem(MESSAGES[found.type], found.body) == ""
    return found


def decoded(world: RouteWorld, type_: Any, name: str) -> Any:
    return message(MESSAGES[type_]).FromString(row(world, type_, name).body)


def in_order(world: RouteWorld, to: str = TO_C2) -> list[str]:
    """The clusters of Envoy that calls of c2 go to."""
    config = message(AGGREGATE)()
    decoded(world, "cluster", f"calls of {to}").cluster_type.typed_config.Unpack(config)
    return list(config.clusters)


def pods(world: RouteWorld) -> list[str]:
    found = decoded(world, "endpoints", f"pods beside {TO_C2}").endpoints
    return [host.endpoint.address.socket_address.address for part in found for host in part.lb_endpoints]


def test_calls_that_no_gateway_takes_go_to_pods_without_one_and_then_to_other_islands() -> None:
    world = node()
    world.imported(ECHO, c1=["10.9.0.1:8080"], c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    served(world)
    assert in_order(world) == ["island c2", f"pods beside {TO_C2}", "island c3"]
    assert pods(world) == ["10.9.0.1"]
    assert "10.1.0.1" not in repr(world.rows(XDS))


C4, C5 = ClusterName("c4"), ClusterName("c5")
OTHERS = (C3, C4, C5)


def node_of_four() -> RouteWorld:
    """c1's node, with the islands c2 to c5, which all export the service."""
    world = node()
    for cluster in (C4, C5):
        world.put(CLUSTERS, Cluster(name=cluster, network=f"of {cluster}", gateways=(f"{cluster}.example:15443",)))
        world.put(TRUST_BUNDLES, TrustBundle((cluster,)))
    there = ["10.1.0.1:8080"]
    return served(world.imported(ECHO, c2=there, c3=there, c4=there, c5=there))


def others(world: RouteWorld) -> list[str]:
    """The islands to which calls of c2 go on."""
    return [each.removeprefix("island ") for each in in_order(world)[1:]]


def policy(*tiers: tuple[Share, ...]) -> Policy:
    return Policy(name=ServiceName(ECHO), target=ServiceName(ECHO), tiers=tuple(Tier(shares) for shares in tiers))


def expected(tiers: list[list[Share]], drained: set[str]) -> list[str]:
    """The slow and obvious order: tier by tier, in each by name; what is drained behind all others."""
    shares = [(number, share) for number, tier in enumerate(tiers) for share in tier]
    found: list[tuple[bool, int, str]] = []
    for cluster in OTHERS:
        own = [each for each in shares if each[1].cluster == cluster] or [
            each for each in shares if each[1].cluster == ANY_OTHER
        ]
        if not shares:
            found.append((cluster in drained, 0, cluster))
        elif own and own[0][1].weight != 0:
            found.append((cluster in drained, own[0][0], cluster))
    return [name for _, _, name in sorted(found)]


SHARES = st.builds(Share, cluster=st.sampled_from([C2, *OTHERS, ANY_OTHER]), weight=st.sampled_from([None, 0, 1, 90]))


@settings(max_examples=60, deadline=None)
@given(
    tiers=st.lists(st.lists(SHARES, min_size=1, max_size=3), max_size=3),
    drained=st.sets(st.sampled_from(OTHERS)),
    silent=st.sets(st.sampled_from(OTHERS)),
)
def test_other_islands_come_in_the_order_of_the_policys_tiers_whichever_of_them_answer(
    tiers: list[list[Share]], drained: set[ClusterName], silent: set[ClusterName]
) -> None:
    world = node_of_four()
    for cluster in silent:
        world.put(GATEWAY_CHECKS, GatewayCheck(cluster=cluster, address="192.0.2.1:15443", healthy=False))
    if tiers:
        world.put(POLICIES, policy(*map(tuple, tiers)))
    for cluster in drained:
        world.put(DRAINING, Draining(by=cluster, drain=Drain(kind="Cluster", target=cluster), left=0))
    assert others(world) == expected(tiers, set(drained))


def test_the_order_follows_a_policy_though_no_plan_changes() -> None:
    """c4 is in no plan: a policy that never calls it changes none."""
    world = node_of_four()
    for cluster in (C4, C5):
        world.put(GATEWAY_CHECKS, GatewayCheck(cluster=cluster, address="192.0.2.1:15443", healthy=False))
    assert others(world) == ["c3", "c4", "c5"]
    before = row(world, "cluster", f"calls of {TO_C2}").version
    world.put(POLICIES, policy((Share(cluster=C2), Share(cluster=C3), Share(cluster=C5), Share(cluster=C4, weight=0))))
    assert others(world) == ["c3", "c5"]
    world.delete(POLICIES, policy())
    assert row(world, "cluster", f"calls of {TO_C2}").version == before


def test_the_order_follows_the_places_of_clusters_that_a_policy_means() -> None:
    world = node_of_four()
    near = policy((Share(cluster=C2),), (Share(region="eu"),), (Share(cluster=ANY_OTHER),))
    world.put(POLICIES, near)
    assert others(world) == ["c3", "c4", "c5"]
    world.put(CLUSTERS, Cluster(name=C5, network="of c5", gateways=("c5.example:15443",), region="eu"))
    assert others(world) == ["c5", "c3", "c4"]


def test_a_drained_part_of_a_service_comes_last() -> None:
    world = node_of_four()
    drain = Draining(by=C3, drain=Drain(kind="Service", target=ECHO), left=40)
    world.put(DRAINING, drain)
    assert others(world) == ["c3", "c4", "c5"], "a part of its share is left"
    world.put(DRAINING, replace(drain, left=0))
    assert others(world) == ["c4", "c5", "c3"]


def test_tunnels_that_no_gateway_takes_end_here_as_long_as_there_are_pods_that_need_none() -> None:
    """What they go to is no other when pods come and go."""
    world, to = node(), f"{TO_C2}/UDP"
    world.imported(ECHO, protocol="UDP", c1=["10.9.0.1:8080"], c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    served(world)
    ends = f"tunnels to pods beside {to}"
    assert in_order(world, to) == ["island c2 udp", ends, "island c3 udp"]
    [part] = decoded(world, "endpoints", ends).endpoints
    [host] = part.lb_endpoints
    assert host.endpoint.address.envoy_internal_address.server_listener_name == ends
    [chain] = decoded(world, "listener", ends).filter_chains
    manager: Any = unpacked(chain.filters[0].typed_config)
    [route] = manager.route_config.virtual_hosts[0].routes
    assert route.route.cluster == f"pods beside {to}"
    before = row(world, "cluster", f"calls of {to}").version
    world.endpoints(derived(ServiceName(ECHO)), C1)
    assert not decoded(world, "endpoints", ends).endpoints
    assert row(world, "cluster", f"calls of {to}").version == before


def test_pods_that_the_plan_gives_no_weight_are_no_fallback() -> None:
    world = served(node().imported(ECHO, c1=["10.1.0.1:8080"], c2=["10.2.0.1:8080"]))
    assert pods(world) == ["10.1.0.1"]
    [listener] = [each for each in world.rows(ISLAND_LISTENERS) if each.cluster == C2]
    plan = plan_of(world.db.snapshot(), listener)
    assert plan is not None
    idle = replace(plan, groups=tuple(replace(group, weight=0) for group in plan.groups))
    [empty] = [each for each in resources(listener, idle, (C1, C2), {C2}, ()) if each.type == "endpoints"]
    assert list(message(MESSAGES["endpoints"]).FromString(empty.body).endpoints) == []


def test_a_service_of_islands_alone_has_no_cluster_of_pods() -> None:
    world = node()
    world.imported(ECHO, c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    served(world)
    assert in_order(world) == ["island c2", "island c3"]
    world.imported(ECHO, c1=["10.9.0.1:8080"], c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    assert in_order(world) == ["island c2", f"pods beside {TO_C2}", "island c3"]


def test_what_calls_go_to_is_no_other_when_pods_and_gateways_come_and_go() -> None:
    """Envoy ends the connects that are under way through a cluster that changes."""
    world = node()
    world.imported(ECHO, c1=["10.9.0.1:8080"], c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    served(world)
    before = row(world, "cluster", f"calls of {TO_C2}").version
    listener = row(world, "listener", TO_C2).version
    for cluster in (C2, C3):
        world.put(GATEWAY_CHECKS, GatewayCheck(cluster=cluster, address="192.0.2.1:15443", healthy=False))
        assert row(world, "cluster", f"calls of {TO_C2}").version == before
    world.endpoints(derived(ServiceName(ECHO)), C1)
    assert pods(world) == []
    assert row(world, "cluster", f"calls of {TO_C2}").version == before
    assert row(world, "listener", TO_C2).version == listener


def test_requests_are_sent_again_by_their_method() -> None:
    world = node()
    world.imported(ECHO, app_protocol="http", c2=["10.1.0.1:8080"])
    *_, last = decoded(world, "listener", TO_C2).filter_chains[0].filters
    manager = message(HCM)()
    last.typed_config.Unpack(manager)
    safe, other = manager.route_config.virtual_hosts[0].routes
    assert safe.match.headers[0].string_match.safe_regex.regex.split("|") == list(RETRIED)
    assert "POST" not in RETRIED
    assert safe.route.retry_policy.retry_on == "connect-failure,refused-stream,reset"
    assert not other.match.headers
    assert other.route.retry_policy.retry_on == "connect-failure,refused-stream,reset-before-request"


def test_a_caller_is_hashed_to_the_same_island_on_all_nodes_whatever_they_learned_first() -> None:
    """Also where other services came and went before on one of them."""
    one, other = node(), node()
    other.imported("demo/before", c3=["10.1.0.9:8080"], c2=["10.1.0.9:8080"])
    served(other)
    rings = []
    there = ["10.1.0.1:8080"]
    one.imported(ECHO, c2=there, c3=there)
    other.imported(ECHO, c3=there, c2=there)
    for world in (one, other):
        served(world)
        [plan] = world.db.snapshot().by(PLANS, "service", derived(ServiceName(ECHO)))
        targets = sorted(target for group in plan.groups for target in group.targets)
        assert {target.cluster for target in targets} == {C2, C3}
        rings.append([targets[cell] for cell in maglev.table(targets)])
    assert rings[0] == rings[1]
