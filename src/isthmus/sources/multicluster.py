"""ServiceExports and ServiceImports of the API server as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

from isthmus import bounds
from isthmus.kube.objects import mcs
from isthmus.kube.objects.meta import Condition
from isthmus.model.names import ClusterName
from isthmus.model.services import ExportMark, Import, Labels, StatusCondition
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
from isthmus.times import timestamp

MAX_EXPORTED: Final = 60_000
"""Characters of exported labels, and of annotations: a record holds both twice and has at most 256 KiB."""
DERIVED: Final = "multicluster.kubernetes.io/derived-service"
"""Annotation of an import: the name of its derived Service."""


def export_mark(wire: mcs.ServiceExport) -> ExportMark:
    """Return the row of a ServiceExport. Its labels and annotations are the exported ones, not its own."""
    spec = wire.spec or mcs.ServiceExportSpec()
    created = wire.metadata.creation_timestamp or ""
    return ExportMark(
        name=name_of(wire.metadata),
        created=timestamp(bounds.timestamp(created, field="metadata.creationTimestamp")) if created else "",
        uid=wire.metadata.uid,
        generation=wire.metadata.generation,
        labels=_exported(spec.exported_labels, "spec.exportedLabels"),
        annotations=_exported(spec.exported_annotations, "spec.exportedAnnotations"),
        conditions=conditions(wire.status.conditions if wire.status else None),
    )


def _exported(exported: Mapping[str, str] | None, field: str) -> Labels:
    """Return exported labels or annotations. Raises OutOfBounds if peers would refuse a record of their size."""
    size = sum(len(key) + len(value) for key, value in exported.items()) if exported else 0
    bounds.count(size, most=MAX_EXPORTED, field=f"{field}, characters")
    return pairs(exported)


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
    listed = (StatusCondition(c.type, c.status, c.reason, c.message, c.observed_generation) for c in wire or ())
    return tuple(sorted(listed, key=lambda condition: condition.type))
