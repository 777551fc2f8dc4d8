"""Every table, declared once. Adding a table is a row struct beside this module and a declaration here."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Final

from isthmus.model.balancing import Backend, BackendKey, Failure, Frontend, FrontendKey, Plan, PlanKey, Probe
from isthmus.model.clusters import UNATTENDED, Cluster, OwnRanges, PeerPolicy
from isthmus.model.dns import Name
from isthmus.model.drains import Draining, DrainRequest
from isthmus.model.islands import GatewayCheck, IslandListener, IslandPod, TrustBundle
from isthmus.model.mcs import Merged, OverQuota, OwnExport, Record
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.objects import Object, Observed
from isthmus.model.policies import Check, Policy, PolicyKind
from isthmus.model.redirects import LocalRedirect, PortRedirect, ProxyRedirect, Redirect, RedirectedPort
from isthmus.model.refusals import RefusedClaim
from isthmus.model.routes import Grant, NodeRefusals, Route, RouteKind
from isthmus.model.services import (
    TOPOLOGY_MODE,
    EndpointSet,
    Export,
    ExportMark,
    Import,
    Labels,
    Namespace,
    Node,
    Pod,
    Protocol,
    Service,
)
from isthmus.model.xds import RefusedResource, Resource, ResourceKey, ServedListener
from isthmus.statedb import Attribute, Status, Table


def _prefers_zone(annotations: Labels) -> bool:
    return any(name == TOPOLOGY_MODE for name, _ in annotations)


SERVICES: Final = Table[tuple[ServiceName, str], Service](
    "services",
    Service,
    key=attrgetter("name", "source"),
    indexes={
        "name": Attribute("name"),
        "address": lambda row: row.cluster_ips + row.external_ips + row.load_balancer_ips,
        "import": Attribute("import_of", optional=True),
        "namespace": lambda row: (row.name.partition("/")[0],),
        "topology": lambda row: (
            (True,) if row.distribution or (row.annotations and _prefers_zone(row.annotations)) else ()
        ),
        "node_port": lambda row: [(port.node_port, port.protocol) for port in row.ports if port.node_port],
        "exposed": lambda row: (True,) if row.type in ("NodePort", "LoadBalancer", "HostPort") else (),
        "under": Attribute("name"),
    },
    ordered=("under",),
    clustered=("name", itemgetter(0)),
)

ENDPOINT_SETS: Final = Table[tuple[ServiceName, ClusterName, str, str], EndpointSet](
    "endpoint_sets",
    EndpointSet,
    key=attrgetter("service", "cluster", "source", "part"),
    indexes={
        "service": Attribute("service"),
        "cluster": Attribute("cluster"),
        "under": Attribute("service"),
    },
    ordered=("under",),
    clustered=("service", itemgetter(0)),
)

IMPORTS: Final = Table[ServiceName, Import](
    "imports",
    Import,
    key=attrgetter("name"),
    indexes={
        "derived": lambda row: (f"{row.name.partition('/')[0]}/{row.derived}",) if row.derived else (),
        "address": attrgetter("ips"),
        "cluster": attrgetter("clusters"),
        "namespace": lambda row: (row.name.partition("/")[0],),
        "service": Attribute("derived_service"),
        "topology": lambda row: (
            (True,) if row.distribution or (row.annotations and _prefers_zone(row.annotations)) else ()
        ),
        "under": Attribute("name"),
    },
    ordered=("under",),
)

EXPORT_MARKS: Final = Table[ServiceName, ExportMark](
    "export_marks",
    ExportMark,
    key=attrgetter("name"),
    indexes={"namespace": lambda row: (row.name.partition("/")[0],)},
)

EXPORTS: Final = Table[tuple[ClusterName, ServiceName], Export](
    "exports",
    Export,
    key=attrgetter("cluster", "name"),
    indexes={
        "name": Attribute("name"),
        "cluster": Attribute("cluster"),
        "namespace": lambda row: (row.name.partition("/")[0],),
    },
)

OVER_QUOTA: Final = Table[ServiceName, OverQuota](
    "over_quota", OverQuota, key=attrgetter("name"), indexes={"all": lambda row: (True,)}
)

OWN_EXPORTS: Final = Table[ServiceName, OwnExport]("own_exports", OwnExport, key=attrgetter("name"))

OWN_RANGES: Final = Table[str, OwnRanges]("own_ranges", OwnRanges, key=lambda row: "own")
"""One row."""
PEER_POLICIES: Final = Table[ClusterName, PeerPolicy]("peer_policies", PeerPolicy, key=attrgetter("cluster"))
CLUSTERS: Final = Table[ClusterName, Cluster](
    "clusters",
    Cluster,
    key=attrgetter("name"),
    indexes={"unattended": lambda row: (True,) if row.state in UNATTENDED else ()},
)
NAMESPACES: Final = Table[str, Namespace]("namespaces", Namespace, key=attrgetter("name"))
NODES: Final = Table[str, Node]("nodes", Node, key=attrgetter("name"), indexes={"address": attrgetter("addresses")})
PODS: Final = Table[str, Pod](
    "pods", Pod, key=attrgetter("name"), indexes={"namespace": lambda row: (row.name.partition("/")[0],)}
)

PROBES: Final = Table[BackendKey, Probe](
    "probes", Probe, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

CHECKS: Final = Table[BackendKey, Check](
    "checks", Check, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

FAILURES: Final = Table[BackendKey, Failure](
    "failures", Failure, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

POLICIES: Final = Table[tuple[PolicyKind, ServiceName], Policy](
    "policies",
    Policy,
    key=attrgetter("policy_kind", "name"),
    indexes={"target": lambda row: ((row.kind, row.target),), "service": Attribute("service")},
)

DRAINS: Final = Table[ServiceName, DrainRequest]("drains", DrainRequest, key=attrgetter("name"))
DRAINING: Final = Table[tuple[ClusterName, str, str, str], Draining]("draining", Draining, key=attrgetter("key"))

LOCAL_REDIRECTS: Final = Table[ServiceName, LocalRedirect](
    "local_redirects",
    LocalRedirect,
    key=attrgetter("name"),
    indexes={"namespace": lambda row: (row.name.partition("/")[0],)},
)

PROXY_REDIRECTS: Final = Table[tuple[ServiceName, str], ProxyRedirect](
    "proxy_redirects",
    ProxyRedirect,
    key=attrgetter("service", "owner"),
    indexes={"service": Attribute("service")},
)

PROXY_LISTENERS: Final = Table[tuple[ServiceName, str], ProxyRedirect](
    "proxy_listeners",
    ProxyRedirect,
    key=attrgetter("service", "owner"),
    indexes={"service": Attribute("service"), "all": lambda row: (True,)},
)
"""The redirects as they are wanted; ``proxy_redirects`` has those of listeners that are served."""

ROUTES: Final = Table[tuple[RouteKind, ServiceName], Route](
    "routes",
    Route,
    key=attrgetter("kind", "name"),
    indexes={
        "parent": lambda row: {parent.service for parent in row.parents},
        "target": lambda row: row.targets(),
        "namespace": Attribute("namespace"),
    },
)
"""HTTPRoutes and GRPCRoutes."""

GRANTS: Final = Table[ServiceName, Grant](
    "grants", Grant, key=attrgetter("name"), indexes={"namespace": lambda row: (row.name.partition("/")[0],)}
)

ROUTE_PLANS: Final = Table[PlanKey, Plan](
    "route_plans", Plan, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)
"""What calls through the node's Envoy are spread over: the plans of services that routes are for or lead to."""

