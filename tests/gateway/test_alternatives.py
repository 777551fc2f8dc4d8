"""What a node's tables come to where an island is not all that a service has, without Envoy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from island_world import C3, DOMAIN
from msgspec.structs import replace
from route_world import C1, C2, RouteWorld

from isthmus.gateway.alternatives import AGGREGATE
from isthmus.gateway.http import RETRIED
from isthmus.gateway.islands import NodeOf
from isthmus.loadbalancer import maglev
from isthmus.model.clusters import Cluster
from isthmus.model.islands import GatewayCheck, TrustBundle
from isthmus.model.names import ServiceName, derived
from isthmus.model.tables import CLUSTERS, GATEWAY_CHECKS, ISLAND_LISTENERS, PLANS, TRUST_BUNDLES, XDS, XDS_SERVED
from isthmus.model.xds import Resource, ServedListener
from isthmus.proxy.clusters import HTTP_OPTIONS
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.listeners import HCM
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.rules import problem

ECHO = "demo/echo"
TO_C2 = f"island c2 {derived(ServiceName(ECHO))}:80"


def node() -> RouteWorld:
    """c1's node, with the islands c2 and c3."""
    of = NodeOf(C1, DOMAIN, Path("/run/isthmus/proxy"), ("169.254.7.1",), 19_100, 4_000)
    world = RouteWorld(island=of).put(CLUSTERS, Cluster(name=C1, own=True, network="one"))
    for cluster in (C2, C3):
        world.put(CLUSTERS, Cluster(name=cluster, network=f"of {cluster}", gateways=(f"{cluster}.example:15443",)))
        world.put(TRUST_BUNDLES, TrustBundle((cluster,)))
    return world


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


def test_tunnels_have_the_time_of_the_farthest_gateway_that_they_may_call() -> None:
    world = node()
    world.imported(ECHO, protocol="UDP", c2=["10.1.0.1:8080"], c3=["10.1.0.1:8080"])
    world.imported("demo/near", protocol="UDP", c3=["10.1.0.1:8080"])

    def seconds(service: str, cluster: str) -> tuple[float, float]:
        name = f"datagrams of island {cluster} {derived(ServiceName(service))}:80/UDP"
        found = decoded(world, "cluster", name)
        options: Any = unpacked(found.typed_extension_protocol_options[HTTP_OPTIONS])
        ping = options.explicit_http_config.http2_protocol_options.connection_keepalive.timeout
        return found.connect_timeout.ToTimedelta().total_seconds(), ping.ToTimedelta().total_seconds()

    every = [(ECHO, "c2"), (ECHO, "c3"), ("demo/near", "c3")]
    assert [seconds(*each) for each in every] == [(0.25, 0.5)] * 3
    far = GatewayCheck(cluster=C2, address="192.0.2.2:15443", healthy=True, round_trip=1 / 4)
    world.put(GATEWAY_CHECKS, far)
    assert [seconds(*each) for each in every] == [(1.0, 2.0), (1.0, 2.0), (0.25, 0.5)]
    world.put(GATEWAY_CHECKS, replace(far, round_trip=8.0))
    assert seconds(ECHO, "c2") == (5.0, 10.0)
    world.delete(GATEWAY_CHECKS, replace(far, round_trip=8.0))
    assert [seconds(*each) for each in every] == [(0.25, 0.5)] * 3


def row(world: RouteWorld, type_: str, name: str) -> Resource:
    found: Resource
    [found] = [each for each in world.rows(XDS) if (each.type, each.name) == (type_, name)]
    assert problem(MESSAGES[found.type], found.body) == ""
    return found


def decoded(world: RouteWorld, type_: Any, name: str) -> Any:
    return message(MESSAGES[type_]).FromString(row(world, type_, name).body)


def in_order(world: RouteWorld) -> list[str]:
    """The clusters of Envoy that calls of c2 go to."""
    config = message(AGGREGATE)()
    decoded(world, "cluster", f"calls of {TO_C2}").cluster_type.typed_config.Unpack(config)
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
