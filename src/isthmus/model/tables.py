"""Declarations of all tables. To add a table, write a row struct beside this module and declare the table here."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import Final

from isthmus.model.backend_tls import Authority, BackendTls
from isthmus.model.balancing import (
    Backend,
    BackendKey,
    CallerFailure,
    Denial,
    Failure,
    Frontend,
    FrontendKey,
    Plan,
    PlanKey,
    Probe,
)
from isthmus.model.clusters import UNATTENDED, Cluster, OwnRanges, PeerPolicy
from isthmus.model.dns import Name
from isthmus.model.drains import Draining, DrainRequest
from isthmus.model.export_policies import AllowedCallers, ExcessPolicy, ExportPolicy
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.islands import GatewayCheck, IslandListener, IslandPod, RefusedGateway, TrustBundle
from isthmus.model.l4_routes import L4Route, L4RouteKey, RoutedPort
from isthmus.model.links import Link
from isthmus.model.mcs import (
    Merged,
    OverQuota,
    OwnExport,
    PeerRefusal,
    Record,
    RecordKind,
    Refusals,
    RefusedRecord,
)
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.objects import Object, Observed
from isthmus.model.pods import IgnoredPod
from isthmus.model.policies import Check, Policy, PolicyKind
from isthmus.model.redirects import LocalRedirect, PortRedirect, ProxyRedirect, Redirect, RedirectedPort
from isthmus.model.refusals import RefusedClaim
from isthmus.model.routes import Attachment, Grant, NodeRefusals, Route, RouteKey, RouteKind, RouteParts
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
from isthmus.model.signing import (
    AddressIdentity,
    AddressUse,
    Guard,
    HostSource,
    Path,
    Permit,
    Refusal,
    SignedTo,
    Source,
)
from isthmus.model.xds import EnvoyCheck, RefusedResource, Resource, ResourceKey, ServedListener
from isthmus.statedb import Attribute, Fault, FaultKey, Status, Table


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

REFUSED_RECORDS: Final = Table[tuple[ClusterName, RecordKind, ServiceName], RefusedRecord](
    "refused_records",
    RefusedRecord,
    key=attrgetter("cluster", "kind", "name"),
    indexes={"cluster": Attribute("cluster"), "name": Attribute("name")},
)

PEER_REFUSALS: Final = Table[tuple[ClusterName, RecordKind, ServiceName], PeerRefusal](
    "peer_refusals",
    PeerRefusal,
    key=attrgetter("cluster", "kind", "name"),
    indexes={"cluster": Attribute("cluster"), "name": Attribute("name")},
)

REFUSALS: Final = Table[ClusterName, Refusals]("refusals", Refusals, key=attrgetter("cluster"))

OWN_EXPORTS: Final = Table[ServiceName, OwnExport](
    "own_exports",
    OwnExport,
    key=attrgetter("name"),
    indexes={"namespace": lambda row: (row.name.partition("/")[0],)},
)

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
    "pods",
    Pod,
    key=attrgetter("name"),
    indexes={
        "namespace": lambda row: (row.name.partition("/")[0],),
        "account": lambda row: ((row.name.partition("/")[0], row.service_account),),
        "address": attrgetter("addresses"),
    },
)

IDENTITIES: Final = Table[tuple[ClusterName, int], Identity](
    "identities",
    Identity,
    key=attrgetter("cluster", "number"),
    indexes={
        "cluster": Attribute("cluster"),
        "account": lambda row: ((row.cluster, row.namespace, row.service_account),),
    },
)

CALLER_ADDRESSES: Final = Table[tuple[ClusterName, str], CallerAddress](
    "caller_addresses",
    CallerAddress,
    key=attrgetter("cluster", "address"),
    indexes={"cluster": Attribute("cluster"), "address": Attribute("address")},
)

IDENTITY_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "identity_objects", Object, key=attrgetter("kind", "name")
)

IDENTITY_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "identity_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

IGNORED_PODS: Final = Table[str, IgnoredPod]("ignored_pods", IgnoredPod, key=attrgetter("name"))

PROBES: Final = Table[BackendKey, Probe](
    "probes", Probe, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

CHECKS: Final = Table[BackendKey, Check](
    "checks", Check, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

FAILURES: Final = Table[BackendKey, Failure](
    "failures", Failure, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)

CALLER_FAILURES: Final = Table[tuple[int, BackendKey], CallerFailure](
    "caller_failures", CallerFailure, key=attrgetter("caller", "key"), indexes={"service": Attribute("key.service")}
)

DENIALS: Final = Table[tuple[int, BackendKey], Denial](
    "denials", Denial, key=attrgetter("caller", "key"), indexes={"service": Attribute("key.service")}
)

POLICIES: Final = Table[tuple[PolicyKind, ServiceName], Policy](
    "policies",
    Policy,
    key=attrgetter("policy_kind", "name"),
    indexes={"target": lambda row: ((row.kind, row.target),), "service": Attribute("service")},
)

EXPORT_POLICIES: Final = Table[ServiceName, ExportPolicy](
    "export_policies",
    ExportPolicy,
    key=attrgetter("name"),
    indexes={
        "namespace": Attribute("namespace"),
        "scope": Attribute("scope"),
        "callers": lambda row: {(rule.cluster, rule.namespace, rule.service_account) for rule in row.allow},
        "by_labels": lambda row: (True,) if any(rule.labels for rule in row.allow) else (),
    },
)

ALLOWED_CALLERS: Final = Table[ServiceName, AllowedCallers](
    "allowed_callers", AllowedCallers, key=attrgetter("policy"), indexes={"scope": Attribute("scope")}
)

EXCESS_POLICIES: Final = Table[ServiceName, ExcessPolicy](
    "excess_policies", ExcessPolicy, key=attrgetter("policy"), indexes={"all": lambda row: (True,)}
)

DRAINS: Final = Table[ServiceName, DrainRequest]("drains", DrainRequest, key=attrgetter("name"))
DRAINING: Final = Table[tuple[ClusterName, str, str, str], Draining]("draining", Draining, key=attrgetter("key"))

LINKS: Final = Table[ClusterName, Link]("links", Link, key=attrgetter("name"))

LOCAL_REDIRECTS: Final = Table[ServiceName, LocalRedirect](
    "local_redirects",
    LocalRedirect,
    key=attrgetter("name"),
    indexes={
        "namespace": lambda row: (row.name.partition("/")[0],),
        "named": lambda row: (row.service,) if row.service else (),
    },
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
    key=attrgetter("service", "callers"),
    indexes={"service": Attribute("service"), "all": lambda row: (True,)},
)
"""Desired redirects to Envoy's listeners; ``proxy_redirects`` has those with served listeners."""

