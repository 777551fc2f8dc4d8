"""Input rows: the units that sources write. A source replaces or removes whole rows and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name

Protocol = Literal["TCP", "UDP", "SCTP"]
Family = Literal["IPv4", "IPv6"]
Labels = tuple[tuple[str, str], ...]
"""Labels or annotations: sorted pairs, so that equal maps are equal rows."""

TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
"""Annotation that asks for zone hints; ``trafficDistribution`` is its successor."""

EXPORTERS: Final = "isthmus.io/exporters"
"""Annotation of a derived Service: the clusters that export its import, joined by commas, as of when it was written."""

MULTI_CLUSTER_SERVICE: Final = "multiclusterservice.karmada.io/name"
"""Annotation of a Service: the MultiClusterService of Karmada that spreads its endpoints over clusters."""

GLOBAL: Final = "service.cilium.io/global"
GLOBAL_ALIAS: Final = "io.cilium/global-service"
"""Annotation of a Service, and its old name: ``true`` joins the endpoints of every cluster's Service of that name."""

ImportType = Literal["ClusterSetIP", "Headless"]
Affinity = Literal["None", "ClientIP"]


class Port(Struct, frozen=True, gc=False, order=True):
    """A port of a service, an export or an endpoint. An empty name is a name: that of an unnamed port."""

    name: str
    port: int
    protocol: Protocol = "TCP"
    app_protocol: str = ""
    node_port: int = 0


class Service(Struct, frozen=True, gc=False):
    """A Service of one source.

    ``type`` is the API's, or HostPort: the port of one pod on its node, a service of its own with that one endpoint. It
    is called at ``node_port`` of every address of the node, or of its ``external_ips`` where it names some.
    """

    name: ServiceName
    source: str
    type: str = "ClusterIP"
    ports: tuple[Port, ...] = ()
    cluster_ips: tuple[str, ...] = ()
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    headless: bool = False
    families: tuple[Family, ...] = ()
    selector: Labels = ()
    affinity: Affinity = "None"
    affinity_timeout: int = 10800
    internal_policy: Literal["Cluster", "Local"] = "Cluster"
    external_policy: Literal["Cluster", "Local"] = "Cluster"
    distribution: str = ""
    publish_not_ready: bool = False
    labels: Labels = ()
    annotations: Labels = ()
    created: str = ""
    """RFC 3339, UTC, whole seconds; empty where the source has none."""
    import_of: ServiceName = ServiceName("")
    """The import this derived Service stands for; empty for any other Service."""
    uid: str = ""


def annotated(annotations: Labels, *keys: str, default: bool) -> bool:
    """The first of an annotation and its aliases that is there: 'true' in any case is true, all else is not."""
    if not annotations:
        return default
    values = dict(annotations)
    found = next((values[key] for key in keys if key in values), None)
    return default if found is None else found.lower() == "true"


def is_global(service: Service) -> bool:
    """Whether a Service takes endpoints of every cluster's Service of its name (Cilium's global services).

    A fact of the row, for agent and operator alike; what else a cluster shares is decided in ``mcs``.
    """
    return annotated(service.annotations, GLOBAL, GLOBAL_ALIAS, default=False)


def claimed_by(service: Service) -> str | None:
    """The MultiClusterService of Karmada that claims a Service; None where none does."""
    return next((value for key, value in service.annotations if key == MULTI_CLUSTER_SERVICE), None)


class Condition(IntEnum):
    """Conditions of an endpoint in an EndpointSlice (KEP-1669): order is preference."""

    READY = 0
    TERMINATING = 1  # serving while it ends: used only where nothing is ready
    NOT_READY = 2
    GONE = 3  # terminating and not serving


class Endpoint(Struct, frozen=True, gc=False, order=True):
    """One address that answers, with the ports it answers on. A set is sorted by address and has each once, but for a
    peer that spells one in two ways."""

    address: str
    ports: tuple[Port, ...]
    condition: Condition = Condition.READY
    hostname: str = ""
    node: str = ""
    zone: str = ""
    for_zones: tuple[str, ...] = ()
    pod: str = ""
    """namespace/name of the Pod behind the address, where the source knows it."""


