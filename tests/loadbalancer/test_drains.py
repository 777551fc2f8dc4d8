"""What is drained takes no new call while something else can; how that goes by time, and whose drains count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows.balancing_world import ECHO, World, make

from isthmus.loadbalancer import drains
from isthmus.loadbalancer.drains import Drained, in_force, step
from isthmus.loadbalancer.explain import explain
from isthmus.loadbalancer.selection import Place
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Condition, Node
from isthmus.times import timestamp

NOW = datetime(2026, 11, 22, 7, 0, tzinfo=UTC)
C1, C2 = ClusterName("c1"), ClusterName("c2")


def ago(seconds: float) -> str:
    return timestamp(NOW - timedelta(seconds=seconds))


def draining(kind: str, target: str, *, by: str = "c1", left: int = 0, **fields: Any) -> Draining:
    return Draining(by=ClusterName(by), drain=Drain(kind=kind, target=target, reason="test"), left=left, **fields)


def world(*rows: Any, **ready: int) -> World:
    found = World().put(make.derived())
    for n, (cluster, count) in enumerate(ready.items(), 1):
        found.put(make.endpoints(cluster, *(f"10.{n}.0.{host}" for host in range(1, count + 1))))
    return found.put(*rows)


def shares(found: World) -> dict[str, Fraction]:
    """The part of the calls that each cluster has, by the one plan's groups of tier 0."""
    [plan] = found.plans
    called = [group for group in plan.groups if group.tier == 0]
    parts: dict[str, Fraction] = defaultdict(Fraction)
    for group in called:
        for target in group.targets:
            parts[target.cluster] += Fraction(group.weight, sum(g.weight for g in called)) / len(group.targets)
    return dict(parts)


def test_a_drained_cluster_is_in_no_plan() -> None:
    assert shares(world(draining("Cluster", "c2"), c1=1, c2=3)) == {"c1": 1}


def test_the_plan_is_as_before_when_the_drain_ends() -> None:
    row = draining("Cluster", "c2")
    drained = world(row, c1=1, c2=3)
    assert drained.plans
    drained.delete(row)
    assert shares(drained) == {"c1": Fraction(1, 4), "c2": Fraction(3, 4)}


def test_a_cluster_that_alone_has_the_service_goes_on_being_called() -> None:
    assert shares(world(draining("Cluster", "c2"), c2=3)) == {"c2": 1}


def test_where_all_clusters_are_drained_all_are_called() -> None:
    assert set(shares(world(draining("Cluster", "c1"), draining("Cluster", "c2"), c1=1, c2=1))) == {"c1", "c2"}


def test_a_drained_cluster_is_called_rather_than_one_that_has_only_ending_endpoints() -> None:
    ending = World().put(make.derived()).put(draining("Cluster", "c2"))
    ending.put(make.endpoints("c1", make.terminating("10.1.0.1")), make.endpoints("c2", "10.2.0.1"))
    assert shares(ending) == {"c2": 1}


def test_a_drained_tier_leaves_its_calls_to_the_next() -> None:
    tiers = (Tier((Share(C1),)), Tier((Share(C2),)))
    policy = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=tiers)
    assert shares(world(policy, draining("Cluster", "c1"), c1=2, c2=1)) == {"c2": 1}


def test_a_policy_that_names_a_drained_cluster_alone_goes_on_calling_it() -> None:
    policy = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=(Tier((Share(C2),)),))
    assert shares(world(policy, draining("Cluster", "c2"), c1=2, c2=1)) == {"c2": 1}


def test_a_node_is_drained_with_its_own_clusters_backends_alone() -> None:
    found = World().put(make.derived()).put(draining("Node", "n1", by="c2"))
    for number, cluster in ((1, "c1"), (2, "c2")):
        ends = [make.endpoint(f"10.{number}.0.{n}", node=f"n{n}") for n in (1, 2)]
        found.put(make.endpoints(cluster, *ends))
    [plan] = found.plans
    assert [target.address for group in plan.groups for target in group.targets] == ["10.1.0.1", "10.1.0.2", "10.2.0.2"]


def test_a_service_is_drained_in_the_cluster_that_asks() -> None:
    assert shares(world(draining("Service", ECHO, by="c2"), c1=1, c2=1)) == {"c1": 1}
    assert set(shares(world(draining("Service", "demo/other", by="c2"), c1=1, c2=1))) == {"c1", "c2"}


def test_explain_names_the_drain() -> None:
    drained = world(draining("Cluster", "c2", by="c2"), c1=1, c2=1)
    [plan] = drained.plans
    [path] = explain(drained.db.snapshot(), plan.key.service, place=Place(C1, "n1")).paths
    assert [(out.backend.key.cluster, out.reason) for out in path.left_out] == [
        ("c2", "cluster c2 is drained (test in c2)")
    ]


