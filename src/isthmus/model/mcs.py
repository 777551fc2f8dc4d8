"""Derived rows of the operator: exports merged, what is published to peers, what is wanted in the own API server."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Affinity, Export, Family, ImportType, Labels, Port

MANAGED_BY: Final = "isthmus.io/managed-by"
"""Annotation of every object that is wholly a controller's own: which controller that is."""


class Conflict(Struct, frozen=True, gc=False):
    """A field on which exporting clusters disagree: the reason in the condition Conflict (KEP-1645) and a sentence."""

    reason: str
    message: str


class Merged(Struct, frozen=True, gc=False, kw_only=True):
    """The clusterset's one view of a service, from all valid exports; the oldest export wins what cannot be joined."""

    name: ServiceName
    type: ImportType
    ports: tuple[Port, ...]
    affinity: Affinity = "None"
    affinity_timeout: int | None = None
    families: tuple[Family, ...] = ()
    internal_policy: Literal["Cluster", "Local"] | None = None
    distribution: str | None = None
    labels: Labels = ()
    annotations: Labels = ()
    clusters: tuple[ClusterName, ...] = ()
    """Exporting clusters, oldest export first."""
    created: str = ""
    """When the oldest export was created; empty where the import stands in for an export not received yet."""
    conflicts: tuple[Conflict, ...] = ()


RefusalReason = Literal["NoService", "InvalidServiceType", "NamespaceNotGlobal"]


class OwnExport(Struct, frozen=True, gc=False, kw_only=True):
    """What a ServiceExport of the own cluster comes to: its export, or the reason why it exports nothing."""

    name: ServiceName
    export: Export | None = None
    reason: RefusalReason | None = None
    """That of its condition Valid, where ``export`` is None."""
    message: str = ""


class OverQuota(Struct, frozen=True, gc=False):
    """An import for which no derived Service is made: the cluster has as many as it may have."""

    name: ServiceName
    limit: int


RecordKind = Literal["serviceexports", "services", "endpointslices"]


class Record(Struct, frozen=True, gc=False):
    """What the own cluster publishes: one key of its etcd below ``cilium/state/<kind>/v1/<cluster>/``."""

    kind: RecordKind
    name: ServiceName
    value: bytes
