"""A database with the derived tables of a node, and rows to put into it."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any, Self

from isthmus import loadbalancer
from isthmus.loadbalancer import ClaimRules
from isthmus.loadbalancer.members import LARGE
from isthmus.model import names
from isthmus.model.balancing import Backend, BackendKey, Frontend, Plan, Probe
from isthmus.model.clusters import Cluster
from isthmus.model.l4_routes import L4Route
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.policies import Check
from isthmus.model.redirects import Listener, LocalRedirect, ProxyRedirect, Redirect, Requirement
from isthmus.model.refusals import RefusedClaim
from isthmus.model.routes import BackendRef, ParentKind, ParentRef, RefKind, ServiceRef
from isthmus.model.services import Condition, Endpoint, EndpointSet, Import, Pod, Port, Service
from isthmus.model.tables import (
    BACKENDS,
    CHECKS,
    CLUSTERS,
    DRAINING,
    ENDPOINT_SETS,
    ENVOY_CHECKS,
    FRONTENDS,
    GATEWAY_CHECKS,
    GRANTS,
    IMPORTS,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    L4_ROUTES,
    LOCAL_REDIRECTS,
    NAMESPACES,
    NODES,
    PLANS,
    PODS,
    POLICIES,
    PROBES,
    PROXY_REDIRECTS,
    REDIRECTS,
    REFUSED_CLAIMS,
    SERVICES,
    XDS_SERVED,
)
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations, Table

HTTP = Port("http", 80)
ECHO = names.service_name("demo", "echo")
DERIVED = names.derived(ECHO)
INPUTS = (
    SERVICES,
    ENDPOINT_SETS,
    IMPORTS,
    NODES,
    PODS,
    NAMESPACES,
    POLICIES,
    LOCAL_REDIRECTS,
    PROXY_REDIRECTS,
    PROBES,
    CLUSTERS,
    DRAINING,
    ISLAND_LISTENERS,
    ISLAND_PODS,
    XDS_SERVED,
    ENVOY_CHECKS,
    GATEWAY_CHECKS,
    L4_ROUTES,
    GRANTS,
)
TABLES: dict[type, Table[Any, Any]] = {table.row: table for table in INPUTS}


MANAGED = ((MANAGED_BY, "isthmus-operator"),)

PERMISSIVE = ClaimRules(
    external_ips=True,
    clusterset_ranges=(ip_network("0.0.0.0/0"), ip_network("::/0")),
    redirect_namespaces=("demo", "kube-system"),
)
"""Rules under which everything that the configuration can allow is allowed."""


class World:
    """Rows of one node, n1 of cluster c1, and what follows from them."""

    def __init__(
        self,
        services: Any = "multicluster",
        *,
        units_per_pass: int = 2_000,
        rules: ClaimRules | None = None,
        large: int = LARGE,
    ) -> None:
        cluster, claims = names.ClusterName("c1"), rules or ClaimRules()
        derived = loadbalancer.derived(cluster, "n1", services=services, rules=claims, large=large)
        self.db = Database(*tables_of(derived, *INPUTS))
        self.derivations = Derivations(self.db, *derived, units_per_pass=units_per_pass)

    def put(self, *rows: Any) -> Self:
        with self.db.write() as txn:
            for row in rows:
                txn.put(TABLES[type(row)], row)
        return self

    def delete(self, *rows: Any) -> Self:
        with self.db.write() as txn:
            for row in rows:
                table = TABLES[type(row)]
                txn.delete(table, table.key(row))
        return self

    def settle(self) -> Self:
        while self.derivations.step():
            pass
        return self

    def _all(self, table: Table[Any, Any]) -> list[Any]:
        self.settle()
        return sorted(self.db.snapshot().all(table), key=table.key)

    @property
    def frontends(self) -> list[Frontend]:
        return self._all(FRONTENDS)

    @property
    def backends(self) -> list[Backend]:
        return self._all(BACKENDS)

    @property
    def plans(self) -> list[Plan]:
        return self._all(PLANS)

    @property
    def checks(self) -> list[Check]:
        return self._all(CHECKS)

    @property
    def redirects(self) -> list[Redirect]:
        return self._all(REDIRECTS)

    @property
    def refused(self) -> list[RefusedClaim]:
        return self._all(REFUSED_CLAIMS)

    def called(self) -> dict[str, str]:
        """Address → service."""
        return {str(row.key): row.service for row in self.frontends}

    def reached(self) -> dict[str, list[str]]:
        """Plan → the backends that calls reach, as cluster/address:port; not those they fall back to."""
        return {
            str(row.key): [
                f"{t.cluster}/{t.address}:{t.port}" for group in row.groups if not group.tier for t in group.targets
            ]
            for row in self.plans
        }


class make:  # noqa: N801 reads as a verb in tests
    """Rows with defaults: the import demo/echo, its derived Service at 10.96.0.7, endpoints of a cluster."""

    ECHO = ECHO
    DERIVED = DERIVED

    @staticmethod
    def service(name: str = "demo/echo", **fields: Any) -> Service:
        defaults: dict[str, Any] = {"source": "kubernetes", "ports": (HTTP,), "cluster_ips": ("10.96.0.7",)}
        return Service(name=names.ServiceName(name), **(defaults | fields))

    @classmethod
    def derived(cls, of: str = ECHO, **fields: Any) -> Service:
        imported = names.ServiceName(of)
        return cls.service(names.derived(imported), **({"import_of": imported} | fields))

    @staticmethod
    def hashed(name: str) -> str:
        """What the derived Service of an import is called."""
        return names.derived(names.ServiceName(name))

    @classmethod
    def globally(cls, name: str = "demo/echo", *, affinity: str = "", **fields: Any) -> Service:
        annotations = (("service.cilium.io/affinity", affinity),) if affinity else ()
        return cls.service(name, annotations=(*annotations, ("service.cilium.io/global", "true")), **fields)

    @staticmethod
    def imported(name: str = ECHO, **fields: Any) -> Import:
        defaults: dict[str, Any] = {"ports": (HTTP,), "ips": ("10.96.0.7",), "annotations": MANAGED}
        defaults["clusters"] = tuple(names.ClusterName(f"c{n}") for n in range(1, 61))
        return Import(name=names.ServiceName(name), **(defaults | fields))

    @staticmethod
    def endpoint(address: str, *, ports: Iterable[Port] = (Port("http", 8080),), **fields: Any) -> Endpoint:
        return Endpoint(address, tuple(ports), **fields)

    @classmethod
    def endpoints(
        cls, cluster: str, *endpoints: str | Endpoint, service: str = DERIVED, part: str = "", **fields: Any
    ) -> EndpointSet:
        own = cluster == "c1"
        defaults: dict[str, Any] = {
            "source": "kubernetes" if own else "clusterset",
            "part": part or ("slice" if own else "record"),
        }
        return EndpointSet(
            service=names.ServiceName(service),
            cluster=names.ClusterName(cluster),
            endpoints=tuple(cls.endpoint(each) if isinstance(each, str) else each for each in endpoints),
            **(defaults | fields),
        )

    @staticmethod
    def pod(name: str = "demo/near", address: str = "10.1.1.9", **fields: Any) -> Pod:
        defaults: dict[str, Any] = {"labels": (("app", "near"),), "ports": (Port("http", 8080),), "ready": True}
        return Pod(name=name, uid=name, node="n1", **(defaults | {"addresses": (address,)} | fields))

    @staticmethod
    def local(name: str = "demo/near", service: str = "demo/echo", **fields: Any) -> LocalRedirect:
        defaults: dict[str, Any] = {
            "selector": (Requirement("app", "In", ("near",)),),
            "backend_ports": (Port("", 8080),),
        }
        return LocalRedirect(name=names.ServiceName(name), service=names.ServiceName(service), **(defaults | fields))

    @staticmethod
    def proxied(
        *ports: int,
        service: str = DERIVED,
        owner: str = "HTTPRoute demo/r",
        at: int = 15001,
        created: str = "",
        callers: str = "",
    ) -> ProxyRedirect:
        listener = Listener("169.254.7.2", at, ports)
        name = names.ServiceName(service)
        return ProxyRedirect(service=name, owner=owner, listeners=(listener,), created=created, callers=callers)

    @staticmethod
    def backend(
        name: str, weight: int = 1, *, port: int = 80, kind: RefKind = "ServiceImport", reason: str = ""
    ) -> BackendRef:
        """A backend of a route in namespace demo, unless its name has another."""
        full = names.ServiceName(name if "/" in name else f"demo/{name}")
        return BackendRef(ServiceRef(kind, full, port), weight, reason, reason)

    @staticmethod
    def l4(*backends: BackendRef, parent: ParentKind = "ServiceImport", to: str = ECHO, **fields: Any) -> L4Route:
        """The TCPRoute demo/route of the import demo/echo. ``port`` and ``section`` limit the reference to it."""
        reference = {each: fields.pop(each) for each in ("port", "section") if each in fields}
        ref = ParentRef(parent, names.ServiceName(to), **reference)
        defaults: dict[str, Any] = {"kind": "TCPRoute", "name": "demo/route", "generation": 1}
        return L4Route(parents=(ref,), backends=backends, **(defaults | fields))

    @staticmethod
    def cluster(name: str, **fields: Any) -> Cluster:
        return Cluster(name=names.ClusterName(name), **fields)

    @staticmethod
    def probe(
        address: str, *, healthy: bool, cluster: str = "c1", service: str = "demo/echo", port: int = 8080
    ) -> Probe:
        key = BackendKey(names.ServiceName(service), names.ClusterName(cluster), address, port, "TCP")
        return Probe(key, healthy)

    @classmethod
    def terminating(cls, address: str, **fields: Any) -> Endpoint:
        return cls.endpoint(address, condition=Condition.TERMINATING, **fields)


def key(row: Any) -> tuple[str, Any]:
    """What identifies an input row among those of all tables."""
    table = TABLES[type(row)]
    return table.name, table.key(row)
