"""What stands for the endpoints of another island in a plan: this node's Envoy, for as many as the island has."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from rows.balancing_world import DERIVED, ECHO, World, make

from isthmus.loadbalancer import policy_objects
from isthmus.loadbalancer.explain import explain
from isthmus.loadbalancer.selection import Place
from isthmus.loadbalancer.services import resolve
from isthmus.loadbalancer.shares import by_cluster
from isthmus.model.islands import GatewayCheck, IslandListener
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import HealthCheck, Policy, Share, Tier
from isthmus.model.services import Condition, Port
from isthmus.model.tables import (
    CLUSTERS,
    ENDPOINT_SETS,
    GATEWAY_CHECKS,
    IMPORTS,
    ISLAND_LISTENERS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.model.xds import EnvoyCheck, ServedListener
from isthmus.processes.start import tables_of
from isthmus.statedb import Database

C2 = ClusterName("c2")
LISTENER = IslandListener(
    service=DERIVED, cluster=C2, port=80, addresses=("169.254.7.1",), listen_port=19_100, import_of=ECHO
)


@pytest.fixture
def world() -> World:
    """c1 (here) and c3 are on one network; c2 is an island with a gateway, whose pods have addresses of c1's."""
    made = World().put(
        make.cluster("c1", own=True),
        make.cluster("c2", network="two", gateways=("172.30.2.11:15443",)),
        make.cluster("c3"),
        make.derived(),
        make.imported(),
        make.endpoints("c1", "10.1.0.1", "10.1.0.2"),
        make.endpoints("c2", "10.1.0.1", "10.1.0.2", "10.1.0.3"),
        make.endpoints("c3", "10.3.0.1"),
    )
    return serve(made)


def serve(world: World) -> World:
    with world.db.write() as txn:
        txn.put(ISLAND_LISTENERS, LISTENER)
        txn.put(XDS_SERVED, ServedListener(LISTENER.name))
    return world


def check(address: str, *, healthy: bool) -> GatewayCheck:
    return GatewayCheck(cluster=C2, address=address, healthy=healthy, reason="" if healthy else "timeout")


def weighted(world: World) -> dict[str, tuple[int, Fraction]]:
    """Target → its tier, and the weight of its group divided by the targets of that."""
    [plan] = world.plans
    return {
        f"{target.cluster}/{target.address}:{target.port}": (group.tier, Fraction(group.weight, len(group.targets)))
        for group in plan.groups
        for target in group.targets
    }


def test_local_flat_and_island_backends_stand_side_by_side_each_endpoint_with_the_same_part(world: World) -> None:
    found = weighted(world)
    assert set(found) == {"c1/10.1.0.1:8080", "c1/10.1.0.2:8080", "c3/10.3.0.1:8080", "c2/169.254.7.1:19100"}
    local = found["c1/10.1.0.1:8080"][1]
    assert found["c2/169.254.7.1:19100"] == (0, 3 * local)
    assert found["c3/10.3.0.1:8080"] == (0, local)
    proxied = {t.cluster: t.proxy for plan in world.plans for group in plan.groups for t in group.targets}
    assert proxied == {"c1": False, "c2": True, "c3": False}


def test_no_address_of_an_island_is_anywhere(world: World) -> None:
    assert "10.1.0.3" not in repr([*world.backends, *world.plans])
    account = explain(world.settle().db.snapshot(), DERIVED, place=Place(ClusterName("c1"), "n1"))
    assert "10.1.0.3" not in repr(account)
    through = "c2: its 3 endpoints are called through this node's Envoy and its gateways"
    assert any(each.startswith(f"{through}: ") for each in account.notes)


def test_endpoints_that_are_not_ready_do_not_count(world: World) -> None:
    some = make.endpoint("10.1.0.2", condition=Condition.NOT_READY)
    world.put(make.endpoints("c2", "10.1.0.1", some, make.endpoint("10.1.0.3", ports=(Port("other", 1),))))
    assert [row.stands_for for row in world.backends if row.key.cluster == C2] == [1]
    world.put(make.endpoints("c2", some))
    assert not any(name.startswith("c2/") for name in weighted(world))
    world.put(make.endpoints("c2"))
    assert not any(row.key.cluster == C2 for row in world.backends)


def test_without_a_gateway_that_answers_calls_go_elsewhere_and_come_back(world: World) -> None:
    world.put(check("172.30.2.11:15443", healthy=False), check("172.30.2.12:15443", healthy=True))
    assert "c2/169.254.7.1:19100" in weighted(world)
    world.put(check("172.30.2.12:15443", healthy=False))
    assert not any(name.startswith("c2/") for name in weighted(world))
    account = explain(world.settle().db.snapshot(), DERIVED, place=Place(ClusterName("c1"), "n1"))
    assert any("dead: 172.30.2.11:15443 (timeout), 172.30.2.12:15443 (timeout)" in each for each in account.notes)
    world.put(check("172.30.2.12:15443", healthy=True))
    assert "c2/169.254.7.1:19100" in weighted(world)


def test_a_listener_that_envoy_does_not_serve_is_no_backend(world: World) -> None:
    with world.db.write() as txn:
        txn.delete(XDS_SERVED, LISTENER.name)
    assert not any(name.startswith("c2/") for name in weighted(world))
    assert "c2/169.254.7.1:19100" in weighted(serve(world))


