"""Input rows: the units that sources write. A source replaces or removes whole rows and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name
from isthmus.model.pods import DatapathChoice

Protocol = Literal["TCP", "UDP", "SCTP"]
Family = Literal["IPv4", "IPv6"]
Labels = tuple[tuple[str, str], ...]
"""Labels or annotations: sorted pairs, so that equal maps are equal rows."""

TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
"""Annotation that requests zone hints; ``trafficDistribution`` is its successor."""

EXPORTERS: Final = "isthmus.io/exporters"
"""Annotation of a derived Service: the clusters that exported its import when it was written, joined by commas."""

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
    is called at ``node_port`` of its ``external_ips``, or of every address of the node if it has none.
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
    """RFC 3339, UTC, whole seconds; empty if the source has no time."""
    import_of: ServiceName = ServiceName("")
    """Import of this derived Service; empty for any other Service."""
    uid: str = ""


def named_as(ports: tuple[Port, ...], service_ports: Iterable[Port]) -> tuple[Port, ...]:
    """Return the ports of an endpoint under the names that its own cluster's Service has now.

    A renamed port has its new name in the Service at once, and in slices a moment later. Where exactly one name of a
    protocol has no counterpart on either side, the two are one port.
    """
    names = {(port.name, port.protocol) for port in ports}
    service_names = {(port.name, port.protocol) for port in service_ports}
    if names <= service_names:
        return ports
    renamed: dict[tuple[str, str], str] = {}
    for protocol in {protocol for _, protocol in names}:
        old = [each for each in names - service_names if each[1] == protocol]
        new = [each for each in service_names - names if each[1] == protocol]
        if len(old) == len(new) == 1:
            renamed[old[0]] = new[0][0]
    return tuple(replace(port, name=renamed.get((port.name, port.protocol), port.name)) for port in ports)


def annotated(annotations: Labels, *keys: str, default: bool) -> bool:
    """Value of the first present annotation among aliases. Only 'true', in any letter case, is true."""
    if not annotations:
        return default
    values = dict(annotations)
    value = next((values[key] for key in keys if key in values), None)
    return default if value is None else value.lower() == "true"


def is_global(service: Service) -> bool:
    """True if a Service includes the endpoints of every cluster's Service of its name (Cilium's global services).

    The rule follows from the row alone, for agent and operator alike; ``mcs`` decides what else a cluster shares.
    """
    return annotated(service.annotations, GLOBAL, GLOBAL_ALIAS, default=False)


def claimed_by(service: Service) -> str | None:
    """Return the MultiClusterService of Karmada that claims a Service, ``None`` if there is no claim."""
    return next((value for key, value in service.annotations if key == MULTI_CLUSTER_SERVICE), None)


class Condition(IntEnum):
    """Conditions of an endpoint in an EndpointSlice (KEP-1669): order is preference."""

    READY = 0
    TERMINATING = 1  # still serving: used only if nothing is ready
    NOT_READY = 2
    GONE = 3  # terminating and not serving


class Endpoint(Struct, frozen=True, gc=False, order=True):
    """An address with its ports. An endpoint set is sorted by address and has each address once, unless a peer spells
    one in two ways. A port name has several numbers if several pods of the service share the address (hostNetwork)."""

    address: str
    ports: tuple[Port, ...]
    condition: Condition = Condition.READY
    hostname: str = ""
    node: str = ""
    zone: str = ""
    for_zones: tuple[str, ...] = ()
    pod: str = ""
    """namespace/name of the Pod behind the address, empty if the source does not know it."""


if TYPE_CHECKING:
    Endpoints = Sequence[Endpoint]
else:  # the type for readers of JSON
    Endpoints = tuple[Endpoint, ...]


class EndpointSet(Struct, frozen=True, gc=False):
    """One part of a service's endpoints: an EndpointSlice, a service record, an entry of a file."""

    service: ServiceName
    cluster: ClusterName
    source: str
    part: str
    endpoints: Endpoints = ()
    """Sorted by address. Those of a large slice may be a ``Chunked``."""
    shared: bool = True
    """``False`` if only Services that a MultiClusterService of Karmada claims may use them in other clusters."""
    lapsed: bool = False
    """``True`` if the cluster was unreachable beyond the cache lifetime. Endpoints that pass a probe are used."""
    service_ports: tuple[Port, ...] = ()
    """Ports of the peer's Service, by which its endpoints' port names have a number in the clusterset; empty if the
    source does not know them."""


class Export(Struct, frozen=True, gc=False, kw_only=True):
    """A cluster's export of a Service, from its record (Cilium ClusterMesh with MCS API)."""

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
    """A condition of an object's status, without its time."""

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
    """Sorted by type."""


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
    """Sorted by type."""
    derived_service: ServiceName = ServiceName("")
    """Name of its derived Service, computed from the import's name on creation."""

    def __post_init__(self) -> None:
        force_setattr(self, "derived_service", derived_name(self.name))


class Namespace(Struct, frozen=True, gc=False):
    """A namespace of the own cluster."""

    name: str
    annotations: Labels = ()
    terminating: bool = False
    datapath: DatapathChoice = ""
    """For its pods without a choice of their own."""


class Node(Struct, frozen=True, gc=False):
    """A node of the own cluster."""

    name: str
    addresses: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""
    pod_ranges: tuple[str, ...] = ()
    """CIDRs of its pods, if the cluster allocates addresses by node (``spec.podCIDRs``)."""
    cordoned: bool = False
    """``spec.unschedulable``: no new pods."""
    deleting: bool = False
    out_of_service: bool = False
    """Tainted ``node.kubernetes.io/out-of-service``: an administrator states that it is shut down."""
    uid: str = ""


ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of a pod that has ended: its status keeps its addresses, which may be another pod's by now."""


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
    datapath: DatapathChoice = ""
    mesh: str = ""
    """Part of a service mesh that redirects the pod's calls, such as ``container istio-proxy``; empty without one."""
    host_network: bool = False
    service_account: str = ""
