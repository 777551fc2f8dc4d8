"""multicluster.x-k8s.io: exports and imports. v1beta1 and v1alpha1 have one schema; a server may have either."""

from __future__ import annotations

from typing import Final

from msgspec import field

from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import ServicePort, SessionAffinityConfig
from isthmus.kube.objects.meta import Condition, ManagedMeta, Meta, Wire

GROUP: Final = "multicluster.x-k8s.io"


class ServiceExportSpec(Wire, frozen=True):
    """Metadata that the export publishes."""

    exported_labels: dict[str, str] | None = None
    exported_annotations: dict[str, str] | None = None


class ServiceExportStatus(Wire, frozen=True):
    """Observed state of an export."""

    conditions: list[Condition] | None = None


class ServiceExport(Wire, frozen=True):
    """The wish to export the Service of the same name."""

    metadata: Meta
    spec: ServiceExportSpec | None = None
    status: ServiceExportStatus | None = None


class ServiceImportSpec(Wire, frozen=True):
    """The clusterset's view of a service."""

    type: str = field(default_factory=lambda: "ClusterSetIP")  # never left out of JSON, as a default would be
    ports: list[ServicePort] | None = None
    ips: list[str] | None = None
    session_affinity: str | None = None
    session_affinity_config: SessionAffinityConfig | None = None
    ip_families: list[str] | None = None
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None


class ClusterStatus(Wire, frozen=True):
    """A cluster that exports the service."""

    cluster: str = ""


class ServiceImportStatus(Wire, frozen=True):
    """Observed state of an import."""

    endpoint_slice_objects: str | None = None
    """Whether EndpointSlices of exporting clusters exist in this one: ``Present`` or ``Absent`` (KEP-1645)."""
    clusters: list[ClusterStatus] | None = None
    conditions: list[Condition] | None = None


class ServiceImport(Wire, frozen=True):
    """A service of the clusterset, in this cluster."""

    metadata: ManagedMeta
    spec: ServiceImportSpec | None = None
    status: ServiceImportStatus | None = None


SERVICE_EXPORT: Final = Kind(
    GROUP, "v1beta1", "serviceexports", "ServiceExport", ServiceExport, older_versions=("v1alpha1",)
)
SERVICE_IMPORT: Final = Kind(
    GROUP, "v1beta1", "serviceimports", "ServiceImport", ServiceImport, older_versions=("v1alpha1",)
)
