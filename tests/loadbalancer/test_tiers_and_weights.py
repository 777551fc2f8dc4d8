"""How a policy shares calls out over clusters."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.balancing_world import PERMISSIVE, World, make

from isthmus.loadbalancer import Place as At
from isthmus.loadbalancer.explain import explain
from isthmus.model.balancing import Group
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import ANY_OTHER, THIS_CLUSTER, Policy, Share, Tier
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
    assert groups(world) == [(0, 9, ["c1"]), (0, 1, ["c2", "c2"])]


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
        (3, [(0, 2, ["c1", "c1"]), (0, 1, ["c2"])]),
        (99, [(0, 2, ["c1", "c1"]), (0, 97, ["c2"])]),
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
    assert groups(world) == [(0, 1, ["c1"]), (0, 1, ["c2"])]


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


# The rule of tiers, as a table


class Case(NamedTuple):
    """Tiers as (usable, known, wanted, percent, weight) of one cluster each, and the part of the calls each has."""

    tiers: tuple[dict[str, Any], ...]
    shares: tuple[float, ...]


CASES = {
    "90/10 over 1 and 5 backends": Case(({"usable": (1, 5), "weights": (90, 10)},), (0.9, 0.1)),
    "90/10 with three of four of the first dead": Case(
        ({"usable": (1, 4), "known": (4, 4), "weights": (90, 10)},), (0.9, 0.1)
    ),
    "the first group empty": Case(({"usable": (0, 5), "known": (3, 5), "weights": (90, 10)},), (0.0, 1.0)),
    "one of ten usable and one wanted": Case(({"usable": (1,), "known": (10,)}, {"usable": (6,)}), (1.0, 0.0)),
    "two usable and three wanted": Case(({"usable": (2,), "wanted": 3}, {"usable": (10,)}), (2 / 3, 1 / 3)),
    "scaling up, 1 of 15": Case(({"usable": (1,), "wanted": 15}, {"usable": (30,)}), (1 / 15, 14 / 15)),
    "scaling up, 14 of 15": Case(({"usable": (14,), "wanted": 15}, {"usable": (30,)}), (14 / 15, 1 / 15)),
    "scaling up, 15 of 15": Case(({"usable": (15,), "wanted": 15}, {"usable": (30,)}), (1.0, 0.0)),
    "half of ten wanted, four usable": Case(
        ({"usable": (4,), "known": (10,), "percent": 50}, {"usable": (3,)}), (0.8, 0.2)
    ),
    "a third of ten is four": Case(({"usable": (2,), "known": (10,), "percent": 33}, {"usable": (3,)}), (0.5, 0.5)),
    "tiers 0 and 1 empty": Case(({"usable": (0,)}, {"usable": (0,)}, {"usable": (2,)}), (0.0, 0.0, 1.0)),
    "the last tier leaves a remainder": Case(
        ({"usable": (1,), "wanted": 4}, {"usable": (1,), "wanted": 4}), (4 / 7, 3 / 7)
    ),
    "weight 0 drains": Case(({"usable": (5, 5), "weights": (0, 1)},), (0.0, 1.0)),
    "a tier that is drained leaves all": Case(({"usable": (5,), "weights": (0,)}, {"usable": (1,)}), (0.0, 1.0)),
    "a drained share does not count towards the minimum": Case(
        ({"usable": (5, 1), "weights": (0, 1), "wanted": 2}, {"usable": (1,)}), (0.0, 0.5, 0.5)
    ),
}


def played(tiers: tuple[dict[str, Any], ...]) -> dict[str, float]:
    """The part of the calls that each cluster has, by the plan of a node: clusters are k1, k2 … in order."""
    world, spelled, number = World().put(make.derived()), [], 0
    for each in tiers:
        found = []
        usable = each["usable"]
        weights = each.get("weights", (None,) * len(usable))
        for ready, known, weight in zip(usable, each.get("known", usable), weights, strict=True):
            number += 1
            cluster = f"k{number}"
            found.append(Share(ClusterName(cluster), weight))
            condition = [Condition.READY] * ready + [Condition.NOT_READY] * (known - ready)
            endpoints = [make.endpoint(f"10.{number}.0.{n}", condition=c) for n, c in enumerate(condition, 1)]
            world.put(make.endpoints(cluster, *endpoints))
        spelled.append(Tier(tuple(found), each.get("wanted", 1), each.get("percent", 0)))
    [plan] = world.put(policy(*spelled)).plans
    first = [group for group in plan.groups if group.tier == 0]
    parts: dict[str, float] = {f"k{n}": 0.0 for n in range(1, number + 1)}
    for group in first:
        for target in group.targets:
            parts[target.cluster] += group.weight / sum(g.weight for g in first) / len(group.targets)
    return parts


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_row_of_the_rule_of_tiers_gives_its_shares(case: Case) -> None:
    assert list(played(case.tiers).values()) == pytest.approx(list(case.shares), abs=1e-5)


def test_what_has_no_calls_now_is_a_fallback_in_order() -> None:
    world = world_of(c1=1, c2=1, c3=1, c4=1).put(policy(tier("c1"), tier(c2=3, c3=1), tier("c4"), tier("c5")))
    assert groups(world) == [(0, 1, ["c1"]), (1, 3, ["c2"]), (1, 1, ["c3"]), (2, 1, ["c4"])]


def test_a_drained_cluster_is_no_fallback_and_explained() -> None:
    world = world_of(c1=1, c2=1).put(policy(tier("c1"), tier(c2=0)))
    assert groups(world) == [(0, 1, ["c1"])]
    found = explain(world.settle().db.snapshot(), make.DERIVED, place=At(ClusterName("c1"), "n1"))
    assert [out.reason for out in found.paths[0].left_out] == ["its cluster is drained: the policy gives it weight 0"]


def test_what_a_drained_cluster_has_alive_does_not_make_probes_of_the_others_count() -> None:
    world = World().put(make.derived(), policy(tier(c1=1, c2=0)))
    world.put(make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1"))
    world.put(make.probe("10.1.0.1", healthy=False, service=make.DERIVED))
    assert groups(world) == [(0, 1, ["c1"])], "nothing usable anywhere: all are treated as usable"


def test_a_region_and_a_zone_name_clusters_and_a_name_comes_before_both() -> None:
    world = world_of(c1=1, c2=1, c3=1, c4=1)
    world.put(make.cluster("c1", own=True, region="r1"), make.cluster("c2", region="r1", zone="a"))
    world.put(make.cluster("c3", region="r1", zone="b"), make.cluster("c4", region="r2"))
    r1, a = Share(region="r1"), Share(region="r1", zone="b")
    world.put(policy(Tier((Share(THIS_CLUSTER),)), Tier((r1,)), Tier((a, Share(ANY_OTHER)))))
    assert groups(world) == [(0, 1, ["c1"]), (1, 1, ["c2", "c3"]), (2, 1, ["c4"])]
    world.put(policy(Tier((Share(THIS_CLUSTER),)), Tier((r1,)), tier("c3")))
    assert groups(world) == [(0, 1, ["c1"]), (1, 1, ["c2"]), (2, 1, ["c3"])]
    world.put(make.cluster("c2", region="r2"))
    assert groups(world) == [(0, 1, ["c1"]), (1, 1, ["c3"])]


def test_labels_name_clusters_that_have_all_of_them_wherever_they_are() -> None:
    world = world_of(c1=1, c2=1, c3=1)
    gold, eu = (("class", "gold"),), (("class", "gold"), ("place", "eu"))
    world.put(make.cluster("c1", own=True, labels=gold), make.cluster("c2", labels=eu, region="r1"))
    world.put(make.cluster("c3", labels=(("class", "silver"),)))
    world.put(policy(Tier((Share(labels=eu),)), Tier((Share(labels=gold),)), tier(ANY_OTHER)))
    assert groups(world) == [(0, 1, ["c2"]), (1, 1, ["c1"]), (2, 1, ["c3"])]
    world.put(policy(Tier((Share(labels=gold, region="r1"),))))
    assert groups(world) == [(0, 1, ["c2"])]
    world.put(make.cluster("c3", labels=gold, region="r1"))
    assert groups(world) == [(0, 1, ["c2", "c3"])], "a cluster that gets labels changes what policies share out"


def test_more_groups_than_a_plan_has_room_for_are_joined_and_fallbacks_stay_behind() -> None:
    world = world_of(**{f"c{n}": 1 for n in range(1, 61)})
    called, behind = {f"c{n}": n for n in range(1, 41)}, {f"c{n}": n for n in range(41, 61)}
    found = groups(world.put(policy(tier(**called), tier(**behind))))
    assert len(found) == 32
    assert sum(weight for at, weight, _ in found if at == 0) == sum(called.values())
    assert {name for at, _, names in found if at == 0 for name in names} == set(called)
    assert {name for at, _, names in found if at == 1 for name in names} == set(behind)


tiers_ = st.lists(
    st.fixed_dictionaries(
        {
            "usable": st.lists(st.integers(0, 4), min_size=3, max_size=3).map(tuple),
            "weights": st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=3, max_size=3).map(tuple),
            "wanted": st.integers(1, 9),
        }
    ),
    min_size=1,
    max_size=4,
).map(tuple)


def model(tiers: tuple[dict[str, Any], ...]) -> list[float]:
    """The rule in ten lines: a call meets the tiers in order, as often as it takes."""
    parts, left = [], 1.0
    for each in tiers:
        counting = [w != 0 and n for n, w in zip(each["usable"], each["weights"], strict=True)]
        taken = left * min(1.0, sum(counting) / each["wanted"])
        left -= taken
        bare = all(w is None for n, w in zip(counting, each["weights"], strict=True) if n)
        by = [
            0 if not n else n if bare else 1 if w is None else w for n, w in zip(counting, each["weights"], strict=True)
        ]
        parts += [taken * b / sum(by) if b else 0.0 for b in by]
    return [part / sum(parts) if sum(parts) else 0.0 for part in parts]


@settings(max_examples=150, deadline=None)
@given(tiers=tiers_)
@pytest.mark.slow
def test_the_plan_gives_the_shares_of_a_ten_line_model(tiers: tuple[dict[str, Any], ...]) -> None:
    assert list(played(tiers).values()) == pytest.approx(model(tiers), abs=1e-4)
