"""What an earlier process made of a peer's exports stays until that peer's records are there again."""

from __future__ import annotations

from typing import Any

import pytest
from rows.mcs_world import HTTP, World

from isthmus.desired import MANAGED_BY, MANAGER
from isthmus.mcs import words
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Import, Port, StatusCondition

ANNOTATIONS = ((words.SUPPORTED_FAMILIES, "IPv4"), (MANAGED_BY, MANAGER), ("note", "hi"))


def left(world: World, *clusters: str, **fields: Any) -> None:
    """The import as an earlier process left it."""
    given = {"ports": (HTTP,), "families": ("IPv4",), "annotations": tuple(sorted(ANNOTATIONS)), "uid": "u", **fields}
    names = tuple(ClusterName(each) for each in clusters)
    world.put(tables.IMPORTS, Import(name=ServiceName("demo/echo"), clusters=names, **given))


def state(world: World, cluster: str, state: Any) -> None:
    world.put(tables.CLUSTERS, Cluster(name=ClusterName(cluster), state=state))


def listed(world: World) -> tuple[str, ...]:
    return world.merged.clusters if world.merged is not None else ()


@pytest.mark.parametrize("unheard", ["connecting", "listing"])
def test_an_import_stays_as_it_is_while_its_only_cluster_has_not_spoken(world: World, unheard: str) -> None:
    state(world, "c2", unheard)
    pending = StatusCondition("Ready", "False", "Pending", "Service demo/derived-qieggqc27v has no address yet")
    left(world, "c2", type="Headless", labels=(("team", "red"),), conditions=(pending,))
    found = world.object("ServiceImport")
    assert found["spec"]["type"] == "Headless"
    assert found["metadata"]["labels"] == {"team": "red"}
    assert found["metadata"]["annotations"]["note"] == "hi"
    assert world.status("ServiceImport")["clusters"] == [{"cluster": "c2"}]
    assert world.row("ServiceImport").seen == "="


def test_it_goes_when_the_cluster_has_spoken_and_exports_nothing(world: World) -> None:
    state(world, "c2", "listing")
    left(world, "c2")
    state(world, "c2", "ready")
    assert world.objects == []


def test_it_goes_when_the_cluster_is_no_longer_configured(world: World) -> None:
    state(world, "c2", "connecting")
    left(world, "c2")
    world.delete(tables.CLUSTERS, ClusterName("c2"))
    assert world.objects == []


def test_a_cluster_that_has_not_spoken_keeps_its_part_beside_those_that_have(world: World) -> None:
    state(world, "c2", "connecting")
    left(world, "c2", "c3", ports=(HTTP, Port("metrics", 81)))
    world.export("c3")
    assert listed(world) == ("c2", "c3")
    assert world.merged is not None
    assert world.merged.ports == (HTTP, Port("metrics", 81))


def test_a_new_export_joins_what_stands(world: World) -> None:
    state(world, "c2", "connecting")
    left(world, "c2")
    world.service(ports=(HTTP, Port("metrics", 81)))
    world.mark(created="2020-01-01T00:00:00Z", labels=(("team", "red"),))
    assert listed(world) == ("c2", "c1")
    assert world.merged is not None
    assert world.merged.labels == ()
    assert world.merged.ports == (HTTP, Port("metrics", 81))


def test_what_the_cluster_then_says_counts_and_nothing_else(world: World) -> None:
    state(world, "c2", "connecting")
    left(world, "c2", type="Headless")
    world.export("c2")
    assert world.merged is not None
    assert world.merged.type == "ClusterSetIP"


def test_one_that_was_heard_from_and_is_away_has_its_own_rows_and_no_stand_in(world: World) -> None:
    state(world, "c2", "stale")
    left(world, "c2")
    assert world.objects == []


def test_somebody_elses_import_stands_in_for_nobody(world: World) -> None:
    state(world, "c2", "connecting")
    left(world, "c2", annotations=())
    assert world.objects == []


def test_the_own_cluster_needs_no_stand_in(world: World) -> None:
    state(world, "c1", "connecting")
    left(world, "c1")
    assert world.objects == []