ROUTES: Final = Table[tuple[RouteKind, ServiceName], Route](
    "routes",
    Route,
    key=attrgetter("kind", "name"),
    indexes={
        "parent": lambda row: {parent.service for parent in row.parents},
        "target": lambda row: row.targets(),
        "cluster": lambda row: row.clusters(),
        "namespace": Attribute("namespace"),
    },
)
"""HTTPRoutes and GRPCRoutes."""

BACKEND_TLS: Final = Table[ServiceName, BackendTls](
    "backend_tls",
    BackendTls,
    key=attrgetter("name"),
    indexes={
        "target": lambda row: {target.service for target in row.targets},
        "authority": lambda row: row.authorities,
    },
)
"""BackendTLSPolicies."""

AUTHORITIES: Final = Table[ServiceName, Authority]("authorities", Authority, key=attrgetter("name"))
"""ConfigMaps that BackendTLSPolicies name."""

BACKEND_TLS_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "backend_tls_objects", Object, key=attrgetter("kind", "name"), indexes={"service": Attribute("service")}
)
"""Desired status of BackendTLSPolicies; ``service`` is the policy's own name."""

BACKEND_TLS_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "backend_tls_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

L4_ROUTES: Final = Table[L4RouteKey, L4Route](
    "l4_routes",
    L4Route,
    key=attrgetter("kind", "name"),
    indexes={
        "parent": lambda row: {parent.service for parent in row.parents},
        "own_parent": lambda row: row.own_parents(),
        "target": lambda row: row.targets(),
        "namespace": Attribute("namespace"),
    },
)
"""TCPRoutes and UDPRoutes."""

ROUTED_PORTS: Final = Table[RedirectedPort, RoutedPort](
    "routed_ports", RoutedPort, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)
"""Ports whose calls follow a TCPRoute or UDPRoute."""

GRANTS: Final = Table[ServiceName, Grant](
    "grants", Grant, key=attrgetter("name"), indexes={"namespace": lambda row: (row.name.partition("/")[0],)}
)

ATTACHMENTS: Final = Table[ServiceName, Attachment](
    "attachments",
    Attachment,
    key=attrgetter("service"),
    indexes={"all": lambda row: (True,)},
)
"""Routes of Services, by port and callers."""

ROUTE_PARTS: Final = Table[tuple[RouteKey, ServiceName, int], RouteParts](
    "route_parts",
    RouteParts,
    key=attrgetter("route", "service", "port"),
    indexes={
        "route": Attribute("route"),
        "service": lambda row: (row.service,) if row.service else (),
        "target": lambda row: {each.service for each in row.targets},
    },
)
"""Routes in effect on this node, as Envoy's configuration."""

ROUTE_PLANS: Final = Table[PlanKey, Plan](
    "route_plans", Plan, key=attrgetter("key"), indexes={"service": Attribute("key.service")}
)
"""Plans of the node's Envoy for parents and backends of routes."""

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
        "callers": lambda row: (True,) if row.consistent or row.skip or row.consumers else (),
        "under": Attribute("key.service"),
    },
    ordered=("under",),
    clustered=("service", attrgetter("service")),
)

