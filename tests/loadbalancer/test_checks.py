"""Which backends a node probes, and how."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from rows.balancing_world import World, make

from isthmus.loadbalancer.checks import CONNECT
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import HealthCheck, Policy
from isthmus.model.services import Port

HTTP = HealthCheck(type="HTTP", path="/ready", interval=2.0)


def policy(health: HealthCheck | None, **fields: Any) -> Policy:
    return Policy(name=ServiceName("demo/p"), target=ServiceName("demo/echo"), health=health, **fields)


def two_clusters(*rows: Any) -> World:
    world = World().put(make.imported(clusters=("c1", "c2")), make.derived())
    world.put(make.cluster("c1", own=True, state="ready"), make.cluster("c2", state="ready"))
    return world.put(make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1", "10.2.0.2"), *rows)


def checks(world: World) -> dict[str, HealthCheck]:
    return {row.key.address: row.check for row in world.checks}


def test_without_a_policy_nothing_is_probed_while_every_cluster_is_attended() -> None:
    assert checks(two_clusters()) == {}
    assert checks(two_clusters(policy(None))) == {}


def test_a_policys_check_is_of_backends_of_other_clusters() -> None:
    world = two_clusters(policy(HTTP))
    assert checks(world) == {"10.2.0.1": HTTP, "10.2.0.2": HTTP}
    assert checks(world.put(make.endpoints("c2", "10.2.0.2"))) == {"10.2.0.2": HTTP}
    faster = replace(HTTP, interval=1.0)
    assert checks(world.put(policy(faster))) == {"10.2.0.2": faster}
    assert checks(world.put(policy(faster, invalid="spec: wrong"))) == {}


@pytest.mark.parametrize("state", ["stale", "silent"])
def test_backends_of_an_unattended_cluster_are_probed_by_a_connect_where_no_policy_has_a_check(state: Any) -> None:
    world = two_clusters().put(make.cluster("c2", state=state))
    assert checks(world) == {"10.2.0.1": CONNECT, "10.2.0.2": CONNECT}
    assert checks(world.put(policy(HTTP))) == {"10.2.0.1": HTTP, "10.2.0.2": HTTP}
    world.delete(policy(HTTP)).put(make.cluster("c2", state="ready"))
    assert checks(world) == {}


def test_what_has_lapsed_is_probed_though_it_is_no_backend_until_a_probe_passes() -> None:
    world = two_clusters().put(make.cluster("c2", state="stale"))
    world.put(replace(make.endpoints("c2", "10.2.0.1", "10.2.0.2"), lapsed=True))
    assert [b.key.address for b in world.backends] == ["10.1.0.1"]
    assert checks(world) == {"10.2.0.1": CONNECT, "10.2.0.2": CONNECT}
    world.put(make.probe("10.2.0.2", healthy=True, cluster="c2", service=make.DERIVED))
    assert [b.key.address for b in world.backends] == ["10.1.0.1", "10.2.0.2"]
    assert checks(world) == {"10.2.0.1": CONNECT, "10.2.0.2": CONNECT}


def test_a_verdict_changes_no_check() -> None:
    world = two_clusters(policy(HTTP)).settle()
    units = world.derivations.units
    world.put(make.probe("10.2.0.2", healthy=False, cluster="c2", service=make.DERIVED)).settle()
    assert world.derivations.units - units == 1, "its service: backends and plans"


def test_what_is_called_by_udp_is_probed_only_where_a_policy_names_a_port() -> None:
    dns = (Port("dns", 53, "UDP"),)
    world = World().put(make.imported(clusters=("c2",), ports=dns), make.derived(ports=dns))
    world.put(make.cluster("c2", state="stale"), make.endpoints("c2", make.endpoint("10.2.0.1", ports=dns)))
    assert checks(world) == {}
    assert checks(world.put(policy(HealthCheck(port=8081)))) == {"10.2.0.1": HealthCheck(port=8081)}


def test_a_policy_of_a_service_is_none_of_the_import_of_its_name() -> None:
    world = two_clusters(policy(HTTP, kind="Service"))
    assert checks(world) == {}
    world.put(make.globally(), make.endpoints(ClusterName("c2"), "10.2.0.9", service="demo/echo"))
    assert checks(world) == {"10.2.0.9": HTTP}
