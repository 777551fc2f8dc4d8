"""Metrics of exports and imports, computed when asked for, from what is wanted of their status.

Names are Cilium's with our prefix, so that what people built for those works.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.metrics_core import Metric

from isthmus import metrics
from isthmus.fair import Shares, grant
from isthmus.metrics import Definition, Sample
from isthmus.model.names import ClusterName, split
from isthmus.model.objects import Object
from isthmus.model.tables import OBJECTS, OVER_QUOTA
from isthmus.statedb import Snapshot

PREFIX: Final = "isthmus_operator"

Rows = Sequence[tuple[Object, Mapping[str, Any]]]
_OTHER: Final = [metrics.OTHER, metrics.OTHER]


def families(snapshot: Snapshot) -> Sequence[Metric]:
    """Return gauges of the exports and imports of the own cluster."""
    exports, other_exports = _bounded(row for row in snapshot.all(OBJECTS) if row.kind == "ServiceExport")
    imports, other_imports = _bounded(row for row in snapshot.all(OBJECTS) if row.kind == "ServiceImport")
    clusters = [(_labels(row), len(status.get("clusters", ()))) for row, status in imports]
    return [
        _info(metrics.EXPORT_INFO, exports, other_exports),
        _conditions(metrics.EXPORT_CONDITION, exports, other_exports),
        _info(metrics.IMPORT_INFO, imports, other_imports),
        _conditions(metrics.IMPORT_CONDITION, imports, other_imports),
        metrics.IMPORT_CLUSTERS.family(PREFIX, clusters),
    ]


def _bounded(objects: Iterable[Object]) -> tuple[Rows, Rows]:
    """Objects with their status: those that have series of their own, in fair shares of namespaces, and the others."""
    rows = [(row, _status(row)) for row in sorted(objects, key=lambda row: row.name)]
    if len(rows) <= metrics.SERIES:
        return rows, []
    shares = Shares(metrics.SERIES, reserve=False)
    names = [row.name for row, _ in rows]
    chosen = set(grant(names, shares, holders=lambda name: [(split(name)[0],)], order=lambda name: name))
    return [each for each in rows if each[0].name in chosen], [each for each in rows if each[0].name not in chosen]


def takeovers(counts: Mapping[ClusterName, int]) -> Metric:
    """Return how often each cluster's older export took over fields that another cluster's export had decided."""
    return metrics.TAKEOVERS.family(PREFIX, (([cluster], count) for cluster, count in sorted(counts.items())))


def quota(snapshot: Snapshot, limit: int) -> Sequence[Metric]:
    """Return the number of desired derived Services, its limit, and the imports that get none because of it."""
    return [
        metrics.DERIVED_SERVICES.value(PREFIX, sum(1 for row in snapshot.all(OBJECTS) if row.kind == "Service")),
        metrics.DERIVED_SERVICES_LIMIT.value(PREFIX, limit),
        metrics.OVER_QUOTA.value(PREFIX, snapshot.count(OVER_QUOTA)),
    ]


def _status(row: Object) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.json.decode(row.status) if row.status else {}
    return status


def _labels(row: Object) -> list[str]:
    namespace, name = split(row.name)
    return [name, namespace]


def _info(definition: Definition, rows: Rows, aggregated: Rows) -> Metric:
    samples: list[Sample] = [(_labels(row), 1) for row, _ in rows]
    if aggregated:
        samples.append((_OTHER, len(aggregated)))
    return definition.family(PREFIX, samples)


def _conditions(definition: Definition, rows: Rows, aggregated: Rows) -> Metric:
    samples: list[Sample] = [([*_labels(row), *each], 1) for row, status in rows for each in _states(status)]
    counts = Counter(each for _, status in aggregated for each in _states(status))
    samples += [([*_OTHER, *each], count) for each, count in sorted(counts.items())]
    return definition.family(PREFIX, samples)


def _states(status: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(each["type"], each["status"], each["reason"]) for each in status.get("conditions", ())]
