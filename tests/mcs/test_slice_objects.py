"""An import's status says whether EndpointSlices of its exporters stand behind it: consumers like gateways read it."""

from __future__ import annotations

import pytest
from rows.mcs_world import World

from isthmus.mcs import words
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.services import Namespace


def at(world: World, **networks: str) -> None:
    for name, network in networks.items():
        world.put(tables.CLUSTERS, Cluster(name=ClusterName(name), own=name == "c1", network=network))


def presence(world: World) -> str | None:
    found = world.status("ServiceImport").get("endpointSliceObjects")
    assert found is None or isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("networks", "found"),
    [
        ({"c1": "", "c2": "", "c3": ""}, "Present"),
        ({"c1": "", "c2": "", "c3": "island"}, "Present"),
        ({"c1": "", "c2": "one", "c3": "two"}, "Absent"),
        ({"c1": "one", "c2": "one", "c3": "two"}, "Present"),
    ],
)
def test_they_are_absent_where_all_exporters_are_on_other_networks(
    world: World, networks: dict[str, str], found: str
) -> None:
    at(world, **networks)
    world.export("c2")
    world.export("c3")
    assert presence(world) == found


def test_those_of_the_own_export_are_present(world: World) -> None:
    at(world, c1="", c2="island")
    world.export("c2")
    assert presence(world) == "Absent"
    world.service()
    world.mark()
    assert presence(world) == "Present"


def test_they_are_absent_where_an_export_asks_for_none(world: World) -> None:
    at(world, c1="", c2="")
    world.export("c2", annotations=((words.SYNC_SLICES, "false"),))
    assert presence(world) == "Absent"


def test_they_are_absent_while_there_is_no_derived_service(world: World) -> None:
    at(world, c1="", c2="")
    world.put(tables.NAMESPACES, Namespace("demo", (("clustermesh.cilium.io/global", "false"),)))
    world.export("c2")
    assert presence(world) == "Absent"
