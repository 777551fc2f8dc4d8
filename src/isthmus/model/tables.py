"""Every table, declared once. Adding a table is a row struct beside this module and a declaration here."""

from __future__ import annotations

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
from isthmus.statedb import Status, Table


def _prefers_zone(annotations: Labels) -> bool:
    return bool(annotations) and any(name == TOPOLOGY_MODE for name, _ in annotations)


SERVICES: Final = Table[tuple[ServiceName, str], Service](
    "services",
    Service,
    key=lambda row: (row.name, row.source),
    indexes={
        "name": lambda row: (row.name,),
        "address": lambda row: row.cluster_ips + row.external_ips + row.load_balancer_ips,
        "import": lambda row: (row.import_of,) if row.import_of else (),
        "namespace": lambda row: (row.name.partition("/")[0],),
        "topology": lambda row: (True,) if row.distribution or _prefers_zone(row.annotations) else (),
        "node_port": lambda row: [(port.node_port, port.protocol) for port in row.ports if port.node_port],
        "exposed": lambda row: (True,) if row.type in ("NodePort", "LoadBalancer", "HostPort") else (),
        "under": lambda row: (row.name,),
    },
    ordered=("under",),
)

ENDPOINT_SETS: Final = Table[tuple[ServiceName, ClusterName, str, str], EndpointSet](
    "endpoint_sets",
    EndpointSet,
    key=lambda row: (row.service, row.cluster, row.source, row.part),
    indexes={
        "service": lambda row: (row.service,),
        "cluster": lambda row: (row.cluster,),
        "under": lambda row: (row.service,),
    },
    ordered=("under",),
)

IMPORTS: Final = Table[ServiceName, Import](
    "imports",
    Import,
    key=lambda row: row.name,
    indexes={
        "derived": lambda row: (f"{row.name.partition('/')[0]}/{row.derived}",) if row.derived else (),
        "address": lambda row: row.ips,
        "cluster": lambda row: row.clusters,
        "namespace": lambda row: (row.name.partition("/")[0],),
        "service": lambda row: (derived(row.name),),
        "topology": lambda row: (True,) if row.distribution or _prefers_zone(row.annotations) else (),
        "under": lambda row: (row.name,),
    },
    ordered=("under",),
)

EXPORT_MARKS: Final = Table[ServiceName, ExportMark](
    "export_marks",
    ExportMark,
    key=lambda row: row.name,
    indexes={"namespace": lambda row: (row.name.partition("/")[0],)},
)

EXPORTS: Final = Table[tuple[ClusterName, ServiceName], Export](
    "exports",
    Export,
    key=lambda row: (row.cluster, row.name),
    indexes={
        "name": lambda row: (row.name,),
        "cluster": lambda row: (row.cluster,),
        "namespace": lambda row: (row.name.partition("/")[0],),
    },
)

OVER_QUOTA: Final = Table[ServiceName, OverQuota](
    "over_quota", OverQuota, key=lambda row: row.name, indexes={"all": lambda row: (True,)}
)

OWN_EXPORTS: Final = Table[ServiceName, OwnExport]("own_exports", OwnExport, key=lambda row: row.name)

OWN_RANGES: Final = Table[str, OwnRanges]("own_ranges", OwnRanges, key=lambda row: "own")
"""One row."""
PEER_POLICIES: Final = Table[ClusterName, PeerPolicy]("peer_policies", PeerPolicy, key=lambda row: row.cluster)
CLUSTERS: Final = Table[ClusterName, Cluster](
    "clusters",
    Cluster,
    key=lambda row: row.name,
    indexes={"unattended": lambda row: (True,) if row.state in UNATTENDED else ()},
)
NAMESPACES: Final = Table[str, Namespace]("namespaces", Namespace, key=lambda row: row.name)
NODES: Final = Table[str, Node]("nodes", Node, key=lambda row: row.name, indexes={"address": lambda row: row.addresses})
PODS: Final = Table[str, Pod](
    "pods", Pod, key=lambda row: row.name, indexes={"namespace": lambda row: (row.name.partition("/")[0],)}
)

PROBES: Final = Table[BackendKey, Probe](
    "probes", Probe, key=lambda row: row.key, indexes={"service": lambda row: (row.key.service,)}
)

CHECKS: Final = Table[BackendKey, Check](
    "checks", Check, key=lambda row: row.key, indexes={"service": lambda row: (row.key.service,)}
)

