"""All that is known of one name: what its objects are computed from, read once from one snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from msgspec import structs

from isthmus.desired import is_our_row
from isthmus.mcs import unpublished
from isthmus.mcs.exports import agreed, is_shared_namespace, takes_slices
from isthmus.mcs.merged import AWAITED, may_import
from isthmus.mcs.unpublished import RecordStatus
from isthmus.mcs.words import CLUSTER_IPS, SYNC_SLICES
from isthmus.model.addresses import range_of
from isthmus.model.clusters import Cluster, PeerState, Reachability, reachability
from isthmus.model.hosts import canonical, family
from isthmus.model.mcs import Merged, OverQuota, OwnExport, PeerRefusal, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName, derived, split
from isthmus.model.services import (
    Condition,
    EndpointSet,
    Export,
    ExportMark,
    Family,
    Import,
    Namespace,
    Service,
    annotated,
)
from isthmus.model.sources import CLUSTERSET, KUBERNETES
from isthmus.model.tables import (
    CLUSTERS,
    ENDPOINT_SETS,
    EXPORT_MARKS,
    EXPORTS,
    IMPORTS,
    MERGED,
    NAMESPACES,
    OVER_QUOTA,
    OWN_EXPORTS,
    PEER_REFUSALS,
    REFUSED_RECORDS,
    SERVICES,
)
from isthmus.sources import karmada
from isthmus.statedb import Reader, Table

R = TypeVar("R", PeerRefusal, RefusedRecord)


class Settings(NamedTuple):
    """What is configured of the own cluster. ``families`` are those that its Services can have, in order."""

    cluster: ClusterName
    families: tuple[Family, ...] = ("IPv4",)
    default_global: bool = True
    list_importers: bool = False
    """The status of a ServiceExport lists the clusters that may import."""


class View(NamedTuple):
    """One name, in one snapshot."""

    settings: Settings
    name: ServiceName
    namespace: Namespace
    shared: bool
    """The namespace takes part in the clusterset."""
    merged: Merged | None
    mark: ExportMark | None
    service: Service | None
    """The own cluster's Service of that name."""
    own: OwnExport | None
    """What the own cluster's ServiceExport comes to."""
    found_import: Import | None
    found_service: Service | None
    """What is called as the derived Service, ours or not."""
    sets: tuple[EndpointSet, ...]
    """The own cluster's endpoints of the Service, a slice each."""
    published: tuple[EndpointSet, ...]
    """Endpoints that peers publish and that can be reached from here, of the derived Service and of the name itself."""
    agreed: dict[ClusterName, tuple[Export, frozenset[str]]]
    """Each export, the own one included, with the names of its ports that mean what they mean in the import."""
    behind_import: bool
    """Slices of other clusters are wanted behind the derived Service."""
    behind_service: bool
    """And behind the own Service, since that is global by annotation."""
    endpoints_ready: bool
    """Some exporting cluster has a ready endpoint, on whatever network, or has not been received from yet."""
    over_quota: OverQuota | None
    refused: tuple[PeerRefusal, ...]
    """Records of the own cluster's export that peers do not take."""
    importers: tuple[ClusterName, ...] | None
    """Peers for which the own cluster's export is available; None where the status is not to list them."""
    unpublished: tuple[RecordStatus, ...]
    """Records of the own cluster's export whose last change the own etcd does not have."""
    not_taken: tuple[RefusedRecord, ...]
    """Records of peers' exports that this cluster does not take, or in part only."""
    stale: tuple[ClusterName, ...]
    """Exporting clusters that cannot be reached: what they last published still counts."""
    silent: tuple[ClusterName, ...]
    """Exporting clusters without a publisher."""
    ways: dict[ClusterName, Reachability]
    """How pods of each exporting cluster are reached from here."""

    @property
    def short(self) -> str:
        """The name without the namespace."""
        return split(self.name)[1]

    @property
    def derived_short(self) -> str:
        """The name of the derived Service without the namespace."""
        return split(self.derived)[1]

    @property
    def derived(self) -> ServiceName:
        """The name of the derived Service."""
        return derived(self.name)

    @property
    def families(self) -> tuple[Family, ...]:
        """The clusterset's address families that this cluster can serve; where no export names any, its own."""
        common = self.merged.families if self.merged is not None else ()
        return tuple(f for f in common if f in self.settings.families) if common else self.settings.families

    @property
    def lacks_ports(self) -> bool:
        """True if no Service can be made of the import: one with an address must have a port."""
        return self.merged is not None and self.merged.type != "Headless" and not self.merged.ports

    @property
    def taken(self) -> bool:
        """The derived Service's name is in use by a Service that is not ours."""
        return self.found_service is not None and not is_our_row(self.found_service)

    @property
    def import_taken(self) -> bool:
        """The import is not ours: another implementation serves it, and nothing is built on it."""
        return self.found_import is not None and not is_our_row(self.found_import)

    @property
    def has_derived_service(self) -> bool:
        """Whether a derived Service is wanted for an import of this name."""
        usable = self.shared and bool(self.families) and not self.lacks_ports and self.over_quota is None
        if self.karmadas:  # calls to the address that callers know go on; nothing new is made
            return usable and self.derived_service is not None
        return usable and not (self.import_taken or self.taken)

    @property
    def had_addresses(self) -> tuple[str, ...]:
        """Addresses that the derived Service had and has no more, by the import: of families that are had here."""
        if self.found_import is None or self.import_taken:
            return ()
        kept = dict(self.found_import.annotations).get(CLUSTER_IPS, "")
        addresses = self.found_import.ips or tuple(each for each in kept.split(",") if canonical(each))
        return tuple(ip for ip in addresses if family(ip) in self.families)

    @property
    def karmadas(self) -> bool:
        """The import is Karmada's to write: it is served as it is."""
        return self.found_import is not None and karmada.writes(self.found_import.labels)

    @property
    def derived_service(self) -> Service | None:
        """The derived Service as the API server has it."""
        return None if self.taken else self.found_service


