"""With ``clusterset.export_status_clusters`` a ServiceExport's status lists the clusters that may import."""

from __future__ import annotations

import pytest
from rows.mcs_world import World

from isthmus.model import tables
from isthmus.model.clusters import Cluster, PeerState
from isthmus.model.mcs import PeerRefusal
from isthmus.model.names import ClusterName, ServiceName

ECHO = ServiceName("demo/echo")


def cluster(name: str, state: PeerState = "ready") -> Cluster:
    return Cluster(name=ClusterName(name), id=int(name[1:]), own=name == "c1", state=state)


@pytest.fixture
def listing() -> World:
    """c1 exports echo, and knows c2 and c3."""
    world = World(list_importers=True)
    for name in ("c1", "c2", "c3"):
        world.put(tables.CLUSTERS, cluster(name))
    world.service()
    world.mark()
    return world


def listed(world: World) -> list[str]:
    return [each["cluster"] for each in world.status("ServiceExport")["clusters"]]


def test_every_peer_is_listed(listing: World) -> None:
    assert listed(listing) == ["c2", "c3"]


def test_a_peer_is_listed_while_it_is_one(listing: World) -> None:
    listing.put(tables.CLUSTERS, cluster("c4"))
    assert listed(listing) == ["c2", "c3", "c4"]
    listing.delete(tables.CLUSTERS, ClusterName("c4"))
    assert listed(listing) == ["c2", "c3"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [("stale", ["c2", "c3"]), ("silent", ["c2", "c3"]), ("refused", ["c2"]), ("distrusted", ["c2"])],
)
def test_a_peer_that_cannot_be_reached_stays_listed_and_one_that_is_kept_out_does_not(
    listing: World, state: PeerState, expected: list[str]
) -> None:
    listing.put(tables.CLUSTERS, cluster("c3", state))
    assert listed(listing) == expected


@pytest.mark.parametrize(("importers", "expected"), [("c3", ["c3"]), ("c3,c9", ["c3"]), ("", [])])
def test_only_clusters_that_may_import_are_listed(listing: World, importers: str, expected: list[str]) -> None:
    listing.mark(annotations=(("isthmus.io/importers", importers),))
    assert listed(listing) == expected


def test_a_peer_that_refuses_the_export_is_not_listed(listing: World) -> None:
    refusal = PeerRefusal(
        cluster=ClusterName("c2"), kind="serviceexports", name=ECHO, reason="QuotaExceeded", message="too many"
    )
    listing.put(tables.PEER_REFUSALS, refusal)
    assert listed(listing) == ["c3"]


def test_an_export_that_exports_nothing_lists_nobody(listing: World) -> None:
    listing.delete(tables.SERVICES, (ECHO, "kubernetes"))
    assert listed(listing) == []


def test_nothing_is_listed_by_default(world: World) -> None:
    world.put(tables.CLUSTERS, cluster("c2"))
    world.service()
    world.mark()
    assert "clusters" not in world.status("ServiceExport")