if TYPE_CHECKING:
    Endpoints = Sequence[Endpoint]
else:  # what a reader of JSON makes of it
    Endpoints = tuple[Endpoint, ...]


class EndpointSet(Struct, frozen=True, gc=False):
    """One part of a service's endpoints: an EndpointSlice, a service record, an entry of a file."""

    service: ServiceName
    cluster: ClusterName
    source: str
    part: str
    endpoints: Endpoints = ()
    """By address; of a large record a ``Chunked``, in which each has an address of its own."""
    shared: bool = True
    """False: no other cluster's Service takes them, but one that a MultiClusterService of Karmada claims."""
    lapsed: bool = False
    """True: the cluster has been unreachable for longer than the cache lifetime; what passes a probe still counts."""


class Export(Struct, frozen=True, gc=False, kw_only=True):
    """A cluster's export of a Service, as its record has it (Cilium ClusterMesh with MCS API)."""

    cluster: ClusterName
    name: ServiceName
    created: str
    """ServiceExport's creation time, RFC 3339 UTC, whole seconds: the oldest export wins a conflict."""
    type: ImportType = "ClusterSetIP"
    ports: tuple[Port, ...] = ()
    affinity: Affinity = "None"
    affinity_timeout: int | None = None
    families: tuple[Family, ...] = ()
    internal_policy: Literal["Cluster", "Local"] | None = None
    distribution: str | None = None
    labels: Labels = ()
    annotations: Labels = ()


class StatusCondition(Struct, frozen=True, gc=False):
    """A condition as it stands in an object's status, but for its time."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    generation: int = 0


class ExportMark(Struct, frozen=True, gc=False, kw_only=True):
    """A ServiceExport object of the own cluster: a request to export, which may be refused."""

    name: ServiceName
    created: str
    uid: str = ""
    generation: int = 0
    labels: Labels = ()
    annotations: Labels = ()
    conditions: tuple[StatusCondition, ...] = ()
    """By type."""


class Import(Struct, frozen=True, gc=False):
    """A ServiceImport object of the own cluster's API server."""

    name: ServiceName
    type: ImportType = "ClusterSetIP"
    ports: tuple[Port, ...] = ()
    ips: tuple[str, ...] = ()
    affinity: Affinity = "None"
    affinity_timeout: int | None = None
    families: tuple[Family, ...] = ()
    internal_policy: Literal["Cluster", "Local"] | None = None
    distribution: str | None = None
    clusters: tuple[ClusterName, ...] = ()
    derived: str = ""
    """Name of its derived Service, from the annotation ``multicluster.kubernetes.io/derived-service``."""
    labels: Labels = ()
    annotations: Labels = ()
    uid: str = ""
    conditions: tuple[StatusCondition, ...] = ()
    """By type."""
    derived_service: ServiceName = ServiceName("")
    """What its derived Service is called by the hash of its name, from which it follows: it need not be given."""

    def __post_init__(self) -> None:
        force_setattr(self, "derived_service", derived_name(self.name))


class Namespace(Struct, frozen=True, gc=False):
    """A namespace of the own cluster."""

    name: str
    annotations: Labels = ()
    terminating: bool = False


class Node(Struct, frozen=True, gc=False):
    """A node of the own cluster."""

    name: str
    addresses: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""
    pod_ranges: tuple[str, ...] = ()
    """Where its pods have their addresses, as CIDRs, where the cluster gives them out by node (``spec.podCIDRs``)."""
    cordoned: bool = False
    """``spec.unschedulable``: no new pods."""
    deleting: bool = False
    out_of_service: bool = False
    """Tainted ``node.kubernetes.io/out-of-service``: an administrator states that it is shut down."""
    uid: str = ""


class Pod(Struct, frozen=True, gc=False, kw_only=True):
    """A pod of this node."""

    name: str
    """namespace/name"""
    uid: str
    node: str = ""
    addresses: tuple[str, ...] = ()
    ready: bool = False
    labels: Labels = ()
    ports: tuple[Port, ...] = ()
    phase: str = ""