FAILURES: Final = Table[BackendKey, Failure](
    "failures", Failure, key=lambda row: row.key, indexes={"service": lambda row: (row.key.service,)}
)

POLICIES: Final = Table[tuple[PolicyKind, ServiceName], Policy](
    "policies",
    Policy,
    key=lambda row: (row.policy_kind, row.name),
    indexes={"target": lambda row: ((row.kind, row.target),), "service": lambda row: (row.service,)},
)

DRAINS: Final = Table[ServiceName, DrainRequest]("drains", DrainRequest, key=lambda row: row.name)
DRAINING: Final = Table[tuple[ClusterName, str, str, str], Draining]("draining", Draining, key=lambda row: row.key)

LOCAL_REDIRECTS: Final = Table[ServiceName, LocalRedirect](
    "local_redirects",
    LocalRedirect,
    key=lambda row: row.name,
    indexes={"namespace": lambda row: (row.name.partition("/")[0],)},
)

PROXY_REDIRECTS: Final = Table[tuple[ServiceName, str], ProxyRedirect](
    "proxy_redirects",
    ProxyRedirect,
    key=lambda row: (row.service, row.owner),
    indexes={"service": lambda row: (row.service,)},
)

PROXY_LISTENERS: Final = Table[tuple[ServiceName, str], ProxyRedirect](
    "proxy_listeners",
    ProxyRedirect,
    key=lambda row: (row.service, row.owner),
    indexes={"service": lambda row: (row.service,), "all": lambda row: (True,)},
)
"""The redirects as they are wanted; ``proxy_redirects`` has those of listeners that are served."""

ROUTES: Final = Table[tuple[RouteKind, ServiceName], Route](
    "routes",
    Route,
    key=lambda row: (row.kind, row.name),
    indexes={
        "parent": lambda row: {parent.service for parent in row.parents},
        "target": lambda row: row.targets(),
        "namespace": lambda row: (row.namespace,),
    },
)
"""HTTPRoutes and GRPCRoutes."""

GRANTS: Final = Table[ServiceName, Grant](
    "grants", Grant, key=lambda row: row.name, indexes={"namespace": lambda row: (row.name.partition("/")[0],)}
)

ROUTE_PLANS: Final = Table[PlanKey, Plan](
    "route_plans", Plan, key=lambda row: row.key, indexes={"service": lambda row: (row.key.service,)}
)
"""What calls through the node's Envoy are spread over: the plans of services that routes are for or lead to."""

REDIRECTS: Final = Table[tuple[ServiceName, str], Redirect](
    "redirects",
    Redirect,
    key=lambda row: (row.service, row.owner),
    indexes={
        "service": lambda row: (row.service,),
        "address": lambda row: (row.address,) if row.address else (),
    },
)

PORT_REDIRECTS: Final = Table[RedirectedPort, PortRedirect](
    "port_redirects", PortRedirect, key=lambda row: row.key, indexes={"service": lambda row: (row.key.service,)}
)

REFUSED_CLAIMS: Final = Table[tuple[str, ServiceName, str, str], RefusedClaim](
    "refused_claims",
    RefusedClaim,
    key=lambda row: (row.kind, row.name, row.type, row.address),
    indexes={"claimant": lambda row: ((row.kind, row.name),), "service": lambda row: (row.service,)},
)

FRONTENDS: Final = Table[FrontendKey, Frontend](
    "frontends",
    Frontend,
    key=lambda row: row.key,
    indexes={
        "service": lambda row: (row.service,),
        "plan": lambda row: (row.plan,),
        "called": lambda row: (row.key.called,),
        "node_address": lambda row: (row.key.address,) if row.type in ("NodePort", "HostPort") else (),
        "under": lambda row: (row.service,),
    },
    ordered=("under",),
)

BACKENDS: Final = Table[BackendKey, Backend](
    "backends",
    Backend,
    key=lambda row: row.key,
    indexes={"service": lambda row: (row.key.service,), "under": lambda row: (row.key.service,)},
    ordered=("under",),
)

PLANS: Final = Table[PlanKey, Plan](
    "plans",
    Plan,
    key=lambda row: row.key,
    indexes={
        "service": lambda row: (row.key.service,),
        "awaited": lambda row: row.awaited,
        "callers": lambda row: (True,) if row.consistent or row.skip else (),
        "under": lambda row: (row.key.service,),
    },
    ordered=("under",),
)

