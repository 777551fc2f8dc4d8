"""Each rule of selection by itself: the backends in a plan, and the reasons for the others."""

from __future__ import annotations

from typing import Any

import pytest
from rows.balancing_world import World, make

from isthmus.loadbalancer.selection import Place
from isthmus.model.services import Condition, Endpoint, Node, Port

PORT = (Port("http", 8080),)
HERE = Node("n1", ("172.30.1.11",), zone="z1")


def at(address: str, **fields: Any) -> Endpoint:
    return Endpoint(address, PORT, **fields)


def reached(world: World) -> list[str]:
    [targets] = world.reached().values()
    return [target.removesuffix(":8080") for target in targets]


def test_terminating_endpoints_serve_only_where_nothing_is_ready() -> None:
    world = World()
    going = at("10.1.0.2", condition=Condition.TERMINATING)
    world.put(make.derived(), make.endpoints("c1", "10.1.0.1", going))
    assert reached(world) == ["c1/10.1.0.1"]
    world.put(make.endpoints("c1", at("10.1.0.1", condition=Condition.NOT_READY), going))
    assert reached(world) == ["c1/10.1.0.2"]
    world.put(make.endpoints("c1", at("10.1.0.2", condition=Condition.GONE)))
    assert reached(world) == []


def test_internal_traffic_policy_local_keeps_calls_on_this_node() -> None:
    world = World()
    world.put(HERE, make.derived(internal_policy="Local"))
    world.put(make.endpoints("c1", at("10.1.0.1", node="n1"), at("10.1.0.2", node="n2")))
    world.put(make.endpoints("c2", at("10.2.0.1", node="n1"), at("10.2.0.2")))
    assert reached(world) == ["c1/10.1.0.1"]


def test_external_traffic_policy_local_holds_for_node_ports_and_not_for_the_cluster_address() -> None:
    every = World("all")
    every.put(HERE, make.service(type="NodePort", external_policy="Local", ports=(Port("http", 80, node_port=30080),)))
    both = (at("10.1.0.1", node="n1"), at("10.1.0.2", node="n2"))
    every.put(make.endpoints("c1", *both, service="demo/echo"))
    assert every.reached() == {
        "demo/echo:80/TCP/IPv4": ["c1/10.1.0.1:8080"],
        "demo/echo:80/TCP/IPv4/i": ["c1/10.1.0.1:8080", "c1/10.1.0.2:8080"],
    }


@pytest.mark.parametrize("distribution", ["PreferClose", "PreferSameZone"])
def test_zone_hints_keep_calls_in_this_zone(distribution: str) -> None:
    world = World()
    world.put(HERE, make.derived(distribution=distribution))
    world.put(make.endpoints("c1", at("10.1.0.1", for_zones=("z1",)), at("10.1.0.2", for_zones=("z2",))))
    assert reached(world) == ["c1/10.1.0.1"]
    world.put(Node("n1", zone="z2"))
    assert reached(world) == ["c1/10.1.0.2"]


def test_topology_mode_auto_asks_for_hints_as_well() -> None:
    world = World()
    world.put(HERE, make.derived(annotations=(("service.kubernetes.io/topology-mode", "Auto"),)))
    world.put(make.endpoints("c1", at("10.1.0.1", for_zones=("z1",)), at("10.1.0.2", for_zones=("z2",))))
    assert reached(world) == ["c1/10.1.0.1"]


@pytest.mark.parametrize(
    ("zones", "zone"),
    [
        ((("z1",), ()), "z1"),  # an endpoint without hints
        ((("z2",), ("z3",)), "z1"),  # none for this zone
        ((("z1",), ("z2",)), ""),  # a node that does not know its zone
    ],
)
def test_hints_are_ignored_where_kubernetes_safeguards_say_so(zones: tuple[tuple[str, ...], ...], zone: str) -> None:
    world = World()
    world.put(Node("n1", zone=zone), make.derived(distribution="PreferSameZone"))
    world.put(make.endpoints("c1", *(at(f"10.1.0.{n}", for_zones=of) for n, of in enumerate(zones, 1))))
    assert reached(world) == ["c1/10.1.0.1", "c1/10.1.0.2"]


def test_hints_without_a_wish_for_them_mean_nothing() -> None:
    world = World()
    world.put(HERE, make.derived(), make.endpoints("c1", at("10.1.0.1", for_zones=("z2",))))
    assert reached(world) == ["c1/10.1.0.1"]


def test_the_same_node_is_preferred_only_while_something_there_is_ready() -> None:
    world = World()
    world.put(HERE, make.derived(distribution="PreferSameNode"))
    world.put(make.endpoints("c1", at("10.1.0.1", node="n1"), at("10.1.0.2", node="n2")))
    assert reached(world) == ["c1/10.1.0.1"]
    going = at("10.1.0.1", node="n1", condition=Condition.TERMINATING)
    world.put(make.endpoints("c1", going, at("10.1.0.2", node="n2")))
    assert reached(world) == ["c1/10.1.0.2"]


