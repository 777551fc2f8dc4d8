"""Plans in nftables, in a lab without BPF: which VIPs they give, and the rules of those."""

from __future__ import annotations

import random
import subprocess
from typing import Any

import pytest

from isthmus.model.balancing import FrontendKey, Group, Plan, PlanKey, Scope, Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus_lab import kernel
from isthmus_lab.families import SCHEMES
from isthmus_lab.node import planned
from isthmus_lab.node.ruleset import ruleset
from isthmus_lab.node.services import Vip

FOUR, SIX = SCHEMES["IPv4"], SCHEMES["IPv6"]
HERE = FrontendKey("10.96.0.9", 80, "TCP")


def group(cluster: int, *pods: int, **more: Any) -> Group:
    name = ClusterName(f"c{cluster}")
    return Group(tuple(Target(f"10.{cluster}.1.{pod}", 8080, "TCP", name) for pod in pods), **more)


def plan(
    *groups: Group, frontends: tuple[FrontendKey, ...] = (HERE,), scope: Scope = Scope.EXTERNAL, **more: Any
) -> Plan:
    key = PlanKey(ServiceName("demo/derived-x"), 80, "TCP", "IPv4", scope)
    return Plan(key, frontends, groups, **more)


def weights(*groups: Group) -> dict[str, float]:
    """The part of all calls that each target gets."""
    [vip] = planned.over([], [plan(*groups)], FOUR)
    each = vip.weights or (1,) * len(vip.targets)
    return {address: weight / sum(each) for (address, _), weight in zip(vip.targets, each, strict=True)}


def test_one_group_is_spread_uniformly_by_the_rules_of_any_service() -> None:
    [vip] = planned.over([], [plan(group(1, 2, 3))], FOUR)

    assert (vip.targets, vip.weights) == ((("10.1.1.2", 8080), ("10.1.1.3", 8080)), ())
    assert "dnat ip to numgen random mod 2 map { 0 : 10.1.1.2 . 8080, 1 : 10.1.1.3 . 8080 };" in ruleset([vip], FOUR)
    assert "10.96.0.9 . tcp . 80 : goto s0" in ruleset([vip], FOUR)


def test_weights_are_between_groups_and_become_ranges() -> None:
    [vip] = planned.over([], [plan(group(1, 2, 3), group(2, 2, weight=3))], FOUR)

    assert "numgen random mod 65536 map { 0-8191 : 10.1.1.2 . 8080, 8192-16383 : 10.1.1.3 . 8080," in ruleset(
        [vip], FOUR
    )
    assert "16384-65535 : 10.2.1.2 . 8080 };" in ruleset([vip], FOUR)


def test_shares_are_those_of_the_plan_whatever_the_weights() -> None:
    dice = random.Random(7)
    for _ in range(200):
        sizes = [(dice.randint(0, 7), dice.choice((0, 1, 3, 10, 90))) for _ in range(dice.randint(1, 5))]
        groups = [group(n, *range(2, 2 + size), weight=weight) for n, (size, weight) in enumerate(sizes, 1)]
        used = {n: weight for n, (size, weight) in enumerate(sizes, 1) if size and weight}
        if not used:
            assert planned.over([], [plan(*groups)], FOUR) == []
            continue
        found = weights(*groups)
        for number, weight in used.items():
            part = sum(each for address, each in found.items() if address.startswith(f"10.{number}."))
            assert abs(part - weight / sum(used.values())) < 0.0005


def test_the_first_tier_that_has_a_backend_gets_all() -> None:
    assert weights(group(1, tier=0), group(2, 2, tier=1), group(3, 2, tier=2)) == {"10.2.1.2": 1.0}


def test_calls_from_outside_to_what_a_plan_replaces_still_come_back_through_the_node() -> None:
    external = Vip("10.96.0.9", "tcp", 80, (("10.9.9.9", 1),), outside=True)

    [vip] = planned.over([external], [plan(group(1, 2))], FOUR)
    assert (vip.targets, vip.outside) == ((("10.1.1.2", 8080),), True)


def test_a_plan_takes_the_place_of_the_same_address_of_a_service_and_leaves_the_others() -> None:
    derived, other = Vip("10.96.0.9", "tcp", 80, (("10.9.9.9", 1),)), Vip("10.96.0.9", "tcp", 81, (("10.9.9.9", 1),))

    assert [vip.targets for vip in planned.over([derived, other], [plan(group(1, 2))], FOUR)] == [
        (("10.1.1.2", 8080),),
        (("10.9.9.9", 1),),
    ]


def test_an_address_whose_plan_has_no_backend_is_refused_also_where_slices_have_some() -> None:
    assert planned.over([Vip("10.96.0.9", "tcp", 80, (("10.9.9.9", 1),))], [plan(group(1))], FOUR) == []


def test_pods_follow_the_plan_of_their_own_scope_and_none_that_a_redirect_replaced() -> None:
    inside, original = Scope.INTERNAL, Scope.ORIGINAL
    of = {scope: (FrontendKey("10.96.0.9", 80, "TCP", scope),) for scope in (inside, original)}
    plans = [
        plan(group(1, 2)),
        plan(group(2, 2), frontends=of[inside], scope=inside),
        plan(group(3, 2), frontends=of[original], scope=original),
    ]
    assert [vip.targets for vip in planned.over([], plans, FOUR)] == [(("10.2.1.2", 8080),)]


def test_affinity_keeps_a_client_and_a_consistent_plan_looks_at_its_address() -> None:
    [sticky] = planned.over([], [plan(group(1, 2, 3), affinity="ClientIP", affinity_timeout=60)], FOUR)
    [hashed] = planned.over([], [plan(group(1, 2, 3), consistent=True)], FOUR)

    assert "saddr timeout 60s" in ruleset([sticky], FOUR)
    assert "jhash ip saddr mod 2 seed 0x1575 map { 0 : 10.1.1.2 . 8080, 1 : 10.1.1.3 . 8080 };" in ruleset(
        [hashed], FOUR
    )


def test_a_family_has_its_own_addresses_only() -> None:
    frontends = (HERE, FrontendKey("fd00:10:96::9", 80, "TCP"))

    assert [vip.address for vip in planned.over([], [plan(group(1, 2), frontends=frontends)], SIX)] == ["fd00:10:96::9"]


@pytest.mark.lab
def test_the_kernel_takes_the_rules() -> None:
    weighted = group(2, 2, weight=3)
    plans = [
        plan(group(1, 2, 3), weighted),
        plan(group(1, 2), weighted, consistent=True, frontends=(FrontendKey("10.96.0.10", 80, "UDP"),)),
        plan(
            group(1, 2),
            weighted,
            affinity="ClientIP",
            affinity_timeout=9,
            frontends=(FrontendKey("10.96.0.11", 1, "TCP"),),
        ),
    ]
    rules = ruleset(planned.over([], plans, FOUR), FOUR)
    done = subprocess.run(
        ["nft", "-f", "-"], input=rules, text=True, capture_output=True, check=False,
        preexec_fn=lambda: kernel.unshare(kernel.CLONE_NEWNET),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
