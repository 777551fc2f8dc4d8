"""The plan of calls that a route sends to one cluster."""

from __future__ import annotations

from isthmus.model.balancing import Group, Plan, PlanKey, Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus.proxy.clusters import localities, toward

KEY = PlanKey(ServiceName("demo/echo"), 80, "TCP", "IPv4")


def at(cluster: str, number: int) -> Target:
    return Target(f"10.{cluster[1:]}.0.{number}", 80, "TCP", ClusterName(cluster))


def of(*groups: Group) -> list[tuple[int, int, list[str]]]:
    """The groups towards c2 as tier, weight and addresses."""
    found = toward(Plan(KEY, (), groups), "c2").groups
    return [(group.tier, group.weight, [target.address for target in group.targets]) for group in found]


def test_its_backends_come_first_and_the_others_behind_and_each_is_there_once() -> None:
    """Envoy keeps a host once, so one in two priorities is taken from one of them."""
    both = Group((at("c1", 1), at("c2", 1), at("c2", 2)))
    assert of(both) == [(0, 1, ["10.2.0.1", "10.2.0.2"]), (1, 1, ["10.1.0.1"])]


def test_those_of_a_later_tier_come_first_in_their_order() -> None:
    tiers = (
        Group((at("c1", 1),), 0, 9),
        Group((at("c3", 1),), 0, 1),
        Group((at("c2", 1),), 2),
        Group((at("c2", 2),), 3),
    )
    assert of(*tiers) == [
        (0, 1, ["10.2.0.1"]),
        (1, 1, ["10.2.0.2"]),
        (4, 9, ["10.1.0.1"]),
        (4, 1, ["10.3.0.1"]),
    ]


def test_without_any_there_calls_go_as_all_others() -> None:
    assert of(Group((at("c1", 1),), 0, 9), Group((at("c3", 1),), 1)) == [(0, 9, ["10.1.0.1"]), (1, 1, ["10.3.0.1"])]


def test_a_group_without_weight_is_not_called() -> None:
    groups = Group((at("c1", 1),), 0, 0), Group((at("c2", 1),), 0, 3)
    assert [each["load_balancing_weight"] for each in localities(groups)] == [{"value": 3}]
