"""Random clusters, policies and health: kernel and Envoy share calls out as a model of ten lines does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.balancing_world import World, make
from rows.shares_model import CLUSTERS, ECHO, Topology, in_envoy, in_kernel, model, tiers, topologies

from isthmus.loadbalancer import shares
from isthmus.model.balancing import Plan
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Condition


def planned(policy: Sequence[Tier], of: Topology) -> Plan:
    """A node's plan. Endpoints of the n-th cluster are at 10.n.0.x."""
    row = Policy(name=ECHO, target=ECHO, tiers=tuple(policy))
    world = World().put(make.imported(clusters=CLUSTERS), make.derived(), row, *of.clusters)
    for n, (name, (alive, dead, away)) in enumerate(of.endpoints.items(), 1):
        conditions = [Condition.READY] * (alive + dead) + [Condition.NOT_READY] * away
        rows = [make.endpoint(f"10.{n}.0.{host}", condition=c) for host, c in enumerate(conditions, 1)]
        world.put(make.endpoints(name, *rows))
        for host in range(alive + 1, alive + dead + 1):
            world.put(make.probe(f"10.{n}.0.{host}", healthy=False, cluster=name, service=make.DERIVED))
    [plan] = world.plans
    return plan


@settings(max_examples=200, deadline=None)
@given(policy=st.lists(tiers, min_size=1, max_size=4), of=topologies)
@pytest.mark.slow
def test_the_shares_of_kernel_and_envoy_are_those_of_the_model(policy: list[Tier], of: Topology) -> None:
    plan, expected = planned(policy, of), pytest.approx(model(policy, of), abs=1e-4)
    assert shares.by_cluster(plan) == expected
    assert in_kernel(plan) == expected
    assert in_envoy(plan) == expected


@pytest.mark.parametrize(("least", "percent"), [(15, 0), (1, 50)])
def test_a_tier_that_scales_from_nothing_to_thirty_takes_its_part_at_each_step(least: int, percent: int) -> None:
    policy = [Tier((Share(CLUSTERS[0]),), least, percent), Tier((Share(CLUSTERS[1]),))]
    for ready in range(31):
        counts = {**dict.fromkeys(CLUSTERS, (0, 0, 0)), CLUSTERS[0]: (ready, 0, 30 - ready), CLUSTERS[1]: (3, 0, 0)}
        of = Topology(tuple(make.cluster(name, own=name == "c1") for name in CLUSTERS), counts)
        part = min(1.0, ready / 15)
        assert shares.by_cluster(planned(policy, of)).get(CLUSTERS[0], 0.0) == pytest.approx(part, abs=0.02)
