"""Which policy counts, what it does to plans, and its status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs
from rows.balancing_world import INPUTS, World, make

from isthmus.loadbalancer import Place, checks, gateways, own_ranges, policy_objects
from isthmus.loadbalancer.explain import explain
from isthmus.model.balancing import Probe
from isthmus.model.drains import Drain, Draining
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.policies import Check, HealthCheck, Policy, Share, Tier
from isthmus.model.services import Node, Port
from isthmus.model.tables import CHECKS, OBSERVED, POLICY_OBJECTS
from isthmus.processes.start import tables_of
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
    found = explain(world.settle().db.snapshot(), make.DERIVED, place=Place(ClusterName("c1"), "n1"))
    assert [note for note in found.notes if "Policy" in note] == [
        "shared out by TrafficPolicy demo/policy",
        "TrafficPolicy demo/late waits behind TrafficPolicy demo/policy",
        "TrafficPolicy demo/wrong has no effect: spec: no",
    ]


# Status


class Statuses:
    """The statuses that the operator of c1 wants of policies."""

    def __init__(self, *rows: Any) -> None:
        own = ClusterName("c1")
        derived = (own_ranges.derived(own), gateways.derived(), checks.of_policies(own), policy_objects.derived(own))
        self.db = Database(*tables_of(derived, *INPUTS, OBSERVED))
        self.derivations = Derivations(self.db, *derived)
        self.put(*rows)

    def put(self, *rows: Any) -> Statuses:
        from rows.balancing_world import TABLES

        with self.db.write() as txn:
            for row in rows:
                txn.put(TABLES[type(row)], row)
        while self.derivations.step():
            pass
        return self

    @property
    def checks(self) -> list[Check]:
        """What the operator probes."""
        return sorted(self.db.snapshot().all(CHECKS), key=lambda row: row.key)

    def of(self, name: str = "demo/policy") -> tuple[str, str, str]:
        """(reason, message, shares) of a policy."""
        found: Object | None = self.db.snapshot().get(POLICY_OBJECTS, ("TrafficPolicy", ServiceName(name)))
        assert found is not None
        assert found.body == b"", "only the status is ours"
        reason, message = self.condition("Accepted", name)
        return reason, message, msgspec.json.decode(found.status)["shares"]

    def condition(self, kind: str, name: str = "demo/policy") -> tuple[str, str]:
        """(reason, message) of a condition, which is True if its reason is its own name."""
        row: Object | None = self.db.snapshot().get(POLICY_OBJECTS, ("TrafficPolicy", ServiceName(name)))
        assert row is not None
        conditions = {each["type"]: each for each in msgspec.json.decode(row.status)["conditions"]}
        assert set(conditions) == {"Ready", "Accepted", "Effective"}
        assert conditions["Ready"] == {**conditions["Accepted"], "type": "Ready"}
        found = conditions[kind]
        assert found["observedGeneration"] == 2
        assert found["status"] == ("True" if found["reason"] == kind else "False")
        return found["reason"], found["message"]


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


def test_a_family_that_the_import_does_not_have_has_no_shares() -> None:
    rows = make.endpoints("c1", "10.1.0.1", "fd00::1"), make.endpoints("c2", "10.2.0.1")
    statuses = Statuses(IMPORT, make.derived(), *rows, policy(tier(c1=90, c2=10)))
    assert statuses.of()[2] == "IPv4: c1 90%, c2 10%; IPv6: c1 100%"
    found = make.imported(clusters=("c1", "c2"), families=("IPv4",))
    assert statuses.put(found).of()[2] == "c1 90%, c2 10%"


def test_islands_have_the_shares_that_nodes_with_an_envoy_give_them() -> None:
    island = make.cluster("c2", network="there", gateways=("192.0.2.1:15443",))
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), policy(tier(c1=90, c2=10)))
    assert statuses.put(island).of() == ("Accepted", "", "c1 90%, c2 10%")
    without = make.cluster("c2", network="there")
    assert statuses.put(without).of() == ("Accepted", "", "c1 100%"), "there is no way to it"
    assert statuses.put(island, make.endpoints("c1")).of() == ("Accepted", "", "c2 100%")


def test_an_operator_probes_and_counts_no_slice_that_a_tenant_labels_as_another_clusters() -> None:
    """Nodes do not use it, and its addresses may be anything that the operator can connect to."""
    forged = make.endpoints("c2", "192.0.2.1", source="kubernetes")
    checked = policy(tier(c1=50, c2=50), health=HealthCheck(port=10_250))
    statuses = Statuses(IMPORT, make.derived(), ENDPOINTS[0], forged, make.cluster("c1", own=True), checked)
    assert statuses.checks == []
    assert statuses.of() == ("Accepted", "", "c1 100%")
    statuses.put(make.cluster("c2", network="there", gateways=("192.0.2.9:15443",)))
    assert statuses.of() == ("Accepted", "", "c1 100%"), "nor is it an island's"


def test_shares_follow_what_probes_find_dead() -> None:
    checked = policy(tier(c1=50, c2=50), health=HealthCheck())
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), checked)
    assert {row.key.cluster for row in statuses.checks} == {"c2"}
    dead = [make.probe(f"10.2.0.{n}", healthy=False, cluster="c2", service=make.DERIVED) for n in (1, 2, 3)]
    assert statuses.put(*dead[:2]).of()[2] == "c1 50%, c2 50%"
    assert statuses.put(dead[2]).of()[2] == "c1 100%"
    assert statuses.put(structs.replace(dead[0], healthy=True)).of()[2] == "c1 50%, c2 50%"


def test_without_a_health_check_nothing_is_probed_for_the_shares() -> None:
    assert Statuses(IMPORT, make.derived(), *ENDPOINTS, policy(tier(c1=50, c2=50))).checks == []


def test_endpoints_of_a_cluster_out_of_reach_are_probed_as_on_nodes_and_lapsed_ones_count_while_they_answer() -> None:
    stale = make.cluster("c2", state="stale")
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), stale, policy(tier(c2=None)))
    assert len(statuses.checks) == 3
    statuses.put(*(structs.replace(row, lapsed=True) for row in ENDPOINTS[1:]))
    assert (len(statuses.checks), statuses.of()[2]) == (3, "none")
    alive = make.probe("10.2.0.1", healthy=True, cluster="c2", service=make.DERIVED)
    assert statuses.put(alive).of()[2] == "c2 100%"


def test_shares_follow_a_drain() -> None:
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, policy(tier(c1=50, c2=50)))
    drain = Draining(by=ClusterName("c2"), drain=Drain(kind="Cluster", target="c2"), left=50)
    assert statuses.put(drain).of()[2] == "c1 66.7%, c2 33.3%"
    assert statuses.put(structs.replace(drain, left=0)).of()[2] == "c1 100%"


def test_an_island_has_no_share_while_none_of_its_gateways_answers() -> None:
    island = make.cluster("c2", network="there", gateways=("192.0.2.1:15443", "192.0.2.2:15443"))
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), policy(tier(c1=90, c2=10)))
    assert statuses.put(island).of()[2] == "c1 90%, c2 10%"
    assert {(row.key.address, row.key.port) for row in statuses.checks} == {("192.0.2.1", 15443), ("192.0.2.2", 15443)}
    first, second = (Probe(row.key, healthy=False) for row in statuses.checks)
    assert statuses.put(first).of()[2] == "c1 90%, c2 10%"
    assert statuses.put(second).of()[2] == "c1 100%"


def test_an_island_has_its_share_in_every_family_of_the_service_since_gateways_bridge_them() -> None:
    island = make.cluster("c2", network="there", gateways=("192.0.2.1:15443",))
    rows = make.endpoints("c1", "10.1.0.1", "fd00:1::1"), make.endpoints("c2", "10.2.0.1")
    service = make.derived(cluster_ips=("10.96.0.7", "fd00:96::7"))
    statuses = Statuses(IMPORT, service, *rows, make.cluster("c1", own=True), island, policy(tier(c1=90, c2=10)))
    assert statuses.of()[2] == "c1 90%, c2 10%"


def test_an_island_all_of_whose_gateways_are_refused_has_no_share() -> None:
    island = make.cluster("c2", network="there", gateways=("127.0.0.1:15443",))
    statuses = Statuses(IMPORT, make.derived(), *ENDPOINTS, make.cluster("c1", own=True), policy(tier(c1=90, c2=10)))
    assert statuses.put(island).of()[2] == "c1 100%"


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


# Fields without effect

CLUSTERS = (make.cluster("c1", own=True, region="east"), make.cluster("c2", region="west", state="ready"))


def effective(*rows: Any) -> tuple[str, str]:
    return Statuses(IMPORT, make.derived(), *ENDPOINTS, *CLUSTERS, *rows).condition("Effective")


def test_a_policy_that_is_followed_as_it_is_written_is_effective() -> None:
    tiers = Tier((Share(ClusterName(".")), Share(region="west", weight=3))), Tier((Share(ClusterName("*")),))
    assert effective(policy(*tiers, affinity="ClientIP")) == ("Effective", "")


def test_a_policy_for_a_region_that_no_cluster_has_says_that_it_refuses_every_call() -> None:
    mars = policy(Tier((Share(region="mars", labels=(("tier", "gold"),)),)))
    assert effective(mars) == (
        "CallsRefused",
        "every call is refused: no tier gives calls to a cluster with endpoints (c1, c2); "
        "no cluster has region mars and label tier=gold",
    )
    assert (
        effective(mars, make.cluster("c2", region="mars", labels=(("tier", "gold"),), state="ready"))[0] == "Effective"
    )


def test_a_tier_for_a_cluster_that_the_clusterset_lacks_has_no_effect_and_the_others_have() -> None:
    assert effective(policy(tier(c1=None), tier(c9=None))) == ("NoClusterMatches", "no cluster is called c9")


def test_a_region_is_not_said_to_be_nobodys_while_a_peer_has_not_told_its_own() -> None:
    tiers = tier(c1=None), Tier((Share(region="mars"),))
    assert effective(policy(*tiers), make.cluster("c3"))[0] == "Effective"
    assert effective(policy(*tiers), make.cluster("c3", state="ready"))[0] == "NoClusterMatches"


def test_affinity_towards_an_island_whose_export_has_none_has_no_effect() -> None:
    island = make.cluster("c2", network="there", gateways=("192.0.2.1:15443",), state="ready")
    reason, message = effective(island, policy(affinity="ClientIP"))
    assert (reason, "sessionAffinity holds the cluster and not the pod in c2" in message) == ("BehindGateway", True)
    assert effective(island, policy(consistent=True))[0] == "BehindGateway"
    assert effective(island, policy())[0] == "Effective"
    sticky = make.imported(clusters=("c1", "c2"), affinity="ClientIP")
    assert effective(island, sticky, policy(affinity="ClientIP"))[0] == "Effective"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"locality": "Region"}, "NoRegion"),
        ({"health": HealthCheck(path="/ready")}, "UnusedField"),
        ({"health": HealthCheck(type="HTTP", service="health")}, "UnusedField"),
        ({"health": HealthCheck(type="HTTP", path="/ready", host="echo")}, "Effective"),
        ({"health": HealthCheck(type="GRPC", service="health")}, "Effective"),
    ],
)
def test_a_field_that_changes_nothing_is_named(fields: dict[str, Any], reason: str) -> None:
    assert effective(make.cluster("c1", own=True), policy(**fields))[0] == reason


def test_a_policy_of_a_headless_import_has_no_effect() -> None:
    rows = make.imported(clusters=("c1", "c2"), type="Headless"), make.derived(cluster_ips=(), headless=True)
    assert effective(*rows, policy(tier(c1=None)))[0] == "Headless"


def test_tiers_of_a_service_whose_traffic_stays_on_its_node_have_no_effect() -> None:
    local = make.derived(internal_policy="Local")
    assert effective(local, policy(tier(c1=None)))[0] == "InternalTrafficPolicy"


def test_a_check_without_a_port_of_a_service_of_udp_has_no_effect() -> None:
    ports = (Port("dns", 53, "UDP"),)
    rows = make.imported(clusters=("c1", "c2"), ports=ports), make.derived(ports=ports)
    assert effective(*rows, policy(health=HealthCheck()))[0] == "NotProbed"
    assert effective(*rows, policy(health=HealthCheck(port=8080)))[0] == "Effective"


def test_a_policy_that_waits_has_no_effect() -> None:
    younger = policy(name="demo/younger", created="2026-01-02T00:00:00Z")
    statuses = Statuses(IMPORT, make.derived(), policy(created="2026-01-01T00:00:00Z"), younger)
    assert statuses.condition("Effective", "demo/younger") == ("NotAccepted", "")


def test_explain_names_what_has_no_effect() -> None:
    world = two_clusters().put(*CLUSTERS, policy(tier(c1=None), tier(c9=None)))
    notes = explain(world.settle().db.snapshot(), make.DERIVED, place=Place(ClusterName("c1"), "n1")).notes
    assert "TrafficPolicy demo/policy, without effect: no cluster is called c9" in notes