REDIRECTS: Final = Table[tuple[ServiceName, str], Redirect](
    "redirects",
    Redirect,
    key=attrgetter("service", "owner"),
    indexes={
        "service": Attribute("service"),
        "address": Attribute("address", optional=True),
    },
)

PORT_REDIRECTS: Final = Table[RedirectedPort, PortRedirect](
    "port_redirects", PortRedirect, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

REFUSED_CLAIMS: Final = Table[tuple[str, ServiceName, str, str], RefusedClaim](
    "refused_claims",
    RefusedClaim,
    key=attrgetter("kind", "name", "type", "address"),
    indexes={"name": Attribute("name"), "service": Attribute("service")},
)

FRONTENDS: Final = Table[FrontendKey, Frontend](
    "frontends",
    Frontend,
    key=attrgetter("key"),
    indexes={
        "service": Attribute("service"),
        "plan": Attribute("plan"),
        "called": Attribute("key.called"),
        "node_address": lambda row: (row.key.address,) if row.type in ("NodePort", "HostPort") else (),
        "under": Attribute("service"),
    },
    ordered=("under",),
)

BACKENDS: Final = Table[BackendKey, Backend](
    "backends",
    Backend,
    key=attrgetter("key"),
    indexes={"service": Attribute("key.service"), "under": Attribute("key.service")},
    ordered=("under",),
    clustered=("service", attrgetter("service")),
)

PLANS: Final = Table[PlanKey, Plan](
    "plans",
    Plan,
    key=attrgetter("key"),
    indexes={
        "service": Attribute("key.service"),
        "awaited": attrgetter("awaited"),
        "callers": lambda row: (True,) if row.consistent or row.skip else (),
        "under": Attribute("key.service"),
    },
    ordered=("under",),
    clustered=("service", attrgetter("service")),
)

NAMES: Final = Table[tuple[str, str], Name](
    "names",
    Name,
    key=attrgetter("name", "type"),
    indexes={"name": Attribute("name"), "service": Attribute("service")},
)

NAMES_STATUS: Final = Table[tuple[str, str], Status]("names_status", Status, key=attrgetter("key"))
PLANS_STATUS: Final = Table[PlanKey, Status]("plans_status", Status, key=attrgetter("key"))

MERGED: Final = Table[ServiceName, Merged](
    "merged",
    Merged,
    key=attrgetter("name"),
    indexes={
        "derived": lambda row: (derived(row.name),),
        "namespace": lambda row: (row.name.partition("/")[0],),
        "cluster": attrgetter("clusters"),
    },
)

RECORDS: Final = Table[tuple[str, ServiceName], Record](
    "records", Record, key=attrgetter("kind", "name"), indexes={"name": Attribute("name")}
)

OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "objects",
    Object,
    key=attrgetter("kind", "name"),
    indexes={"name": Attribute("name"), "service": Attribute("service")},
)

