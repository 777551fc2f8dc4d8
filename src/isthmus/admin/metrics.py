"""Metrics every process computes from its tables; those of peers are named as Cilium names them (ClusterMesh §5.11)."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.metrics_core import Metric

from isthmus import bounds, metrics
from isthmus.model.tables import CLUSTERS
from isthmus.statedb import Database, Snapshot


def tables(db: Database, prefix: str) -> Sequence[Metric]:
    """Return the numbers of rows, changes and awaited sources of each table."""
    stats = sorted(db.stats().items())
    return [
        metrics.TABLE_ROWS.family(prefix, (([name], numbers.rows) for name, numbers in stats)),
        metrics.TABLE_REVISION.family(prefix, (([name], numbers.revision) for name, numbers in stats)),
        metrics.TABLE_PENDING.family(prefix, (([name], len(numbers.pending)) for name, numbers in stats)),
    ]


def clusters(snapshot: Snapshot, prefix: str) -> Sequence[Metric]:
    """Return the state of the connections to other clusters."""
    peers = sorted((row for row in snapshot.all(CLUSTERS) if not row.own), key=lambda row: row.name)
    stale = [row for row in peers if row.state == "stale" and row.since]
    ready = (([row.name], row.state == "ready" and not row.failing) for row in peers)
    last = (([row.name], bounds.timestamp(row.since).timestamp()) for row in stale)
    ends = [([row.name], bounds.timestamp(end).timestamp()) for row in peers if (end := row.certificate_ends)]
    return [
        metrics.REMOTE_CLUSTERS.value(prefix, len(peers)),
        metrics.REMOTE_READY.family(prefix, ready),
        metrics.REMOTE_FAILURES.family(prefix, (([row.name], row.failures) for row in peers)),
        metrics.REMOTE_LAST_FAILURE.family(prefix, last),
        metrics.REMOTE_DROPPED.family(prefix, (([row.name], row.dropped) for row in peers)),
        metrics.REMOTE_CERTIFICATE_END.family(prefix, ends),
    ]