def test_an_island_is_called_while_this_nodes_envoy_answers_and_left_out_while_it_hangs(world: World) -> None:
    world.put(EnvoyCheck(healthy=True))
    assert "c2/169.254.7.1:19100" in weighted(world)
    world.put(EnvoyCheck(healthy=False, reason="does not answer"))
    assert set(weighted(world)) == {"c1/10.1.0.1:8080", "c1/10.1.0.2:8080", "c3/10.3.0.1:8080"}
    account = explain(world.settle().db.snapshot(), DERIVED, place=Place(ClusterName("c1"), "n1"))
    assert any(each.endswith("this node's Envoy does not answer") for each in account.notes)
    world.put(EnvoyCheck(healthy=True))
    assert "c2/169.254.7.1:19100" in weighted(world)


def test_a_service_whose_only_way_is_an_envoy_that_hangs_has_a_plan_without_targets(world: World) -> None:
    """Calls are then refused at once."""
    world.put(make.endpoints("c1"), make.endpoints("c3"), EnvoyCheck(healthy=False, reason="does not answer"))
    [plan] = world.plans
    assert plan.groups == ()


def test_a_cluster_without_a_gateway_is_not_called(world: World) -> None:
    world.put(make.cluster("c2", network="two"))
    assert not any(name.startswith("c2/") for name in weighted(world))
    notes = explain(world.db.snapshot(), DERIVED, place=Place(ClusterName("c1"), "n1")).notes
    assert "c2: 3 endpoints are not used: that cluster is on another network, and has no gateway" in notes


def test_a_cluster_that_does_not_export_is_not_called(world: World) -> None:
    world.put(make.imported(clusters=(ClusterName("c1"),)))
    assert not any(name.startswith("c2/") for name in weighted(world))


@pytest.mark.parametrize(
    ("tiers", "want"),
    [
        (("c1", "c2"), {"c1/10.1.0.1:8080": 0, "c1/10.1.0.2:8080": 0, "c2/169.254.7.1:19100": 1}),
        (("c2", "c1"), {"c2/169.254.7.1:19100": 0, "c1/10.1.0.1:8080": 1, "c1/10.1.0.2:8080": 1}),
    ],
)
def test_an_island_is_in_its_tier_with_all_that_it_has(world: World, tiers: Any, want: dict[str, int]) -> None:
    rows = tuple(Tier((Share(ClusterName(name)),), min_healthy=2) for name in tiers)
    world.put(Policy(name=ECHO, target=ECHO, tiers=rows))
    assert {name: tier for name, (tier, _) in weighted(world).items()} == want


def test_an_island_is_not_probed_from_here(world: World) -> None:
    world.put(Policy(name=ECHO, target=ECHO, health=HealthCheck()))
    assert {each.key.cluster for each in world.checks} == {"c3"}
    assert GATEWAY_CHECKS.name == "gateway_checks"


def test_a_change_of_an_islands_endpoints_beside_many_others_brings_none_of_its_addresses(world: World) -> None:
    world.put(make.endpoints("c1", *(f"10.1.7.{n}" for n in range(1, 201)))).settle()
    world.put(make.endpoints("c2", *(f"10.1.9.{n}" for n in range(1, 11))))
    assert [row.stands_for for row in world.backends if row.key.cluster == C2] == [10]
    world.put(make.endpoints("c1", *(f"10.1.7.{n}" for n in range(1, 200))))
    found = weighted(world)
    assert found["c2/169.254.7.1:19100"][1] == 10 * found["c1/10.1.7.1:8080"][1]
    assert "10.1.9." not in repr([*world.backends, *world.plans])


def test_an_operators_database_has_every_table_that_the_status_of_a_policy_of_an_island_reads() -> None:
    declared = policy_objects.derived(ClusterName("c1"))
    db = Database(*tables_of([declared]))
    with db.write() as txn:
        txn.put(CLUSTERS, make.cluster("c1", own=True, network="one"))
        txn.put(CLUSTERS, make.cluster("c2", network="two", gateways=("172.30.2.11:15443",)))
        txn.put(IMPORTS, make.imported(clusters=(C2,)))
        txn.put(SERVICES, make.derived())
        txn.put(ENDPOINT_SETS, make.endpoints("c2", "10.1.0.1"))
    gone = resolve(db.snapshot(), ServiceName("demo/gone"), which="multicluster")
    assert gone is None, "a policy may be there before its service"
    subject = resolve(db.snapshot(), DERIVED, which="multicluster")
    assert subject is not None
    policy = Policy(name=ECHO, target=ECHO)
    plans = policy_objects.planned(db.snapshot(), subject, policy, cluster=ClusterName("c1"))
    assert [by_cluster(plan) for plan in plans] == [{C2: 1.0}]


def test_a_dual_stack_island_weighs_as_many_pods_as_it_has_not_as_many_addresses(world: World) -> None:
    world.put(make.endpoints("c2", "10.1.0.1", "10.1.0.2", "10.1.0.3", "fd00:2::1", "fd00:2::2", "fd00:2::3"))
    found = weighted(serve(world))
    assert found["c2/169.254.7.1:19100"] == (0, 3 * found["c1/10.1.0.1:8080"][1])