# The ramp.


@pytest.mark.parametrize(("left", "share"), [(95, Fraction(95, 195)), (50, Fraction(1, 3)), (5, Fraction(5, 105))])
def test_during_the_ramp_a_backend_counts_for_what_it_has_left(left: int, share: Fraction) -> None:
    assert shares(world(draining("Cluster", "c2", left=left), c1=1, c2=1))["c2"] == share


def test_during_the_ramp_a_weighted_share_decreases_with_its_cluster() -> None:
    policy = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=(Tier((Share(C1, 50), Share(C2, 50))),))
    assert shares(world(policy, draining("Cluster", "c2", left=50), c1=1, c2=7))["c2"] == Fraction(1, 3)


def test_during_the_ramp_of_a_first_tier_the_next_gets_what_it_leaves() -> None:
    policy = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=(Tier((Share(C1),)), Tier((Share(C2),))))
    assert shares(world(policy, draining("Cluster", "c1", left=25), c1=4, c2=1))["c1"] == Fraction(1, 4)


def test_a_nodes_ramp_moves_calls_within_its_share() -> None:
    policy = Policy(name=ServiceName("demo/p"), target=ECHO, tiers=(Tier((Share(C1, 50), Share(C2, 50))),))
    found = world(policy, draining("Node", "n1", by="c2", left=50), c1=1)
    found.put(make.endpoints("c2", make.endpoint("10.2.0.1", node="n1"), make.endpoint("10.2.0.2", node="n2")))
    [plan] = found.plans
    total = sum(group.weight for group in plan.groups)
    parts = {t.address: Fraction(g.weight, total) / len(g.targets) for g in plan.groups for t in g.targets}
    assert parts == {"10.1.0.1": Fraction(1, 2), "10.2.0.1": Fraction(1, 6), "10.2.0.2": Fraction(1, 3)}


seconds = st.integers(-100_000, 1_000_000).map(lambda ms: ms / 1000)


@given(ramp=st.integers(0, 500), deadline=st.none() | st.integers(0, 900), first=seconds, second=seconds)
def test_a_drain_only_goes_forward_and_reaches_its_end_when_it_is_due(
    ramp: int, deadline: int | None, first: float, second: float
) -> None:
    drain = Drain(kind="Cluster", target="c2", started=timestamp(NOW), ramp=ramp, deadline=deadline)
    early, late = sorted((first, second))
    before, after = (step(drain, NOW + timedelta(seconds=at)) for at in (early, late))
    assert before is not None
    assert after is not None
    assert before.percent_left >= after.percent_left
    assert before.closing <= after.closing
    assert after.percent_left == 0 or late < ramp
    assert 0 <= after.percent_left < 100
    assert after.closing == (deadline is not None and late >= deadline)


@given(ramp=st.integers(0, 500), deadline=st.none() | st.integers(0, 900), at=seconds)
def test_nothing_changes_before_the_time_that_a_step_names(ramp: int, deadline: int | None, at: float) -> None:
    drain = Drain(kind="Cluster", target="c2", started=timestamp(NOW), ramp=ramp, deadline=deadline)
    now = NOW + timedelta(seconds=at)
    found = step(drain, now)
    assert found is not None
    if found.until is None:
        later = step(drain, now + timedelta(days=9))
    else:
        assert found.until > now
        assert step(drain, found.until) != found
        later = step(drain, max(now, found.until - timedelta(milliseconds=1)))
    assert later is not None
    assert (later.percent_left, later.closing) == (found.percent_left, found.closing)


def test_the_ramp_is_a_straight_line_within_a_step() -> None:
    drain = Drain(kind="Cluster", target="c2", started=timestamp(NOW), ramp=60)
    for second in range(60):
        found = step(drain, NOW + timedelta(seconds=second))
        assert found is not None
        assert abs(found.percent_left - 100 * (1 - second / 60)) <= 10


def test_a_drain_ends_by_itself() -> None:
    drain = Drain(kind="Cluster", target="c2", started=ago(60), ends=ago(-10))
    assert step(drain, NOW) == (0, False, NOW + timedelta(seconds=10))
    assert step(drain, NOW + timedelta(seconds=10)) is None


def test_before_its_end_a_drain_gives_calls_back_over_a_ramp() -> None:
    drain = Drain(kind="Cluster", target="c2", started=timestamp(NOW), ends=ago(-100), end_ramp=60, deadline=50)
    left = [found.percent_left for second in range(100) if (found := step(drain, NOW + timedelta(seconds=second)))]
    assert left[:40] == [0] * 40
    assert left[40:] == sorted(left[40:])
    assert all(abs(percent - 100 * second / 60) <= 10 for second, percent in enumerate(left[40:]))
    assert step(drain, NOW + timedelta(seconds=99)) == (95, False, NOW + timedelta(seconds=100)), "none is closed"
    assert step(drain, NOW) == (0, False, NOW + timedelta(seconds=40))


