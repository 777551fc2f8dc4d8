"""Derived rows of the operator: merged exports, and records that are published to peers."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Affinity, Export, Family, ImportType, Labels, Port

MANAGED_BY: Final = "isthmus.io/managed-by"
"""Annotation with the name of the controller that owns the whole object."""


class Conflict(Struct, frozen=True, gc=False):
    """A field on which exporting clusters disagree: the reason in the condition Conflict (KEP-1645) and a sentence."""

    reason: str
    message: str


class Merged(Struct, frozen=True, gc=False, kw_only=True):
    """The clusterset's view of a service, merged from all valid exports. The oldest export wins conflicts."""

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
    """Creation time of the oldest export; empty while the import replaces an export that was not received yet."""
    conflicts: tuple[Conflict, ...] = ()


RefusalReason = Literal["NoService", "InvalidServiceType", "NamespaceNotGlobal"]


class OwnExport(Struct, frozen=True, gc=False, kw_only=True):
    """Result of a ServiceExport of the own cluster: its export, or the reason why nothing is exported."""

    name: ServiceName
    export: Export | None = None
    reason: RefusalReason | None = None
    """Reason of its condition Valid, if ``export`` is ``None``."""
    message: str = ""


class OverQuota(Struct, frozen=True, gc=False):
    """An import without a derived Service, because the cluster has reached its limit."""

    name: ServiceName
    limit: int


RecordKind = Literal["serviceexports", "services", "endpointslices", "identities", "ip"]

RefusalOfRecord = Literal["NamespaceNotAllowed", "AddressNotAllowed", "QuotaExceeded", "Invalid"]
"""Reasons for refusing a peer's record."""


class RefusedRecord(Struct, frozen=True, gc=False, kw_only=True):
    """A peer's record that is refused here, wholly or in part."""

    cluster: ClusterName
    """The peer that published it."""
    kind: RecordKind
    name: ServiceName
    reason: RefusalOfRecord
    message: str


class PeerRefusal(Struct, frozen=True, gc=False, kw_only=True):
    """A record of the own cluster that a peer refuses, as the peer publishes it."""

    cluster: ClusterName
    """The peer that refuses it."""
    kind: RecordKind
    name: ServiceName
    """Name in the record's key; for endpoints, the name of the derived Service."""
    reason: RefusalOfRecord
    message: str


class Refusals(Struct, frozen=True, gc=False):
    """Published report of the own cluster about the records of one peer that it refuses."""

    cluster: ClusterName
    """The peer that published the records."""
    value: bytes


class Record(Struct, frozen=True, gc=False):
    """A record that the own cluster publishes: one key of its etcd below ``cilium/state/<kind>/v1/``."""

    kind: RecordKind
    name: ServiceName
    value: bytes
    service: ServiceName = ServiceName("")
    """The Service of an endpoint slice, which has a name of its own."""

    @property
    def unit(self) -> tuple[str, ServiceName]:
        """Unit of computation: an export, a service's endpoints, an identity."""
        return ("services", self.service) if self.service else (self.kind, self.name)
