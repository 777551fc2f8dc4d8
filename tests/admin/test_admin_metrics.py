"""Metrics that every process computes from its tables."""

from __future__ import annotations

from isthmus.admin import metrics
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.tables import CLUSTERS
from isthmus.statedb import Database


def peers(*rows: Cluster) -> dict[str, dict[str, float]]:
    """By metric, without what all begin with, its value for each peer."""
    db = Database(CLUSTERS)
    with db.write() as txn:
        txn.put_all(CLUSTERS, rows)
    return {
        family.name.removeprefix("x_clustermesh_remote_"): {
            each.labels.get("target_cluster", ""): each.value for each in family.samples
        }
        for family in metrics.clusters(db.snapshot(), "x")
    }


def test_the_end_of_a_peers_certificates_is_a_metric_where_there_are_some() -> None:
    secured = Cluster(name=ClusterName("c2"), certificate_ends="2026-11-22T12:00:00Z")
    found = peers(Cluster(name=ClusterName("c1"), own=True), secured, Cluster(name=ClusterName("c3")))
    assert found["cluster_certificate_end_timestamp_seconds"] == {"c2": 1795348800.0}
    assert found["clusters"] == {"": 2}
