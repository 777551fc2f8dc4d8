"""Metrics of exports and imports, computed when asked for, from what is wanted of their status.

Names are Cilium's with our prefix, so that what people built for those works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from isthmus.model.names import ClusterName, split
from isthmus.model.objects import Object
from isthmus.model.tables import OBJECTS, OVER_QUOTA
from isthmus.statedb import Snapshot

PREFIX: Final = "isthmus_operator_mcsapi"


def families(snapshot: Snapshot) -> list[GaugeMetricFamily]:
    """Gauges of every export and import of the own cluster."""
    rows = sorted(snapshot.all(OBJECTS), key=lambda row: (row.kind, row.name))
    exports = [(row, _status(row)) for row in rows if row.kind == "ServiceExport"]
    imports = [(row, _status(row)) for row in rows if row.kind == "ServiceImport"]
    return [
        _info("serviceexport", exports),
        _conditions("serviceexport", exports),
        _info("serviceimport", imports),
        _conditions("serviceimport", imports),
        _clusters(imports),
    ]


def takeovers(counts: Mapping[ClusterName, int]) -> CounterMetricFamily:
    """How often each cluster's earlier date took fields over that another cluster's export had decided."""
    counter = CounterMetricFamily(
        f"{PREFIX}_takeovers", "Fields of imports taken over by an export with an older date", labels=["cluster"]
    )
    for cluster, count in sorted(counts.items()):
        counter.add_metric([cluster], count)
    return counter


def quota(snapshot: Snapshot, limit: int) -> list[GaugeMetricFamily]:
    """Derived Services that are wanted, how many there may be, and imports that get none for that."""
    wanted = sum(1 for row in snapshot.all(OBJECTS) if row.kind == "Service")
    gauges = {
        "derived_services": ("Derived Services of this cluster", wanted),
        "derived_services_limit": ("How many derived Services this cluster may have", limit),
        "imports_over_quota": ("Imports without a derived Service, by the limit", snapshot.count(OVER_QUOTA)),
    }
    return [GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value) for name, (text, value) in gauges.items()]


Rows = Iterable[tuple[Object, Mapping[str, Any]]]


def _status(row: Object) -> dict[str, Any]:
    status: dict[str, Any] = msgspec.json.decode(row.status) if row.status else {}
    return status


def _labels(row: Object) -> list[str]:
    namespace, name = split(row.name)
    return [name, namespace]


def _info(kind: str, rows: Rows) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"{PREFIX}_{kind}_info", f"A {kind} of this cluster", labels=[kind, "namespace"])
    for row, _ in rows:
        gauge.add_metric(_labels(row), 1)
    return gauge


def _conditions(kind: str, rows: Rows) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        f"{PREFIX}_{kind}_status_condition",
        f"A condition of a {kind} of this cluster",
        labels=[kind, "namespace", "condition", "status", "reason"],
    )
    for row, status in rows:
        for each in status.get("conditions", ()):
            gauge.add_metric([*_labels(row), each["type"], each["status"], each["reason"]], 1)
    return gauge


def _clusters(rows: Rows) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        f"{PREFIX}_serviceimport_status_clusters",
        "How many clusters export a service",
        labels=["serviceimport", "namespace"],
    )
    for row, status in rows:
        gauge.add_metric(_labels(row), len(status.get("clusters", ())))
    return gauge
