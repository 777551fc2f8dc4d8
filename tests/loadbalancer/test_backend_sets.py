"""Endpoints of several sources and clusters joined: precedence is for the whole set of a service and cluster."""

from __future__ import annotations

import pytest
from rows.balancing_world import World, make

from isthmus.model.services import Condition, Port


def addresses(world: World) -> list[str]:
    return [f"{row.key.cluster}/{row.key.address}" for row in world.backends]


def test_a_record_is_right_about_all_of_its_cluster_and_a_lagging_copy_brings_nothing_back() -> None:
    world = World()
    copy = make.endpoints("c2", "10.2.0.1", "10.2.0.2", source="kubernetes", part="slice")
    world.put(make.derived(), copy, make.endpoints("c2", "10.2.0.2"))
    assert addresses(world) == ["c2/10.2.0.2"]
    world.put(make.endpoints("c2"))
    assert addresses(world) == []


def test_the_other_source_surfaces_when_the_better_ones_rows_go() -> None:
    world = World()
    copy = make.endpoints("c2", "10.2.0.1", source="kubernetes", part="slice")
    world.put(make.derived(), copy, make.endpoints("c2", "10.2.0.2")).settle()
    world.delete(make.endpoints("c2"))
    assert addresses(world) == ["c2/10.2.0.1"]


@pytest.mark.parametrize("large", [0, 64])
def test_the_other_source_surfaces_when_the_last_of_several_sets_of_the_better_one_goes(large: int) -> None:
    """Also of a service whose endpoints are followed one by one (0), in which other clusters' stay."""
    world = World(large=large).put(make.derived(), make.endpoints("c1", "10.1.0.1"))
    world.put(make.endpoints("c2", "10.2.0.9", source="kubernetes", part="slice"))
    world.put(make.endpoints("c2", "10.2.0.1", part="a")).settle()
    world.put(make.endpoints("c2", "10.2.0.2", part="b")).settle()
    world.delete(make.endpoints("c2", part="a"))
    assert addresses(world) == ["c1/10.1.0.1", "c2/10.2.0.2"]
    world.delete(make.endpoints("c2", part="b"))
    assert addresses(world) == ["c1/10.1.0.1", "c2/10.2.0.9"]


def test_handing_over_to_another_source_loses_no_backend_that_both_have() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("c2", "10.2.0.1", source="kubernetes", part="slice")).settle()
    world.put(make.endpoints("c2", "10.2.0.1"))
    assert [(row.key.address, row.source) for row in world.backends] == [("10.2.0.1", "clusterset")]


def test_sources_of_different_clusters_do_not_touch_each_other() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("c1", "10.1.0.1"), make.endpoints("c2", "10.2.0.1"))
    assert addresses(world) == ["c1/10.1.0.1", "c2/10.2.0.1"]
    world.delete(make.endpoints("c2"))
    assert addresses(world) == ["c1/10.1.0.1"]


def test_an_endpoint_that_moves_between_slices_is_never_lost() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("c1", "10.1.0.1", part="a"), make.endpoints("c1", part="b")).settle()
    world.put(make.endpoints("c1", part="a"), make.endpoints("c1", "10.1.0.1", part="b"))
    assert addresses(world) == ["c1/10.1.0.1"]


def test_an_endpoint_in_two_slices_is_as_well_as_the_better_one_says() -> None:
    world = World()
    going = make.endpoint("10.1.0.1", condition=Condition.GONE)
    world.put(make.derived(), make.endpoints("c1", going, part="a"), make.endpoints("c1", "10.1.0.1", part="b"))
    assert [row.condition for row in world.backends] == [Condition.READY]


def test_slices_of_one_service_are_one_set() -> None:
    world = World()
    world.put(make.derived(), *(make.endpoints("c1", f"10.1.0.{n}", part=f"s{n}") for n in range(5)))
    assert len(addresses(world)) == 5


def test_what_a_cluster_keeps_for_itself_is_used_there_and_nowhere_else() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("c1", "10.1.0.1", shared=False))
    world.put(make.endpoints("c2", "10.2.0.1", shared=False))
    assert addresses(world) == ["c1/10.1.0.1"]


def test_endpoints_of_a_source_that_knows_no_cluster_are_the_own_clusters() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("", "10.1.0.1", source="files"))
    assert addresses(world) == ["c1/10.1.0.1"]


def test_one_address_of_two_clusters_is_two_backends() -> None:
    world = World()
    world.put(make.derived(), make.endpoints("c2", "10.9.0.1"), make.endpoints("c3", "10.9.0.1"))
    assert addresses(world) == ["c2/10.9.0.1", "c3/10.9.0.1"]
    assert [len(row.groups[0].targets) for row in world.plans] == [2]


def test_one_address_of_two_services_is_two_backends() -> None:
    world = World()
    world.put(make.derived(), make.derived("demo/other", cluster_ips=("10.96.0.9",)))
    world.put(make.endpoints("c2", "10.2.0.1"), make.endpoints("c2", "10.2.0.1", service=make.hashed("demo/other")))
    assert len(addresses(world)) == 2
    world.delete(make.endpoints("c2"))
    assert len(addresses(world)) == 1


def test_an_import_that_comes_after_its_endpoints_finds_them() -> None:
    world = World()
    world.put(make.endpoints("c2", "10.2.0.1")).settle()
    world.put(make.imported())
    assert addresses(world) == ["c2/10.2.0.1"]
    world.delete(make.imported())
    assert addresses(world) == []


def test_a_service_that_stops_being_global_keeps_its_own_backends_only() -> None:
    every = World("all")
    every.put(make.globally(), make.endpoints("c1", "10.1.0.1", service="demo/echo"))
    every.put(make.endpoints("c2", "10.2.0.1", service="demo/echo"))
    assert addresses(every) == ["c1/10.1.0.1", "c2/10.2.0.1"]
    every.put(make.service())
    assert addresses(every) == ["c1/10.1.0.1"]


def test_a_port_that_the_service_gets_later_brings_its_backends() -> None:
    world = World()
    both = make.endpoint("10.2.0.1", ports=(Port("http", 8080), Port("admin", 9000)))
    world.put(make.derived(), make.endpoints("c2", both)).settle()
    world.put(make.derived(ports=(Port("http", 80), Port("admin", 81))))
    assert [row.key.port for row in world.backends] == [8080, 9000]


def test_what_runs_on_another_network_is_no_backend_until_it_is_on_ours() -> None:
    world = World().put(make.derived(), make.imported(), make.endpoints("c1", "10.1.1.1"))
    world.put(make.endpoints("c2", "10.1.1.1"), make.endpoints("c3", "10.1.1.2"))
    world.put(make.cluster("c1", own=True, network="here"), make.cluster("c2", network="there"))
    assert [row.key.cluster for row in world.backends] == ["c1"], "c3 has not said that it is on our network"

    world.put(make.cluster("c3", network="here"))
    assert [row.key.cluster for row in world.backends] == ["c1", "c3"]
    world.put(make.cluster("c1", own=True, network="there"))
    assert [row.key.cluster for row in world.backends] == ["c1", "c2"]
