"""Plans of routed calls where clusters have different families: each pod of each cluster counts once."""

from __future__ import annotations

import pytest
from meshes.route_world import C1, C2, RouteWorld, route

from isthmus.loadbalancer import shares
from isthmus.model import tables
from isthmus.model.balancing import BackendKey, Plan, Probe
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.policies import Policy, Share, Tier
from isthmus.proxy.clusters import toward

C3 = ClusterName("c3")
ECHO = derived(ServiceName("demo/echo"))
DUAL = ("10.1.0.1:8080", "10.1.0.2:8080", "fd00:1::1:8080", "fd00:1::2:8080")
ROUTE = route("""
parentRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo}]
rules: [{backendRefs: [{group: multicluster.x-k8s.io, kind: ServiceImport, name: echo, port: 80}]}]
""")


def world(*addresses: str, c1: tuple[str, ...] = DUAL) -> RouteWorld:
    """A routed import of c1, which is dual-stack, and of c2, which has IPv6 alone."""
    made = RouteWorld(*addresses)
    made.imported("demo/echo", app_protocol="http", c1=[], c2=[])
    made.endpoints(ECHO, C1, *c1).endpoints(ECHO, C2, "fd00:2::1:8080", "fd00:2::2:8080")
    return made.routes(ROUTE)


def planned(made: RouteWorld) -> Plan:
    """The plan of the port's calls by Envoy."""
    [plan] = made.rows(tables.ROUTE_PLANS)
    assert isinstance(plan, Plan)
    return plan


def addresses(plan: Plan, *, tier: int | None = None) -> set[str]:
    return {each.address for group in plan.groups if tier in (None, group.tier) for each in group.targets}


def test_each_pod_counts_once_whichever_families_its_cluster_has() -> None:
    plan = planned(world("127.0.0.9", "::1"))
    assert addresses(plan) == {"10.1.0.1", "10.1.0.2", "fd00:2::1", "fd00:2::2"}
    assert shares.by_cluster(plan) == {C1: 0.5, C2: 0.5}


def test_a_node_of_one_family_calls_no_backend_of_the_other() -> None:
    assert addresses(planned(world("127.0.0.9"))) == {"10.1.0.1", "10.1.0.2"}
    assert shares.by_cluster(planned(world("::1"))) == {C1: 0.5, C2: 0.5}


def test_a_route_to_one_cluster_reaches_it_by_the_family_that_it_has() -> None:
    plan = planned(world("127.0.0.9", "::1"))
    assert addresses(toward(plan, "c2"), tier=0) == {"fd00:2::1", "fd00:2::2"}
    assert addresses(toward(plan, "c1"), tier=0) == {"10.1.0.1", "10.1.0.2"}


def test_a_policy_applies_to_clusters_of_both_families() -> None:
    made = world("127.0.0.9", "::1")
    tiers = (Tier((Share(C2),)), Tier((Share(C1),)))
    made.put(
        tables.POLICIES,
        Policy(name=ServiceName("demo/p"), target=ServiceName("demo/echo"), kind="ServiceImport", tiers=tiers),
    )
    plan = planned(made)
    assert addresses(plan, tier=0) == {"fd00:2::1", "fd00:2::2"}
    assert addresses(plan, tier=1) == {"10.1.0.1", "10.1.0.2"}


@pytest.mark.parametrize("dead", [("10.1.0.1", "10.1.0.2"), ("10.1.0.2",)])
def test_a_dual_stack_cluster_is_called_by_the_family_in_which_more_of_it_answers(dead: tuple[str, ...]) -> None:
    made = world("127.0.0.9", "::1")
    rows = [Probe(key=BackendKey(ECHO, C1, address, 8080, "TCP"), healthy=False) for address in dead]
    made.put(tables.PROBES, *rows)
    assert addresses(planned(made)) == {"fd00:1::1", "fd00:1::2", "fd00:2::1", "fd00:2::2"}
