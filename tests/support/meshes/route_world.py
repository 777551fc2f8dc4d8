"""Rows of routes, Services and endpoints, and what the derivations of a node's Envoy make of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import randrange
from typing import Any, Final

import msgspec
import yaml

from isthmus import dns, loadbalancer
from isthmus.gateway import islands, listeners, pods
from isthmus.gateway.listeners import NodeSettings
from isthmus.kube.objects import gateway
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.routes import Grant, Route
from isthmus.model.services import Endpoint, EndpointSet, Import, Port, Protocol, Service
from isthmus.processes.start import tables_of
from isthmus.proxy import Listening
from isthmus.proxy import derived as proxy_derived
from isthmus.proxy.tracing import Tracing
from isthmus.sources import routes
from isthmus.statedb import Database, Derivation, Derivations

C1: Final = ClusterName("c1")
C2: Final = ClusterName("c2")
NODE: Final = "n1"
ZONE: Final = "clusterset.local"
CREATED: Final = "2026-01-01T00:00:00Z"


def route(text: str, *, name: str = "demo/route", kind: str = "HTTPRoute", created: str = CREATED) -> Route:
    """A route of a spec in YAML."""
    namespace, _, short = name.partition("/")
    meta = {"namespace": namespace, "name": short, "creationTimestamp": created, "generation": 1}
    found = {"metadata": meta, "spec": yaml.safe_load(text)}
    written = msgspec.json.encode(found)
    if kind == "GRPCRoute":
        return routes.grpc_route(msgspec.json.decode(written, type=gateway.GrpcRoute))
    return routes.http_route(msgspec.json.decode(written, type=gateway.HttpRoute))


def grant(namespace: str, *, of: str, kind: str = "HTTPRoute", to: str = "Service") -> Grant:
    return Grant(name=ServiceName(f"{namespace}/grant"), sources=frozenset({(kind, of)}), targets=frozenset({(to, "")}))


def island_tables(of: NodeSettings | None) -> Iterator[Derivation]:
    """What a node that calls islands derives, and names, in which pods of islands are."""
    if of is not None:
        yield from (pods.pods_derived(of), listeners.derived(of), dns.derived(ZONE))


class RouteWorld:
    """The tables of an agent with an Envoy, without reflectors: rows are put, and derived at once."""

    def __init__(
        self,
        *addresses: str,
        island: NodeSettings | None = None,
        ports: int = 4_000,
        tracing: Tracing | None = None,
    ) -> None:
        self.addresses = addresses or (f"127.{randrange(1, 255)}.{randrange(255)}.{randrange(1, 255)}",)
        """Where its Envoy listens: two on one machine would share a port, since it is open to a second process."""
        self._services = 0
        derived_tables: list[Derivation] = [
            *loadbalancer.derived(C1, NODE, services="multicluster"),
            *proxy_derived(
                C1,
                NODE,
                Listening(self.addresses, ports=ports),
                islands.xds(island) if island else None,
                tracing=tracing,
            ),
            *island_tables(island),
        ]
        self.db = Database(*tables_of(derived_tables, tables.CLUSTERS, tables.XDS_REFUSED, tables.XDS_SERVED))
        self.derivations = Derivations(self.db, *derived_tables)
        self.put(tables.CLUSTERS, Cluster(name=C1, own=True), Cluster(name=C2))

    def cluster_ip(self) -> str:
        """An address that no other Service has, of the family in which Envoy listens."""
        self._services += 1
        return f"fd00:96::{self._services:x}" if ":" in self.addresses[0] else f"10.96.0.{self._services}"

    def put(self, table: Any, *rows: Any) -> RouteWorld:
        with self.db.write() as txn:
            for row in rows:
                txn.put(table, row)
        return self.derive()

    def delete(self, table: Any, *rows: Any) -> RouteWorld:
        with self.db.write() as txn:
            for row in rows:
                txn.delete(table, table.key(row))
        return self.derive()

    def derive(self) -> RouteWorld:
        while self.derivations.step():
            pass
        return self

    def routes(self, *rows: Route) -> RouteWorld:
        return self.put(tables.ROUTES, *rows)

    def service(self, name: str, *endpoints: str, port: int = 80, app_protocol: str = "http") -> RouteWorld:
        """A plain Service of this cluster with endpoints as address:port."""
        ports = (Port("", port, app_protocol=app_protocol),)
        row = Service(
            name=ServiceName(name), source="kubernetes", ports=ports, cluster_ips=(self.cluster_ip(),), created=CREATED
        )
        return self.put(tables.SERVICES, row).endpoints(name, C1, *endpoints)

    def imported(
        self, name: str, *, app_protocol: str = "", protocol: Protocol = "TCP", **endpoints: list[str]
    ) -> RouteWorld:
        """An import with its derived Service, and endpoints by cluster."""
        ports = (Port("", 80, protocol, app_protocol=app_protocol),)
        of = derived(ServiceName(name))
        clusters = tuple(ClusterName(each) for each in endpoints)
        found = Import(name=ServiceName(name), ports=ports, clusters=clusters, derived=of.partition("/")[2])
        service = Service(
            name=of,
            source="kubernetes",
            ports=ports,
            cluster_ips=(self.cluster_ip(),),
            import_of=ServiceName(name),
            created=CREATED,
        )
        self.put(tables.IMPORTS, found).put(tables.SERVICES, service)
        for cluster, addresses in endpoints.items():
            self.endpoints(of, ClusterName(cluster), *addresses, protocol=protocol)
        return self

    def endpoints(self, name: str, cluster: ClusterName, *addresses: str, protocol: Protocol = "TCP") -> RouteWorld:
        found = []
        for each in addresses:
            host, _, port = each.rpartition(":")
            found.append(Endpoint(host, (Port("", int(port), protocol),)))
        source = "kubernetes" if cluster == C1 else "clusterset"
        row = EndpointSet(
            service=ServiceName(name), cluster=cluster, source=source, part=f"{cluster}", endpoints=tuple(found)
        )
        return self.put(tables.ENDPOINT_SETS, row)

    def headless(self, name: str, *, protocol: Protocol = "TCP", **pods: list[str]) -> RouteWorld:
        """A headless import with pods of each cluster, as hostname=address:port."""
        of, clusters = derived(ServiceName(name)), tuple(ClusterName(each) for each in pods)
        found = Import(name=ServiceName(name), type="Headless", ports=(Port("", 80, protocol),), clusters=clusters)
        service = Service(name=of, source="kubernetes", headless=True, import_of=ServiceName(name), created=CREATED)
        self.put(tables.IMPORTS, found).put(tables.SERVICES, service)
        for cluster, each in pods.items():
            self.replicas(name, ClusterName(cluster), *each, protocol=protocol)
        return self

    def replicas(self, name: str, cluster: ClusterName, *pods: str, protocol: Protocol = "TCP") -> RouteWorld:
        """The pods of a cluster behind a headless import."""
        found = []
        for each in pods:
            hostname, _, at = each.partition("=")
            host, _, port = at.rpartition(":")
            found.append(Endpoint(host, (Port("", int(port), protocol),), hostname=hostname))
        source = "kubernetes" if cluster == C1 else "clusterset"
        of = derived(ServiceName(name))
        row = EndpointSet(service=of, cluster=cluster, source=source, part=f"{cluster}", endpoints=tuple(found))
        return self.put(tables.ENDPOINT_SETS, row)

    def rows(self, table: Any) -> list[Any]:
        return list(self.db.snapshot().all(table))

    def listener_port(self, service: str, callers: str = "") -> int:
        """Where Envoy listens for a Service: for callers of a namespace, or for all without routes of their own."""
        found = self.db.snapshot().by(tables.PROXY_LISTENERS, "service", ServiceName(service))
        [row] = [each for each in found if each.callers == callers]
        port: int = row.listeners[0].port
        return port