def read(reader: Reader, name: ServiceName, *, settings: Settings) -> View | None:
    """The view of a name; None where its namespace does not exist here, or ends: nothing is written then."""
    namespace = reader.get(NAMESPACES, split(name)[0])
    if namespace is None or namespace.terminating:
        return None
    merged, own = reader.get(MERGED, name), reader.get(OWN_EXPORTS, name)
    service = reader.get(SERVICES, (name, KUBERNETES))
    behind, of_name = (tuple(reader.by(ENDPOINT_SETS, "service", each)) for each in (derived(name), name))
    own_sets = (each for each in of_name if each.cluster == settings.cluster and each.source == KUBERNETES)
    sets = tuple(sorted(own_sets, key=lambda each: each.part))
    return View(
        settings=settings,
        name=name,
        namespace=namespace,
        shared=is_shared_namespace(namespace, default=settings.default_global),
        merged=merged,
        mark=reader.get(EXPORT_MARKS, name),
        service=service,
        own=own,
        found_import=reader.get(IMPORTS, name),
        found_service=reader.get(SERVICES, (derived(name), KUBERNETES)),
        sets=sets,
        published=_published(reader, (*behind, *of_name), settings),
        agreed=agreed(merged, own, reader.by(EXPORTS, "name", name)) if merged is not None else {},
        behind_import=merged is not None and annotated(merged.annotations, SYNC_SLICES, default=True),
        behind_service=service is not None and takes_slices(service),
        endpoints_ready=merged is None or _endpoints_ready(reader, merged, behind, sets),
        over_quota=reader.get(OVER_QUOTA, name),
        refused=_records(reader, PEER_REFUSALS, name),
        importers=_importers(reader, own, name) if settings.list_importers else None,
        unpublished=unpublished.read(reader, name),
        not_taken=_records(reader, REFUSED_RECORDS, name),
        stale=_in_state(reader, merged, "stale"),
        silent=_in_state(reader, merged, "silent"),
        ways=_ways(reader, merged, settings),
    )


def _published(reader: Reader, sets: Iterable[EndpointSet], settings: Settings) -> tuple[EndpointSet, ...]:
    """What peers publish that can be reached from here, by cluster, but for addresses in the own cluster's ranges.

    A cluster on another network is left out, and so is one that keeps its endpoints for itself.
    """
    own = reader.get(CLUSTERS, settings.cluster)
    ranges = own.own_ranges if own is not None else ()
    rows = []
    for row in sets:
        shared = row.source == CLUSTERSET and row.cluster != settings.cluster and row.shared
        if shared and reachability(own, reader.get(CLUSTERS, row.cluster)) == "direct":
            kept = tuple(each for each in row.endpoints if not range_of(each.address, ranges))
            rows.append(row if len(kept) == len(row.endpoints) else structs.replace(row, endpoints=kept))
    return tuple(sorted(rows, key=lambda row: (row.cluster, row.part)))


def _endpoints_ready(reader: Reader, merged: Merged, behind: Iterable[EndpointSet], own: Iterable[EndpointSet]) -> bool:
    states = (reader.get(CLUSTERS, cluster) for cluster in merged.clusters)
    if any(row is not None and not row.own and row.state in AWAITED for row in states):
        return True
    published = (row for row in behind if row.source == CLUSTERSET)
    counted = (row for row in (*published, *own) if row.cluster in merged.clusters)
    return any(endpoint.condition == Condition.READY for row in counted for endpoint in row.endpoints)


def _ways(reader: Reader, merged: Merged | None, settings: Settings) -> dict[ClusterName, Reachability]:
    own = reader.get(CLUSTERS, settings.cluster)
    exporters = merged.clusters if merged is not None else ()
    return {name: reachability(own, reader.get(CLUSTERS, name)) for name in exporters}


def _records(reader: Reader, table: Table[Any, R], name: ServiceName) -> tuple[R, ...]:
    """Refusals of an export of this name, and of the endpoints behind it, by cluster."""
    if not reader.count(table):
        return ()
    rows = (row for each in (name, derived(name)) for row in reader.by(table, "name", each))
    return tuple(sorted(rows, key=lambda row: (row.cluster, row.kind)))


def _importers(reader: Reader, own: OwnExport | None, name: ServiceName) -> tuple[ClusterName, ...]:
    """Return the peers that the own export lets import, but for those that refuse its record or are not trusted."""
    if own is None or own.export is None:
        return ()
    refusing = {row.cluster for row in reader.by(PEER_REFUSALS, "name", name) if row.kind == "serviceexports"}
    peers = (row.name for row in reader.all(CLUSTERS) if takes_exports(row) and row.name not in refusing)
    return tuple(sorted(peer for peer in peers if may_import(peer, own.export)))


def takes_exports(cluster: Cluster | None) -> bool:
    """True for a peer to which exports are available; what was refused or is not trusted takes no part."""
    return cluster is not None and not cluster.own and cluster.state not in ("refused", "distrusted")


def _in_state(reader: Reader, merged: Merged | None, state: PeerState) -> tuple[ClusterName, ...]:
    states = ((name, reader.get(CLUSTERS, name)) for name in merged.clusters) if merged is not None else ()
    return tuple(name for name, row in states if row is not None and row.state == state)