def test_the_same_node_falls_back_to_the_same_zone() -> None:
    world = World()
    world.put(HERE, make.derived(distribution="PreferSameNode"))
    far = at("10.1.0.3", node="n3", for_zones=("z2",))
    world.put(make.endpoints("c1", at("10.1.0.2", node="n2", for_zones=("z1",)), far))
    assert reached(world) == ["c1/10.1.0.2"]


READY, GOING, AWAY = Condition.READY, Condition.TERMINATING, Condition.NOT_READY


@pytest.mark.parametrize(
    ("affinity", "own", "other", "chosen"),
    [
        ("", READY, READY, ["c1/10.1.0.1", "c2/10.2.0.1"]),
        ("none", READY, READY, ["c1/10.1.0.1", "c2/10.2.0.1"]),
        ("sideways", READY, READY, ["c1/10.1.0.1", "c2/10.2.0.1"]),
        ("local", READY, READY, ["c1/10.1.0.1"]),
        ("local", AWAY, READY, ["c2/10.2.0.1"]),
        ("local", GOING, READY, ["c2/10.2.0.1"]),
        ("local", GOING, AWAY, ["c1/10.1.0.1"]),
        ("local", AWAY, AWAY, []),
        ("remote", READY, READY, ["c2/10.2.0.1"]),
        ("remote", READY, AWAY, ["c1/10.1.0.1"]),
        ("remote", READY, GOING, ["c2/10.2.0.1"]),
        ("remote", AWAY, AWAY, []),
    ],
)
def test_a_global_services_affinity_prefers_own_or_other_clusters(
    affinity: str, own: Condition, other: Condition, chosen: list[str]
) -> None:
    world = World()
    world.put(make.globally(affinity=affinity))
    world.put(make.endpoints("c1", at("10.1.0.1", condition=own), service="demo/echo"))
    world.put(make.endpoints("c2", at("10.2.0.1", condition=other), service="demo/echo"))
    assert reached(world) == chosen


def test_affinity_of_an_import_is_that_of_its_derived_services_annotation() -> None:
    world = World()
    world.put(make.derived(annotations=(("service.cilium.io/affinity", "local"),)))
    world.put(make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1"))
    assert reached(world) == ["c1/10.1.0.1"]


def test_reasons_are_given_for_whoever_is_left_out() -> None:
    world = World()
    from isthmus.loadbalancer.plans import plan
    from isthmus.loadbalancer.services import resolve

    world.put(make.derived(annotations=(("service.cilium.io/affinity", "local"),)))
    away = at("10.1.0.2", condition=AWAY)
    world.put(make.endpoints("c1", "10.1.0.1", away, "fd00::1"), make.endpoints("c2", "10.2.0.1"))
    of = resolve(world.db.snapshot(), make.DERIVED, which="multicluster")
    assert of is not None
    reasons: dict[str, str] = {}
    [key] = {frontend.plan for frontend in world.frontends}
    plan(
        key,
        service=of,
        frontends=world.frontends,
        backends=world.backends,
        place=Place(cluster="c1", node="n1"),  # type: ignore[arg-type]
        reasons=lambda backend, reason: reasons.update({backend.key.address: reason}),
    )
    assert reasons == {"fd00::1": "it is not IPv4", "10.1.0.2": "it is not ready"}


def test_what_probes_find_dead_is_left_out_while_another_is_alive() -> None:
    world = World("all").put(make.service(), make.endpoints("c1", "10.1.1.1", "10.1.1.2", service="demo/echo"))
    world.put(make.probe("10.1.1.1", healthy=False))
    assert list(world.reached().values()) == [["c1/10.1.1.2:8080"]]
    assert [row.healthy for row in world.backends] == [False, True], "it stays a backend, to be probed again"
    world.put(make.probe("10.1.1.2", healthy=False))
    assert list(world.reached().values()) == [["c1/10.1.1.1:8080", "c1/10.1.1.2:8080"]]
    world.put(make.probe("10.1.1.1", healthy=True))
    assert list(world.reached().values()) == [["c1/10.1.1.1:8080"]]


def test_a_cluster_whose_own_backends_are_all_dead_has_the_others_called() -> None:
    world = World().put(make.globally(affinity="local"), make.endpoints("c1", "10.1.1.1", service="demo/echo"))
    world.put(make.endpoints("c2", "10.2.1.1", service="demo/echo"))
    assert list(world.reached().values()) == [["c1/10.1.1.1:8080"]]
    world.put(make.probe("10.1.1.1", healthy=False))
    assert list(world.reached().values()) == [["c2/10.2.1.1:8080"]]


def test_a_probe_of_what_is_no_backend_means_nothing() -> None:
    world = World("all").put(make.probe("10.1.1.1", healthy=False)).settle()
    assert (world.backends, world.plans) == ([], [])
    world.put(make.service(), make.endpoints("c1", "10.1.1.1", service="demo/echo"))
    assert list(world.reached().values()) == [["c1/10.1.1.1:8080"]]