NAMES: Final = Table[tuple[str, str], Name](
    "names",
    Name,
    key=lambda row: (row.name, row.type),
    indexes={"name": lambda row: (row.name,), "service": lambda row: (row.service,)},
)

NAMES_STATUS: Final = Table[tuple[str, str], Status]("names_status", Status, key=lambda row: row.key)
PLANS_STATUS: Final = Table[PlanKey, Status]("plans_status", Status, key=lambda row: row.key)

MERGED: Final = Table[ServiceName, Merged](
    "merged",
    Merged,
    key=lambda row: row.name,
    indexes={
        "derived": lambda row: (derived(row.name),),
        "namespace": lambda row: (row.name.partition("/")[0],),
        "cluster": lambda row: row.clusters,
    },
)

RECORDS: Final = Table[tuple[str, ServiceName], Record](
    "records", Record, key=lambda row: (row.kind, row.name), indexes={"name": lambda row: (row.name,)}
)

OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "objects",
    Object,
    key=lambda row: (row.kind, row.name),
    indexes={"name": lambda row: (row.name,), "service": lambda row: (row.service,)},
)

OBSERVED: Final = Table[tuple[str, ServiceName], Observed]("observed", Observed, key=lambda row: (row.kind, row.name))

POLICY_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "policy_objects", Object, key=lambda row: (row.kind, row.name), indexes={"service": lambda row: (row.service,)}
)

ROUTE_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "route_objects", Object, key=lambda row: (row.kind, row.name), indexes={"service": lambda row: (row.service,)}
)
"""What is wanted of the status of routes; ``service`` is the route's own name."""

ROUTE_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "route_objects_status", Status, key=lambda row: row.key
)

ROUTE_REFUSALS: Final = Table[str, NodeRefusals](
    "route_refusals",
    NodeRefusals,
    key=lambda row: row.name,
    indexes={"route": lambda row: tuple({(each.kind, each.name) for each in row.routes})},
)
"""What nodes' Envoys refused of routes: an agent's has the row of its own node, the operator's has all of them."""

ROUTE_REFUSALS_STATUS: Final = Table[str, Status]("route_refusals_status", Status, key=lambda row: row.key)

POLICY_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "policy_objects_status", Status, key=lambda row: row.key
)

OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status]("objects_status", Status, key=lambda row: row.key)

ISLAND_PODS: Final = Table[ServiceName, IslandPod](
    "island_pods",
    IslandPod,
    key=lambda row: row.name,
    indexes={
        "name": lambda row: (row.name,),
        "import": lambda row: (row.import_of,),
        "address": lambda row: row.addresses,
        "cluster": lambda row: (row.cluster,),
        "all": lambda row: (True,),
    },
)
ISLAND_LISTENERS: Final = Table[tuple[ServiceName, ClusterName, int, Protocol], IslandListener](
    "island_listeners",
    IslandListener,
    key=lambda row: (row.service, row.cluster, row.port, row.protocol),
    indexes={
        "service": lambda row: (row.service,),
        "cluster": lambda row: (row.cluster,),
        "name": lambda row: (row.name,),
        "all": lambda row: (True,),
    },
)
GATEWAY_CHECKS: Final = Table[tuple[ClusterName, str], GatewayCheck](
    "gateway_checks",
    GatewayCheck,
    key=lambda row: (row.cluster, row.address),
    indexes={"cluster": lambda row: (row.cluster,)},
)
TRUST_BUNDLES: Final = Table[tuple[ClusterName, ...], TrustBundle](
    "trust_bundles", TrustBundle, key=lambda row: row.clusters
)
XDS: Final = Table[ResourceKey, Resource](
    "xds",
    Resource,
    key=lambda row: (row.type, row.name),
    indexes={"owner": lambda row: (row.owner,), "unit": lambda row: (row.unit,), "type": lambda row: (row.type,)},
)
XDS_REFUSED: Final = Table[ResourceKey, RefusedResource](
    "xds_refused", RefusedResource, key=lambda row: (row.type, row.name), indexes={"owner": lambda row: (row.owner,)}
)

DRAIN_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "drain_objects", Object, key=lambda row: (row.kind, row.name)
)

DRAIN_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status](
    "drain_objects_status", Status, key=lambda row: row.key
)

XDS_SERVED: Final = Table[str, ServedListener](
    "xds_served",
    ServedListener,
    key=lambda row: row.name,
    indexes={"service": lambda row: (row.name.rpartition(":")[0],)},
)
