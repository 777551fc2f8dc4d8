"""The tables of an agent, an operator or a gateway, fed with objects and records as the bytes that they arrive as.

Everything between the sockets of a process and its effects runs: reading, conversion, sinks, drains, derivations.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

import msgspec

from isthmus import dns, loadbalancer
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.peers import sinks
from isthmus.clusterset.records import identity, quotas, refusals
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS
from isthmus.clusterset.records.refusals import RefusedRecords
from isthmus.config import ClusterSection, ClustersetSection, Config, ProxySection
from isthmus.etcd import KeyValue
from isthmus.kube.kind import Kind, key_of
from isthmus.kube.store import _name, _read
from isthmus.loadbalancer import ClaimRules
from isthmus.loadbalancer.members import LARGE
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.processes import gateway, operator, proxying
from isthmus.processes.draining import DrainClock
from isthmus.processes.start import tables_of
from isthmus.reflector import Event, Sink, Unreadable
from isthmus.sources import kubernetes
from isthmus.sources.host_ports import PodSink
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Derivation, Derivations, Table

Role = Literal["agent", "operator", "gateway"]
Object = dict[str, Any]

C1, C2, C3 = ClusterName("c1"), ClusterName("c2"), ClusterName("c3")
IDS = {C2: 2, C3: 3}
NOW = datetime(2026, 6, 1, tzinfo=UTC)


CONFIG = Config(cluster=ClusterSection(name=C1, id=1, families=("IPv4",)), proxy=ProxySection(directory="/run/proxy"))


class Pipeline:
    """Node n1 of cluster c1, its operator, or a gateway; c2 and c3 are peers.

    Without ``contained`` an exception that nobody expected is raised. ``wrap`` may put something around derivations.
    ``large``: endpoints from which the changes of a service's are followed.
    """

    def __init__(
        self,
        role: Role,
        *,
        contained: bool = False,
        wrap: Callable[[Derivation], Derivation] = lambda derivation: derivation,
        large: int = LARGE,
        config: Config = CONFIG,
    ) -> None:
        self.config = config
        declared = _declared(role, config, large)
        derived = [wrap(each) for each in declared]
        self.derived = [table for each in declared for table in each.tables]
        inputs = (tables.CLUSTERS, tables.PEER_POLICIES, tables.DRAINS, tables.DRAINING, tables.XDS_REFUSED)
        own = (tables.PEER_REFUSALS,) if role == "operator" else ()
        faults = (tables.FAULTS,) if contained else ()
        self.db = Database(*tables_of(derived, *inputs, *own, *faults, tables.PODS, tables.XDS_SERVED))
        self.derivations = Derivations(self.db, *derived, faults=tables.FAULTS if contained else None)
        self.drains = DrainClock(self.db, C1, cordoned=True, now=lambda: NOW)
        self._kinds: dict[tuple[str, str], tuple[Kind[Any], Sink[Any]]] = {}
        for feeds in kubernetes.feeds(cluster=C1, node="n1", remote_slices=True, namespace="isthmus-system").values():
            for feed in feeds:
                if feed.table in self.db.tables.values():
                    self._add(feed)
        self._records = {
            (cluster, kind): sinks.RecordSink(
                self.db,
                form,
                cluster_id=number,
                admission=Admission(cluster=cluster),
                quota=quotas.of_kind(kind, ClustersetSection()),
                listed=lambda txn: None,
                received=self._received,
            )
            for cluster, number in IDS.items()
            for kind, form in ROWS.items()
            if form.table in self.db.tables.values()
        }
        self.dropped: list[str] = []

    def _add(self, feed: kubernetes.Feed) -> None:
        sink: Sink[Any] = TableSink(self.db, feed.table, f"test/{feed.kind}", feed.convert)
        if feed.table is tables.PODS:
            sink = PodSink(self.db, sink, cluster=C1)
        self._kinds[feed.kind.group, feed.kind.kind] = feed.kind, sink

    def _received(self, refused: RefusedRecords) -> None:
        if refused:
            self.dropped.append(refused.example)

    def apply(self, *objects: Object | bytes) -> Pipeline:
        """The watches bring these objects."""
        for each in objects:
            raw = each if isinstance(each, bytes) else json.dumps(each).encode()
            head = msgspec.json.decode(raw, type=_Head)
            group = head.apiVersion.rpartition("/")[0]
            if (group, head.kind) not in self._kinds:
                continue  # the process does not watch it
            kind, sink = self._kinds[group, head.kind]
            item = _read(_decoder(kind), msgspec.Raw(raw))
            name = _name(msgspec.Raw(raw)) if isinstance(item, Unreadable) else key_of(item.metadata)
            sink.apply([Event(name, item)])
        return self

    def delete(self, *objects: Object) -> Pipeline:
        """The watches bring that these objects are gone."""
        for each in objects:
            _, sink = self._kinds[each["apiVersion"].rpartition("/")[0], each["kind"]]
            sink.apply([Event(f"{each['metadata']['namespace']}/{each['metadata']['name']}", None)])
        return self

    def watches(self, kind: str) -> bool:
        """True if the process watches objects of a kind."""
        return any(kind == watched for _, watched in self._kinds)

    def listed(self, *objects: Object) -> Pipeline:
        """Lists bring these objects, and are complete."""
        by_kind: dict[tuple[str, str], dict[str, Any]] = {key: {} for key in self._kinds}
        for each in objects:
            key = each["apiVersion"].rpartition("/")[0], each["kind"]
            item = msgspec.convert(each, self._kinds[key][0].struct)
            by_kind[key][key_of(item.metadata)] = item
        for key, items in by_kind.items():
            asyncio.run(self._kinds[key][1].replace(items, partial=False))
        return self

    def arrived(self) -> Pipeline:
        """Every list is whole, and has nothing."""
        for _, sink in self._kinds.values():
            asyncio.run(sink.replace({}, partial=False))
        for records in self._records.values():
            asyncio.run(records.replace({}, partial=False))
        return self

    def peer(self, description: Object | bytes, *, cluster: ClusterName = C2) -> Pipeline:
        """The etcd of a peer has this description of it."""
        raw = description if isinstance(description, bytes) else json.dumps(description).encode()
        found = identity.decode_description(raw, now=NOW)
        row = Cluster(
            name=cluster,
            id=IDS[cluster],
            state="ready",
            exports_enabled=True,
            network=found.network,
            region=found.region,
            zone=found.zone,
            labels=identity.label_pairs(found.labels),
            gateways=found.gateways,
            drains=found.drains,
            version=found.version,
        )
        with self.db.write() as txn:
            txn.put(tables.CLUSTERS, row)
        return self

    def refusals(self, raw: bytes, *, cluster: ClusterName = C2) -> Pipeline:
        """The etcd of a peer has this about our records."""
        if tables.PEER_REFUSALS.name in self.db.tables:
            with suppress(RecordError), self.db.write() as txn:
                for row in refusals.decode(raw, cluster=cluster):
                    txn.put(tables.PEER_REFUSALS, row)
        return self

    @property
    def kinds(self) -> list[Kind[Any]]:
        """The kinds that the process watches."""
        return [kind for kind, _ in self._kinds.values()]

    def record(
        self,
        kind: RecordKind,
        value: Object | bytes | None,
        *,
        cluster: ClusterName = C2,
        name: str = "demo/echo",
    ) -> Pipeline:
        """The etcd of a peer has this record, or none."""
        if (cluster, kind) in self._records:
            raw = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            kv = KeyValue(name, raw, 1, 0) if raw is not None else None
            self._records[cluster, kind].apply([Event(name, kv)])
        return self

    def settle(self) -> Pipeline:
        """Everything that follows from the input rows is computed."""
        self.drains.step()
        while self.derivations.step():
            pass
        return self

    def rows(self, table: Table[Any, Any]) -> list[Any]:
        """What a table has, sorted by key; nothing where this process has no such table."""
        if table not in self.db.tables.values():
            return []
        return sorted(self.db.snapshot().all(table), key=table.key)


@cache
def _decoder(kind: Kind[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind.struct)


def _declared(role: Role, config: Config, large: int) -> list[Derivation]:
    match role:
        case "agent":
            return _agent(config, large)
        case "gateway":
            return [*gateway.derived_tables(config)]
        case _:
            return operator.derived_tables(config, C1)


def _agent(config: Config, large: int) -> list[Derivation]:
    return [
        *loadbalancer.derived(C1, "n1", services="all", rules=ClaimRules(redirect_namespaces=("demo",)), large=large),
        *proxying.derived(config),
        dns.derived("clusterset.local", servers=("10.96.0.10",), more=dns.More(clusters=True, native="cluster.local")),
    ]


class _Head(msgspec.Struct):
    apiVersion: str = ""  # noqa: N815 as JSON has it
    kind: str = ""
