"""What a plan falls back to where a policy's locality or a service's affinity prefers some backends to others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.balancing_world import World, make

from isthmus.loadbalancer import shares
from isthmus.model.balancing import Group
from isthmus.model.names import ServiceName
from isthmus.model.policies import Policy
from isthmus.model.services import Condition, EndpointSet, Node

REGIONS = {"c1": "r1", "c2": "r1", "c3": "r2", "c4": ""}
"""c1 is the caller's; nothing is known of where c4 is."""
CONDITIONS = (Condition.READY, Condition.READY, Condition.TERMINATING, Condition.NOT_READY)

endpoints = st.builds(
    lambda condition, node, zone: {"condition": condition, "node": node, "zone": zone},
    st.sampled_from(CONDITIONS),
    st.sampled_from(["n1", "n2"]),
    st.sampled_from(["z1", "z2"]),
)
everywhere = st.fixed_dictionaries({name: st.lists(endpoints, max_size=3) for name in REGIONS})
preferences = st.one_of(
    st.sampled_from(["Node", "Zone", "Cluster", "Region"]).map(lambda step: {"locality": step}),
    st.sampled_from(["local", "remote"]).map(lambda step: {"affinity": step}),
)


def rows(found: dict[str, list[dict[str, Any]]]) -> list[EndpointSet]:
    """The endpoints of each cluster: c2's second one is 10.2.0.2."""
    return [
        make.endpoints(name, *(make.endpoint(f"10.{name[1]}.0.{n}", **each) for n, each in enumerate(of, 1)))
        for name, of in found.items()
    ]


def planned(found: dict[str, list[dict[str, Any]]], locality: str = "", affinity: str = "") -> tuple[Group, ...]:
    world = World().put(Node("n1", ("172.30.1.11",), zone="z1"))
    world.put(*(make.cluster(name, own=name == "c1", region=region) for name, region in REGIONS.items()))
    world.put(make.derived(annotations=(("service.cilium.io/affinity", affinity),) if affinity else ()))
    if locality:
        name = ServiceName("demo/echo")
        world.put(Policy(name=name, target=name, locality=locality))  # type: ignore[arg-type]
    [plan] = world.put(*rows(found)).plans
    assert not plan.groups or sum(shares.by_cluster(plan).values()) == pytest.approx(1.0)
    return plan.groups


def addresses(groups: tuple[Group, ...]) -> list[str]:
    return [target.address for group in groups for target in group.targets]


def without(found: dict[str, list[dict[str, Any]]], gone: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The same, with nothing at these addresses."""
    away = {"condition": Condition.GONE}
    return {
        name: [each | away if f"10.{name[1]}.0.{n}" in gone else each for n, each in enumerate(of, 1)]
        for name, of in found.items()
    }


@settings(max_examples=200, deadline=None)
@given(found=everywhere, preference=preferences)
def test_a_plan_falls_back_to_what_it_would_be_without_what_it_calls(found: Any, preference: Any) -> None:
    """So the kernel, which finds them dead first, comes to where the planner comes when readiness has it."""
    if preference.get("affinity") == "remote":  # other clusters' come first though all of them are terminating
        found = {
            name: [each for each in of if each["condition"] != Condition.TERMINATING] for name, of in found.items()
        }
    called, *behind = planned(found, **preference) or (Group(()),)
    assert called.tier == 0
    if behind:
        ready = [Group(group.targets, group.tier - 1, group.weight) for group in behind]
        assert tuple(ready) == planned(without(found, set(addresses((called,)))), **preference)


@settings(max_examples=200, deadline=None)
@given(found=everywhere, preference=preferences)
def test_a_preference_leaves_out_nothing_that_is_ready_and_lists_it_once(found: Any, preference: Any) -> None:
    groups = planned(found, **preference)
    plain = addresses(planned(found))
    if any(each["condition"] is Condition.READY for of in found.values() for each in of):
        called = [address for address in addresses(groups) if address in plain]
        assert sorted(called) == sorted(plain)
    assert len(set(addresses(groups))) == len(addresses(groups))
