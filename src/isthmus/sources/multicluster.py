"""ServiceExports and ServiceImports of the API server as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from isthmus.kube.objects import mcs
from isthmus.kube.objects.meta import Condition
from isthmus.model.names import ClusterName
from isthmus.model.services import ExportMark, Import, StatusCondition
from isthmus.sources.normal import (
    AFFINITIES,
    IMPORT_TYPES,
    POLICIES,
    addresses,
    affinity_seconds,
    families,
    name_of,
    pairs,
    ports,
)

DERIVED: Final = "multicluster.kubernetes.io/derived-service"
"""Annotation of an import: the name of the Service that stands for it."""


def export_mark(wire: mcs.ServiceExport) -> ExportMark:
    """The row of a ServiceExport; its labels and annotations are those that travel, not its own."""
    spec = wire.spec or mcs.ServiceExportSpec()
    return ExportMark(
        name=name_of(wire.metadata),
        created=wire.metadata.creation_timestamp or "",
        uid=wire.metadata.uid,
        generation=wire.metadata.generation,
        labels=pairs(spec.exported_labels),
        annotations=pairs(spec.exported_annotations),
        conditions=conditions(wire.status.conditions if wire.status else None),
    )


def service_import(wire: mcs.ServiceImport) -> Import:
    """The row of a ServiceImport."""
    spec = wire.spec or mcs.ServiceImportSpec()
    exporters = (wire.status.clusters or ()) if wire.status else ()
    ips = addresses(spec.ips, field="spec.ips")
    annotations = wire.metadata.annotations
    return Import(  # positional, in the order of the row's fields: it takes a tenth of the time
        name_of(wire.metadata),
        IMPORT_TYPES.get(spec.type, "ClusterSetIP"),
        ports(spec.ports),
        ips,
        AFFINITIES.get(spec.session_affinity, "None"),
        affinity_seconds(spec.session_affinity_config) if spec.session_affinity_config else None,
        families(spec.ip_families, ()),
        POLICIES.get(spec.internal_traffic_policy, "Cluster") if spec.internal_traffic_policy else None,
        spec.traffic_distribution,
        cast("tuple[ClusterName, ...]", tuple([each.cluster for each in exporters if each.cluster])),
        annotations.get(DERIVED, "") if annotations else "",
        pairs(wire.metadata.labels) if wire.metadata.labels else (),
        pairs(annotations) if annotations else (),
        wire.metadata.uid,
        conditions(wire.status.conditions) if wire.status and wire.status.conditions else (),
    )


def conditions(wire: Iterable[Condition] | None) -> tuple[StatusCondition, ...]:
    """Conditions by type, without their times."""
    found = (StatusCondition(c.type, c.status, c.reason, c.message, c.observed_generation) for c in wire or ())
    return tuple(sorted(found, key=lambda each: each.type))
