"""How a policy shares calls out over clusters."""

from __future__ import annotations

from typing import Any

import pytest
from balancing_world import PERMISSIVE, World, make

from isthmus.model.balancing import ANY_OTHER, Group, Policy, Share, Tier
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Condition


def tier(*clusters: str, least: int = 1, **weights: int) -> Tier:
    shares = [Share(ClusterName(cluster)) for cluster in clusters]
    return Tier((*shares, *(Share(ClusterName(of), weight) for of, weight in weights.items())), least)


def policy(*tiers: Tier, name: str = "demo/policy", target: str = "demo/echo", **fields: Any) -> Policy:
    return Policy(name=ServiceName(name), target=ServiceName(target), tiers=tiers, **fields)


def groups(world: World) -> list[tuple[int, int, list[str]]]:
    """(tier, weight, clusters) of each group of the one plan."""
    [plan] = world.plans
    return [(group.tier, group.weight, sorted(target.cluster for target in group.targets)) for group in plan.groups]


def world_of(**ready: int) -> World:
    """An import with so many ready endpoints in each cluster."""
    world = World().put(make.derived())
    for n, (cluster, count) in enumerate(ready.items(), 1):
        world.put(make.endpoints(cluster, *(f"10.{n}.0.{host}" for host in range(1, count + 1))))
    return world


def test_without_a_policy_all_backends_are_one_group() -> None:
    assert groups(world_of(c1=1, c2=2)) == [(0, 1, ["c1", "c2", "c2"])]


def test_tiers_are_groups_in_order_so_that_the_kernel_can_fall_back_by_itself() -> None:
    world = world_of(c1=1, c2=2, c3=1).put(policy(tier("c1"), tier("c2", "c3")))
    assert groups(world) == [(0, 1, ["c1"]), (1, 1, ["c2", "c2", "c3"])]


def test_a_tier_with_nothing_ready_is_not_there() -> None:
    world = world_of(c1=0, c2=2).put(policy(tier("c1"), tier("c2")))
    assert groups(world) == [(0, 1, ["c2", "c2"])]


def test_weights_make_a_group_of_each_cluster() -> None:
    world = world_of(c1=1, c2=2).put(policy(tier(c1=90, c2=10)))
    assert groups(world) == [(0, 90, ["c1"]), (0, 10, ["c2", "c2"])]


def test_who_has_no_weight_beside_others_that_have_counts_as_one() -> None:
    world = world_of(c1=1, c2=2).put(policy(tier("c1", c2=3)))
    assert groups(world) == [(0, 1, ["c1"]), (0, 3, ["c2", "c2"])]


def test_a_weight_of_nothing_is_called_by_nobody() -> None:
    world = world_of(c1=1, c2=2).put(policy(tier(c1=1, c2=0)))
    assert groups(world) == [(0, 1, ["c1"])]


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (2, [(0, 1, ["c1", "c1"]), (1, 1, ["c2"])]),
        (3, [(0, 1, ["c1", "c1", "c2"])]),
        (99, [(0, 1, ["c1", "c1", "c2"])]),
    ],
)
def test_a_tier_with_fewer_than_its_minimum_is_helped_by_the_next(
    least: int, expected: list[tuple[int, int, list[str]]]
) -> None:
    assert groups(world_of(c1=2, c2=1).put(policy(tier("c1", least=least), tier("c2")))) == expected


def test_only_ready_endpoints_count_towards_the_minimum() -> None:
    world = world_of(c1=0, c2=1).put(policy(tier("c1", least=2), tier("c2")))
    away = make.endpoint("10.1.0.2", condition=Condition.NOT_READY)
    world.put(make.endpoints("c1", "10.1.0.1", away))
    assert groups(world) == [(0, 1, ["c1", "c2"])]


def test_a_cluster_that_no_tier_names_is_not_called() -> None:
    world = world_of(c1=1, c2=1).put(policy(tier("c1")))
    assert groups(world) == [(0, 1, ["c1"])]


def test_every_other_cluster_can_be_named_together() -> None:
    world = world_of(c1=1, c2=1, c3=1).put(policy(tier("c1"), tier(ANY_OTHER)))
    assert groups(world) == [(0, 1, ["c1"]), (1, 1, ["c2", "c3"])]


def test_a_policy_with_tiers_stands_above_the_services_own_affinity() -> None:
    world = world_of(c1=1, c2=1)
    world.put(make.derived(annotations=(("service.cilium.io/affinity", "local"),)), policy(tier("c2"), tier("c1")))
    assert groups(world) == [(0, 1, ["c2"]), (1, 1, ["c1"])]


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_two_policies_the_older_counts_and_the_other_surfaces_when_it_goes(newest_first: bool) -> None:
    old = policy(tier("c1"), name="demo/z", created="2026-01-01T00:00:00Z")
    new = policy(tier("c2"), name="demo/a", created="2026-01-02T00:00:00Z")
    world = world_of(c1=1, c2=1)
    for row in (new, old) if newest_first else (old, new):
        world.put(row).settle()
    assert groups(world) == [(0, 1, ["c1"])]
    assert groups(world.delete(old)) == [(0, 1, ["c2"])]
    assert groups(world.delete(new)) == [(0, 1, ["c1", "c2"])]


def test_a_policy_for_a_service_is_none_for_the_import_of_its_name() -> None:
    of_service = policy(tier("c1"), kind="Service")
    assert groups(world_of(c1=1, c2=1).put(of_service)) == [(0, 1, ["c1", "c2"])]
    world = World().put(make.globally(), of_service)
    world.put(*(make.endpoints(c, f"10.{c[1]}.0.1", service="demo/echo") for c in ("c1", "c2")))
    assert groups(world) == [(0, 1, ["c1"])]


def test_a_policy_may_come_before_its_service() -> None:
    world = World(rules=PERMISSIVE).put(policy(tier("c2"))).settle()
    world.put(make.imported(), make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1"))
    assert groups(world) == [(0, 1, ["c2"])]


def test_a_policys_affinity_and_hashing_stand_above_the_services() -> None:
    world = world_of(c1=1).put(make.derived(affinity="ClientIP"))
    assert [(p.affinity, p.affinity_timeout, p.consistent) for p in world.plans] == [("ClientIP", 10800, False)]
    world.put(policy(affinity="None", consistent=True))
    assert [(p.affinity, p.affinity_timeout, p.consistent) for p in world.plans] == [("None", 0, True)]


def test_more_clusters_than_a_plan_has_groups_share_the_last_one() -> None:
    weights = {f"c{n}": n for n in range(1, 41)}
    [plan] = world_of(**dict.fromkeys(weights, 1)).put(policy(tier(**weights))).plans
    assert len(plan.groups) == 32
    assert sum(group.weight for group in plan.groups) == sum(weights.values())
    assert sum(len(group.targets) for group in plan.groups) == 40
    assert isinstance(plan.groups[-1], Group)
