"""A cluster whose operator, API server and agent take turns: names are read after each transaction.

The API server is this module: :meth:`Cluster.written` carries out one object that the operator wants, as the real one
would (a Service gets an address, one that cannot be changed is deleted first, what was owned goes with its owner).
"""

from __future__ import annotations

from typing import Any, Final

import dns.name
import msgspec
from msgspec import structs
from rows.mcs_world import World

import isthmus.dns
from isthmus import loadbalancer
from isthmus.kube.objects import core, mcs
from isthmus.model import clusters, names, tables
from isthmus.model.clusters import PeerState
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import AS_WANTED, Object
from isthmus.model.services import Endpoint, EndpointSet, Import, Namespace, Port, Service
from isthmus.processes.start import tables_of
from isthmus.sources import multicluster, services
from isthmus.statedb import Database, Derivations
from isthmus.zone import Zone, codec

ECHO: Final = ServiceName("demo/echo")
DERIVED: Final = names.derived(ECHO)
APEX: Final = "echo.demo.svc.clusterset.local"
SHARED: Final = (
    tables.SERVICES,
    tables.CLUSTERS,
    tables.ENDPOINT_SETS,
    tables.IMPORTS,
    tables.NAMESPACES,
    tables.NODES,
    tables.PODS,
    tables.POLICIES,
)
CODES: Final = {codec.NOERROR: "NOERROR", codec.NXDOMAIN: "NXDOMAIN", codec.SERVFAIL: "SERVFAIL"}


class Cluster:
    """Cluster ``c1``, which imports demo/echo."""

    def __init__(self) -> None:
        self.operator = World()
        zone = isthmus.dns.derived("clusterset.local")
        derived = [*loadbalancer.derived(ClusterName("c1"), "n1"), zone]
        self.db = Database(*tables_of(derived, *SHARED))
        self.derivations = Derivations(self.db, *derived)
        self._given = 0
        self._allocated: set[str] = set()
        self.agent_has(tables.NAMESPACES, Namespace("demo"))
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        """The code and the addresses of the name after each transaction of the agent."""

    def agent_has(self, table: Any, row: Any) -> None:
        with self.db.write() as txn:
            txn.put(table, row)
        self._read()

    def agent_lost(self, table: Any, key: Any) -> None:
        with self.db.write() as txn:
            txn.delete(table, key)
        self._read()

    def exported(self, cluster: str = "c2", **fields: Any) -> None:
        """The operator has received a peer's export."""
        self.operator.export(cluster, **fields)

    def published(self, *endpoints: Endpoint, cluster: str = "c2") -> None:
        """The agent has received a peer's endpoints; the operator reads the same record."""
        row = EndpointSet(DERIVED, ClusterName(cluster), "clusterset", "record", endpoints)
        self.operator.put(tables.ENDPOINT_SETS, row)
        self.agent_has(tables.ENDPOINT_SETS, row)

    def peer(self, state: PeerState, cluster: str = "c2") -> None:
        """The state of a peer's connection changes."""
        row = clusters.Cluster(name=ClusterName(cluster), state=state)
        self.operator.put(tables.CLUSTERS, row)
        self.agent_has(tables.CLUSTERS, row)

    def written(self, kind: str) -> bool:
        """Carry out one write of the operator; False if there is none of this kind."""
        wanted = self._wanted(kind)
        current = self._current(kind)
        if wanted is None:
            if current is not None:
                self.deleted(kind)
            return current is not None
        if wanted.seen == AS_WANTED and not wanted.recreate_uid:
            return False
        if wanted.recreate_uid:
            self.deleted(kind)
        self._give(kind, wanted, current if not wanted.recreate_uid else None)
        return True

    def has(self, kind: str) -> bool:
        """True if the API server has the object."""
        return self._current(kind) is not None

    def settle(self) -> None:
        """Carry out all writes, in the operator's order."""
        for _ in range(20):
            if not any([self.written("ServiceImport"), self.written("Service")]):
                return
        raise AssertionError("the operator writes without end")

    def deleted(self, kind: str) -> None:
        """An object is deleted, by the operator or by hand."""
        row = self._current(kind)
        if row is not None:
            table: Any = tables.IMPORTS if kind == "ServiceImport" else tables.SERVICES
            self.operator.delete(table, table.key(row))
            self.agent_lost(table, table.key(row))

    def zone(self) -> Zone:
        zone = Zone("clusterset.local")
        zone.complete = True
        for row in self.db.snapshot().all(tables.NAMES):
            zone.replace(None, row)
        return zone

    def ask(self, name: str = APEX, type_: int = codec.A) -> tuple[str, tuple[str, ...]]:
        question = dns.name.from_text(name).to_wire()
        assert question is not None
        answer = self.zone().answer(codec.Query(1, 0, question, question, type_, codec.IN, 4096, b""))
        rows = [row for row in self.db.snapshot().all(tables.NAMES) if row.name == name and row.type == "A"]
        addresses = tuple(each for row in rows for each in row.answers) if answer.number and type_ == codec.A else ()
        return CODES[answer.rcode], addresses

    def _read(self) -> None:
        while self.derivations.step():
            pass
        if hasattr(self, "seen"):
            self.seen.append(self.ask())

    def _wanted(self, kind: str) -> Object | None:
        name = ECHO if kind == "ServiceImport" else DERIVED
        return self.operator.db.snapshot().get(tables.OBJECTS, (kind, name))

    def _current(self, kind: str) -> Import | Service | None:
        snapshot = self.operator.db.snapshot()
        if kind == "ServiceImport":
            return snapshot.get(tables.IMPORTS, ECHO)
        return snapshot.get(tables.SERVICES, (DERIVED, "kubernetes"))

    def _give(self, kind: str, wanted: Object, current: Import | Service | None) -> None:
        body: dict[str, Any] = msgspec.json.decode(wanted.body)
        self._given += 1
        body["metadata"]["uid"] = current.uid if current is not None else f"uid-{self._given}"
        row: Import | Service
        if kind == "ServiceImport":
            body["status"] = msgspec.json.decode(wanted.status)
            row = multicluster.service_import(msgspec.convert(body, mcs.ServiceImport))
            table: Any = tables.IMPORTS
        else:
            if body["spec"].get("clusterIP") != "None":
                preferred = msgspec.json.decode(wanted.preferred)["spec"] if wanted.preferred else {}
                address = preferred.get("clusterIP", f"10.96.0.{self._given}")
                kept = current.cluster_ips if isinstance(current, Service) and current.cluster_ips else (address,)
                body["spec"] |= {"clusterIP": kept[0], "clusterIPs": list(kept)}
            row = services.service(msgspec.convert(body, core.Service))
            table = tables.SERVICES
        self.operator.put(table, row)
        self.agent_has(table, row)


def backend(number: int, name: str = "http") -> Endpoint:
    """An endpoint with one port."""
    return Endpoint(f"10.2.0.{number}", (Port(name, 8080),))


def renamed(port: Port, name: str) -> Port:
    """The port under another name."""
    return structs.replace(port, name=name)