OBSERVED: Final = Table[tuple[str, ServiceName], Observed]("observed", Observed, key=attrgetter("kind", "name"))

POLICY_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "policy_objects", Object, key=attrgetter("kind", "name"), indexes={"service": Attribute("service")}
)

ROUTE_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "route_objects", Object, key=attrgetter("kind", "name"), indexes={"service": Attribute("service")}
)
"""What is wanted of the status of routes; ``service`` is the route's own name."""

ROUTE_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "route_objects_status", Status, key=attrgetter("key")
)

ROUTE_REFUSALS: Final = Table[str, NodeRefusals](
    "route_refusals",
    NodeRefusals,
    key=attrgetter("name"),
    indexes={"route": lambda row: tuple({(each.kind, each.name) for each in row.routes})},
)
"""What nodes' Envoys refused of routes: an agent's has the row of its own node, the operator's has all of them."""

ROUTE_REFUSALS_STATUS: Final = Table[str, Status]("route_refusals_status", Status, key=attrgetter("key"))

POLICY_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "policy_objects_status", Status, key=attrgetter("key")
)

OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status]("objects_status", Status, key=attrgetter("key"))

ISLAND_PODS: Final = Table[ServiceName, IslandPod](
    "island_pods",
    IslandPod,
    key=attrgetter("name"),
    indexes={
        "name": Attribute("name"),
        "import": Attribute("import_of"),
        "address": attrgetter("addresses"),
        "cluster": Attribute("cluster"),
        "all": lambda row: (True,),
    },
)
ISLAND_LISTENERS: Final = Table[tuple[ServiceName, ClusterName, int, Protocol], IslandListener](
    "island_listeners",
    IslandListener,
    key=attrgetter("service", "cluster", "port", "protocol"),
    indexes={
        "service": Attribute("service"),
        "cluster": Attribute("cluster"),
        "name": Attribute("name"),
        "all": lambda row: (True,),
    },
)
GATEWAY_CHECKS: Final = Table[tuple[ClusterName, str], GatewayCheck](
    "gateway_checks",
    GatewayCheck,
    key=attrgetter("cluster", "address"),
    indexes={"cluster": Attribute("cluster")},
)
TRUST_BUNDLES: Final = Table[tuple[ClusterName, ...], TrustBundle](
    "trust_bundles", TrustBundle, key=attrgetter("clusters")
)
XDS: Final = Table[ResourceKey, Resource](
    "xds",
    Resource,
    key=attrgetter("type", "name"),
    indexes={"owner": Attribute("owner"), "unit": Attribute("unit"), "type": Attribute("type")},
)
XDS_REFUSED: Final = Table[ResourceKey, RefusedResource](
    "xds_refused", RefusedResource, key=attrgetter("type", "name"), indexes={"owner": Attribute("owner")}
)

DRAIN_OBJECTS: Final = Table[tuple[str, ServiceName], Object]("drain_objects", Object, key=attrgetter("kind", "name"))

DRAIN_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "drain_objects_status", Status, key=attrgetter("key")
)

XDS_SERVED: Final = Table[str, ServedListener](
    "xds_served",
    ServedListener,
    key=attrgetter("name"),
    indexes={"service": lambda row: (row.name.rpartition(":")[0],)},
)
