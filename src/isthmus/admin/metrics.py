"""Metrics every process has, computed from its tables; named as Cilium names them (ClusterMesh §5.11), our prefix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily

from isthmus.model.tables import CLUSTERS
from isthmus.statedb import Database, Snapshot, TableStats

TARGET: Final = ("target_cluster",)


def tables(db: Database, prefix: str) -> list[GaugeMetricFamily]:
    """How many rows each table has, how often it changed, for how many sources it waits."""
    stats = db.stats()
    families = []
    kinds: tuple[tuple[str, str, Callable[[TableStats], int]], ...] = (
        ("rows", "Rows of a table", lambda numbers: numbers.rows),
        ("revision", "Changes a table has seen", lambda numbers: numbers.revision),
        ("pending", "Sources that a table waits for", lambda numbers: len(numbers.pending)),
    )
    for field, help_, value in kinds:
        gauge = GaugeMetricFamily(f"{prefix}_table_{field}", help_, labels=["table"])
        for name, numbers in sorted(stats.items()):
            gauge.add_metric([name], value(numbers))
        families.append(gauge)
    return families


def clusters(snapshot: Snapshot, prefix: str) -> list[GaugeMetricFamily]:
    """How the connections to the other clusters do."""
    peers = sorted((row for row in snapshot.all(CLUSTERS) if not row.own), key=lambda row: row.name)
    count = GaugeMetricFamily(f"{prefix}_clustermesh_remote_clusters", "Other clusters of the clusterset")
    count.add_metric([], len(peers))
    ready = _gauge(f"{prefix}_clustermesh_remote_cluster_readiness_status", "1 where a cluster is heard")
    failures = _gauge(f"{prefix}_clustermesh_remote_cluster_failures", "Failures of the connection to a cluster")
    last = _gauge(f"{prefix}_clustermesh_remote_cluster_last_failure_ts", "When that was, seconds since the epoch")
    ends = _gauge(
        f"{prefix}_clustermesh_remote_cluster_certificate_end_ts",
        "When the first of the certificates by which a cluster is reached ends, seconds since the epoch",
    )
    dropped = _gauge(f"{prefix}_clustermesh_remote_cluster_dropped_records", "Records of a cluster that were refused")
    for row in peers:
        ready.add_metric([row.name], row.state == "ready")
        failures.add_metric([row.name], row.failures)
        dropped.add_metric([row.name], row.dropped)
        if row.state == "stale" and row.since:
            last.add_metric([row.name], datetime.fromisoformat(row.since).timestamp())
        if row.certificate_ends:
            ends.add_metric([row.name], datetime.fromisoformat(row.certificate_ends).timestamp())
    return [count, ready, failures, last, dropped, ends]


def _gauge(name: str, help_: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_, labels=list(TARGET))
