"""Which policy counts, what it does to plans, and its status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from balancing_world import INPUTS, World, make

from isthmus.loadbalancer import Place, own_ranges, policy_objects
from isthmus.loadbalancer.explain import explain
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Node
from isthmus.model.tables import OBSERVED, OWN_RANGES, POLICY_OBJECTS
from isthmus.statedb import Database, Derivations


def tier(**weights: int | None) -> Tier:
    return Tier(tuple(Share(ClusterName(name), weight) for name, weight in weights.items()))


def policy(*tiers: Tier, name: str = "demo/policy", **fields: Any) -> Policy:
    defaults: dict[str, Any] = {"target": ServiceName("demo/echo"), "tiers": tiers, "generation": 2}
    return Policy(name=ServiceName(name), **(defaults | fields))


def clusters(world: World) -> set[str]:
    return {target.cluster for plan in world.plans for group in plan.groups for target in group.targets}


def addresses(world: World) -> list[str]:
    called = [group for plan in world.plans for group in plan.groups if group.tier == 0]
    return sorted(target.address for group in called for target in group.targets)


def two_clusters() -> World:
    world = World().put(make.imported(clusters=("c1", "c2")), make.derived())
    return world.put(make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1"))


def test_a_policy_that_is_invalid_has_no_effect() -> None:
    assert clusters(two_clusters().put(policy(tier(c2=None), invalid="spec: wrong"))) == {"c1", "c2"}


def test_a_traffic_policy_counts_before_a_global_one_though_it_is_younger() -> None:
    world = two_clusters()
    world.put(policy(tier(c1=None), policy_kind="flomesh.io/GlobalTrafficPolicy", created="2020-01-01T00:00:00Z"))
    assert clusters(world) == {"c1"}
    world.put(policy(tier(c2=None), created="2026-01-01T00:00:00Z"))
    assert clusters(world) == {"c2"}


def test_locality_without_local_endpoints_is_refused() -> None:
    here = Tier((Share(ClusterName(".")),))
    world = two_clusters().put(policy(here))
    assert clusters(world) == {"c1"}
    world.delete(make.endpoints("c1", "10.1.0.1"))
    assert [plan.groups for plan in world.plans] == [()]


def test_refuse_believes_probes_that_find_every_backend_dead() -> None:
    dead = [make.probe(f"10.{n}.0.1", healthy=False, cluster=f"c{n}", service=make.DERIVED) for n in (1, 2)]
    world = two_clusters().put(*dead)
    assert clusters(world) == {"c1", "c2"}
    assert clusters(world.put(policy(refuse=True))) == set()


@pytest.mark.parametrize(
    ("locality", "gone", "steps"),
    [
        ("Node", 0, ["1.1", "1.2", "1.3", "2.1", "3.1"]),
        ("Node", 1, ["1.2", "1.3", "2.1", "3.1"]),
        ("Node", 2, ["1.3", "2.1", "3.1"]),
        ("Node", 3, ["2.1", "3.1"]),
        ("Node", 4, ["3.1"]),
        ("Zone", 0, ["1.1 1.2", "1.3", "2.1", "3.1"]),
        ("Cluster", 0, ["1.1 1.2 1.3", "2.1", "3.1"]),
        ("Region", 0, ["1.1 1.2 1.3 2.1", "3.1"]),
    ],
)
def test_locality_calls_the_nearest_step_where_something_is_ready_and_falls_back_to_the_next(
    locality: Any, gone: int, steps: list[str]
) -> None:
    world = World().put(make.derived(), Node("n1", ("172.30.1.11",), zone="z1"), policy(locality=locality))
    world.put(*(make.cluster(name, region=region) for name, region in (("c1", "r1"), ("c2", "r1"), ("c3", "r2"))))
    own = [
        make.endpoint("10.1.0.1", node="n1", zone="z1"),
        make.endpoint("10.1.0.2", node="n2", zone="z1"),
        make.endpoint("10.1.0.3", node="n3", zone="z2"),
    ]
    world.put(make.endpoints("c1", *own[min(gone, 3) :]), make.endpoints("c3", "10.3.0.1"))
    if gone < 4:
        world.put(make.endpoints("c2", "10.2.0.1"))
    expected = [(n, [f"10.{host.replace('.', '.0.')}" for host in step.split()]) for n, step in enumerate(steps)]
    [plan] = world.plans
    assert [(group.tier, [target.address for target in group.targets]) for group in plan.groups] == expected


@pytest.mark.parametrize(("locality", "reached"), [("Node", ["10.1.0.2"]), ("Zone", ["10.1.0.2"])])
def test_a_node_that_comes_to_be_in_another_zone_changes_what_a_policy_prefers(
    locality: Any, reached: list[str]
) -> None:
    world = World().put(make.derived(), Node("n1", ("172.30.1.11",), zone="z1"), policy(locality=locality))
    zones = [make.endpoint(f"10.1.0.{n}", node=f"n{n + 1}", zone=f"z{n}") for n in (1, 2)]
    world.put(make.endpoints("c1", *zones))
    assert addresses(world) == ["10.1.0.1"]
    assert addresses(world.put(Node("n1", ("172.30.1.11",), zone="z2"))) == reached


def test_explain_names_the_policy_that_counts_and_the_others_with_their_reason() -> None:
    world = two_clusters().put(policy(tier(c1=None), created="2026-01-01T00:00:00Z"))
    world.put(policy(name="demo/late", created="2026-01-02T00:00:00Z"), policy(name="demo/wrong", invalid="spec: no"))
    found = explain(world.settle().db.snapshot(), make.DERIVED, at=Place(ClusterName("c1"), "n1"))
    assert [note for note in found.notes if "Policy" in note] == [
        "shared out by TrafficPolicy demo/policy",
        "TrafficPolicy demo/late waits behind TrafficPolicy demo/policy",
        "TrafficPolicy demo/wrong has no effect: spec: no",
    ]


# Status


class Statuses:
    """The statuses that the operator of c1 wants of policies."""

    def __init__(self, *rows: Any) -> None:
        self.db = Database(*INPUTS, OBSERVED, OWN_RANGES, POLICY_OBJECTS)
        derived = (own_ranges.derived(ClusterName("c1")), policy_objects.derived(ClusterName("c1")))
        self.derivations = Derivations(self.db, *derived)
        self.put(*rows)

    def put(self, *rows: Any) -> Statuses:
        from balancing_world import TABLES

        with self.db.write() as txn:
            for row in rows:
                txn.put(TABLES[type(row)], row)
        while self.derivations.step():
            pass
        return self

    def of(self, name: str = "demo/policy") -> tuple[str, str, str]:
        """(reason, message, shares) of a policy."""
        found: Object | None = self.db.snapshot().get(POLICY_OBJECTS, ("TrafficPolicy", ServiceName(name)))
        assert found is not None
        assert found.body == b"", "only the status is ours"
        status = msgspec.json.decode(found.status)
        [condition] = status["conditions"]
        assert (condition["type"], condition["observedGeneration"]) == ("Accepted", 2)
        assert condition["status"] == ("True" if condition["reason"] == "Accepted" else "False")
        return condition["reason"], condition["message"], status["shares"]


IMPORT = make.imported(clusters=("c1", "c2"))
ENDPOINTS = (make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1", "10.2.0.2", "10.2.0.3"))


def test_a_policy_that_counts_shows_the_shares_it_comes_to() -> None:
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, policy(tier(c1=90, c2=10)))
    assert statuses.of() == ("Accepted", "", "c1 90%, c2 10%")
    assert statuses.put(policy(tier(c1=None, c2=None))).of() == ("Accepted", "", "c2 75%, c1 25%")
    assert statuses.put(make.endpoints("c2")).of() == ("Accepted", "", "c1 100%")
    assert statuses.put(make.endpoints("c1")).of() == ("Accepted", "", "none")


def test_shares_of_two_families_are_shown_once_where_they_agree_and_apart_where_not() -> None:
    both = [make.endpoints(f"c{n}", f"10.{n}.0.1", f"fd00::{n}") for n in (1, 2)]
    statuses = Statuses(IMPORT, make.derived(), *both, policy(tier(c1=90, c2=10)))
    assert statuses.of() == ("Accepted", "", "c1 90%, c2 10%")
    assert statuses.put(make.endpoints("c2", "10.2.0.1")).of()[2] == "IPv4: c1 90%, c2 10%; IPv6: c1 100%"


def test_islands_have_the_shares_that_nodes_with_an_envoy_give_them() -> None:
    island = make.cluster("c2", network="there", gateways=("192.0.2.1:15443",))
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), policy(tier(c1=90, c2=10)))
    assert statuses.put(island).of() == ("Accepted", "", "c1 90%, c2 10%")
    without = make.cluster("c2", network="there")
    assert statuses.put(without).of() == ("Accepted", "", "c1 100%"), "there is no way to it"
    assert statuses.put(island, make.endpoints("c1")).of() == ("Accepted", "", "c2 100%")


def test_a_policy_that_waits_is_conflicted_and_counts_when_the_other_goes() -> None:
    older = policy(tier(c1=None), created="2026-01-01T00:00:00Z")
    younger = policy(tier(c2=None), name="demo/younger", created="2026-01-02T00:00:00Z")
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, older, younger)
    assert statuses.of("demo/younger") == ("Conflicted", "TrafficPolicy demo/policy comes first", "")
    moved = policy(tier(c1=None), target=ServiceName("demo/other"), created="2026-01-01T00:00:00Z")
    assert statuses.put(moved).of("demo/younger") == ("Accepted", "", "c2 100%")


def test_a_policy_that_is_invalid_or_has_no_target_says_so() -> None:
    statuses = Statuses(policy(tier(c1=None)))
    assert statuses.of() == ("TargetNotFound", "ServiceImport demo/echo does not exist in this cluster", "")
    assert statuses.put(IMPORT, make.derived(), *ENDPOINTS).of()[0] == "Accepted"
    assert statuses.put(policy(invalid="spec.tiers: 17 tiers, more than 16")).of() == (
        "Invalid",
        "spec.tiers: 17 tiers, more than 16",
        "",
    )
    plain = policy(tier(c1=None), kind="Service")
    message = "Service demo/echo does not exist in this cluster, or is not global"
    assert statuses.put(plain, make.service()).of() == ("TargetNotFound", message, "")
    assert statuses.put(make.globally()).of()[0] == "Accepted"


def test_ten_thousand_policies_for_one_service_cost_a_bounded_number_of_statuses() -> None:
    many = [policy(tier(c1=None), name=f"demo/p{n:05}") for n in range(10_000)]
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, *many)
    rows = statuses.db.snapshot().all(POLICY_OBJECTS)
    assert len(list(rows)) == policy_objects.MAX_STATUSES
    assert statuses.of("demo/p00000") == ("Accepted", "", "c1 100%")


def test_a_cluster_whose_region_changes_changes_the_shares_and_a_failure_of_it_nothing() -> None:
    in_region = Tier((Share(region="r1"),))
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, policy(in_region))
    assert statuses.of() == ("Accepted", "", "none")
    assert statuses.put(make.cluster("c2", region="r1")).of() == ("Accepted", "", "c2 100%")
    units = statuses.derivations.units
    statuses.put(make.cluster("c2", region="r1", failures=3, last_failure="2026-01-01T00:00:00Z"))
    assert statuses.derivations.units - units <= 1, "the cluster's addresses at most, no policy"