@given(ramp=st.integers(0, 500), end_ramp=st.integers(0, 500), ends=st.integers(1, 900), at=seconds)
def test_with_a_ramp_at_its_end_nothing_changes_before_the_time_that_a_step_names(
    ramp: int, end_ramp: int, ends: int, at: float
) -> None:
    drain = Drain(kind="Cluster", target="c2", started=timestamp(NOW), ramp=ramp, ends=ago(-ends), end_ramp=end_ramp)
    now = NOW + timedelta(seconds=at)
    if (found := step(drain, now)) is not None:
        assert found.until is not None
        assert found.until > now
        later = step(drain, max(now, found.until - timedelta(milliseconds=1)))
        assert later is not None
        assert later.percent_left == found.percent_left


# Whose drains count.


def keys(rows: Iterable[Draining]) -> set[tuple[str, str, str]]:
    return {(row.by, row.drain.kind, row.drain.target) for row in rows}


def test_a_peer_drains_itself_its_nodes_and_its_services_and_nobody_else() -> None:
    wanted = [Drain(kind="Cluster", target="c2"), Drain(kind="Cluster", target="c1"), Drain(kind="Node", target="n1")]
    found = in_force({C2: [*wanted, Drain(kind="Service", target="demo/echo")]}, cluster=C1, now=NOW)
    assert keys(found) == {("c2", "Cluster", "c2"), ("c2", "Node", "n1"), ("c2", "Service", "demo/echo")}


def test_a_peer_can_be_drained_here_which_is_not_published() -> None:
    wanted = [Drain(kind="Cluster", target="c2"), Drain(kind="Cluster", target="c1")]
    assert keys(in_force({C1: wanted}, cluster=C1, now=NOW)) == {("c1", "Cluster", "c2"), ("c1", "Cluster", "c1")}
    assert drains.published(wanted, C1) == [Drain(kind="Cluster", target="c1")]


def test_a_kind_that_is_not_known_drains_nothing() -> None:
    assert set(shares(world(draining("Rack", "c2", by="c2"), c1=1, c2=1))) == {"c1", "c2"}


def test_nodes_that_end_are_drained_and_cordoned_ones_where_that_is_configured() -> None:
    nodes = [Node("n1", cordoned=True), Node("n2", deleting=True), Node("n3", out_of_service=True), Node("n4")]
    found = {each.target: each for each in drains.of_nodes(nodes, deleted=["n0"], cordoned=False)}
    assert set(found) == {"n0", "n2", "n3"}
    assert found["n3"].deadline == 0
    assert {each.target for each in drains.of_nodes(nodes, deleted=(), cordoned=True)} == {"n1", "n2", "n3"}


# Any of them at once.

KINDS = [("Cluster", "c1"), ("Cluster", "c2"), ("Node", "n1"), ("Service", ECHO)]
rows = st.builds(
    lambda what, by, left: draining(*what, by=by, left=left),
    st.sampled_from(KINDS),
    st.sampled_from(["c1", "c2"]),
    st.sampled_from([0, 0, 5, 50, 95]),
)
endpoints = st.lists(
    st.tuples(
        st.sampled_from(["n1", "n2"]), st.sampled_from([Condition.READY, Condition.TERMINATING, Condition.NOT_READY])
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(found=st.lists(rows, max_size=4, unique_by=lambda row: row.key), here=endpoints, there=endpoints)
def test_calls_go_on_wherever_they_did_without_drains_and_to_what_is_drained_only_in_need(
    found: list[Draining], here: list[tuple[str, Condition]], there: list[tuple[str, Condition]]
) -> None:
    plain = World().put(make.derived())
    for number, (cluster, ends) in enumerate((("c1", here), ("c2", there)), 1):
        made = [make.endpoint(f"10.{number}.0.{n}", node=node, condition=c) for n, (node, c) in enumerate(ends, 1)]
        plain.put(make.endpoints(cluster, *made))
    [before] = plain.plans
    reached = {(t.cluster, t.address) for group in before.groups for t in group.targets}
    by_address = {(row.key.cluster, row.key.address): row for row in plain.backends}

    plain.put(*found)
    [after] = plain.plans
    still = {(t.cluster, t.address) for group in after.groups for t in group.targets}
    drained = Drained(found)
    usual = {each for each in reached if drained.percent_left(by_address[each])}
    assert still == (usual or reached)