SOURCES: Final = Table[str, Source]("sources", Source, key=attrgetter("pod"))
HOST_SOURCES: Final = Table[str, HostSource]("host_sources", HostSource, key=attrgetter("pod"))
SIGNED_TO: Final = Table[tuple[ServiceName, str], SignedTo](
    "signed_to", SignedTo, key=attrgetter("service", "address"), indexes={"service": Attribute("service")}
)
PATHS: Final = Table[ClusterName, Path]("paths", Path, key=attrgetter("cluster"))
GUARDS: Final = Table[tuple[str, int, Protocol], Guard](
    "guards",
    Guard,
    key=attrgetter("address", "port", "protocol"),
    indexes={
        "policy": Attribute("policy"),
        "namespace": lambda row: (row.policy.partition("/")[0],),
        "by_address": lambda row: (True,) if row.by_address else (),
        "cut": lambda row: (True,) if row.cut else (),
    },
)
ADDRESS_USE: Final = Table[bool, AddressUse]("address_use", AddressUse, key=attrgetter("whole"))
ADDRESS_IDENTITIES: Final = Table[str, AddressIdentity](
    "address_identities", AddressIdentity, key=attrgetter("address")
)
PERMITS: Final = Table[tuple[ServiceName, int], Permit](
    "permits", Permit, key=attrgetter("policy", "identity"), indexes={"policy": Attribute("policy")}
)

CALLER_REFUSALS: Final = Table[tuple[ServiceName, int, str], Refusal](
    "caller_refusals",
    Refusal,
    key=attrgetter("policy", "identity", "reason"),
    indexes={"namespace": lambda row: (row.policy.partition("/")[0],)},
)

NAMES: Final = Table[tuple[str, str], Name](
    "names",
    Name,
    key=attrgetter("name", "type"),
    indexes={"name": Attribute("name"), "service": Attribute("service")},
)

NAMES_STATUS: Final = Table[tuple[str, str], Status[tuple[str, str]]](
    "names_status", Status[tuple[str, str]], key=attrgetter("key")
)
PLANS_STATUS: Final = Table[PlanKey, Status[PlanKey]]("plans_status", Status[PlanKey], key=attrgetter("key"))

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
    "records",
    Record,
    key=attrgetter("kind", "name"),
    indexes={"name": Attribute("name"), "unit": lambda row: (row.unit,)},
)

RECORDS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "records_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)
"""Records whose last change the own etcd does not have."""

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
"""Desired status of routes; ``service`` is the route's own name."""

ROUTE_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "route_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

L4_ROUTE_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "l4_route_objects", Object, key=attrgetter("kind", "name"), indexes={"service": Attribute("service")}
)
"""Desired status of TCPRoutes and UDPRoutes; ``service`` is the route's own name."""

L4_ROUTE_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "l4_route_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

ROUTE_REFUSALS: Final = Table[str, NodeRefusals](
    "route_refusals",
    NodeRefusals,
    key=attrgetter("name"),
    indexes={"route": lambda row: tuple({(each.kind, each.name) for each in row.routes})},
)
"""Refusals of routes by nodes' Envoys. An agent has the row of its own node, the operator all rows."""

ROUTE_REFUSALS_STATUS: Final = Table[str, Status[str]]("route_refusals_status", Status[str], key=attrgetter("key"))

POLICY_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "policy_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

EXPORT_POLICY_OBJECTS: Final = Table[tuple[str, ServiceName], Object](
    "export_policy_objects", Object, key=attrgetter("kind", "name"), indexes={"service": Attribute("service")}
)
"""Desired status of ExportPolicies; ``service`` is the namespace."""

EXPORT_POLICY_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "export_policy_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

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
REFUSED_GATEWAYS: Final = Table[tuple[ClusterName, str], RefusedGateway](
    "refused_gateways",
    RefusedGateway,
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

DRAIN_OBJECTS_STATUS: Final = Table[tuple[str, ServiceName], Status[tuple[str, ServiceName]]](
    "drain_objects_status", Status[tuple[str, ServiceName]], key=attrgetter("key")
)

ENVOY_CHECKS: Final = Table[str, EnvoyCheck]("envoy_checks", EnvoyCheck, key=lambda row: "envoy")
"""One row at most."""

XDS_SERVED: Final = Table[str, ServedListener](
    "xds_served",
    ServedListener,
    key=attrgetter("name"),
    indexes={"service": lambda row: (row.name.rpartition(":")[0],)},
)

FAULTS: Final = Table[FaultKey, Fault](
    "faults",
    Fault,
    key=attrgetter("part", "kind", "name"),
    indexes={"name": Attribute("name"), "cause": Attribute("cause"), "all": lambda row: (True,)},
)
"""Units of derived tables that raised, and objects and records that could not be converted to rows."""
