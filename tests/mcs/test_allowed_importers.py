"""An exporter names the clusters that may import: any other behaves as if it did not export."""

from __future__ import annotations

import pytest
from rows.mcs_world import World

from isthmus.model.services import Labels


def importers(names: str) -> Labels:
    return (("isthmus.io/importers", names),)


@pytest.mark.parametrize(
    ("names", "imported"), [("c1", True), ("c3, c1", True), ("c3", False), ("", False), ("c11", False)]
)
def test_a_cluster_imports_what_it_is_allowed_to(world: World, names: str, imported: bool) -> None:
    world.export("c2", annotations=importers(names))
    assert (world.merged is not None) is imported
    assert ("ServiceImport" in world.kinds) is imported


def test_an_export_that_may_not_be_imported_decides_nothing_beside_others(world: World) -> None:
    world.export("c2", annotations=importers("c3"), type="Headless", created="2020-01-01T00:00:00Z")
    world.export("c3", created="2026-01-01T00:00:00Z")
    merged = world.merged
    assert merged is not None
    assert (merged.clusters, merged.type, merged.conflicts) == (("c3",), "ClusterSetIP", ())


def test_an_import_goes_when_the_right_is_taken_away_and_comes_back_with_it(world: World) -> None:
    world.export("c2")
    assert "ServiceImport" in world.kinds
    world.export("c2", annotations=importers("c3"))
    assert "ServiceImport" not in world.kinds
    world.export("c2", annotations=importers("c1"))
    assert "ServiceImport" in world.kinds


def test_the_annotation_itself_reaches_no_object(world: World) -> None:
    world.export("c2", annotations=importers("c1"))
    assert "isthmus.io/importers" not in world.object("ServiceImport")["metadata"]["annotations"]
