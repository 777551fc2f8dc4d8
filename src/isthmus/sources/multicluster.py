"""ServiceExports and ServiceImports of the API server as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from isthmus.kube.objects import mcs
from isthmus.kube.objects.meta import Condition
from isthmus.model.names import ClusterName
from isthmus.model.services import ExportMark, Import, StatusCondition
from isthmus.sources.normal import (
    AFFINITIES,
    IMPORT_TYPES,
    POLICIES,
    Policy,
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
    return Import(
        name=name_of(wire.metadata),
        type=IMPORT_TYPES.get(spec.type, "ClusterSetIP"),
        ports=ports(spec.ports),
        ips=ips,
        affinity=AFFINITIES.get(spec.session_affinity, "None"),
        affinity_timeout=affinity_seconds(spec.session_affinity_config),
        families=families(spec.ip_families, ()),
        internal_policy=_policy(spec.internal_traffic_policy),
        distribution=spec.traffic_distribution,
        clusters=tuple(ClusterName(each.cluster) for each in exporters if each.cluster),
        derived=(wire.metadata.annotations or {}).get(DERIVED, ""),
        labels=pairs(wire.metadata.labels),
        annotations=pairs(wire.metadata.annotations),
        uid=wire.metadata.uid,
        conditions=conditions(wire.status.conditions if wire.status else None),
    )


def conditions(wire: Iterable[Condition] | None) -> tuple[StatusCondition, ...]:
    """Conditions by type, without their times."""
    found = (StatusCondition(c.type, c.status, c.reason, c.message, c.observed_generation) for c in wire or ())
    return tuple(sorted(found, key=lambda each: each.type))


def _policy(found: str | None) -> Policy | None:
    return POLICIES.get(found, "Cluster") if found else None
