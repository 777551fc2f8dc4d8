"""A member of Karmada, replayed: what its API server showed, step by step, to an agent's and an operator's tables.

The recordings in ``tests/data/karmada`` are of karmada-controller-manager and karmada-scheduler 1.18.2 over three
members (``c1``, ``c2``, ``c3``): one JSON document a line, ``{"t", "step"}`` or ``{"t", "event", "object"}``, of one
member, without what nothing here reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from isthmus import dns, loadbalancer, mcs
from isthmus.model import tables
from isthmus.model.balancing import Backend
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import Namespace
from isthmus.reflector import Event
from isthmus.sources import kubernetes
from isthmus.sources.observed import observed
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Derivation, Derivations, Table

DATA = Path(__file__).resolve().parents[2] / "data" / "karmada"
KINDS = {
    "Service": tables.SERVICES.name,
    "EndpointSlice": tables.ENDPOINT_SETS.name,
    "ServiceImport": tables.IMPORTS.name,
    "ServiceExport": tables.EXPORT_MARKS.name,
}


class Line(NamedTuple):
    """A line of a recording."""

    time: float
    step: str
    event: str
    object: dict[str, Any]


def recording(name: str) -> Iterator[Line]:
    """The lines of a recording of a member, such as ``export-import.c3``."""
    for text in (DATA / f"{name}.jsonl").read_text().splitlines():
        line = msgspec.json.decode(text)
        yield Line(line["t"], line.get("step", ""), line.get("event", ""), line.get("object", {}))


class Tables:
    """A database with derived tables, fed with objects as a reflector would."""

    def __init__(self, cluster: str, derived: Sequence[Derivation], *, remote: bool) -> None:
        needed: set[Table[Any, Any]] = {tables.OBSERVED, tables.CLUSTERS, tables.PODS}
        needed |= {table for each in derived for table in (*each.tables, *each.reads)}
        self.db = Database(*needed)
        self.derivations = Derivations(self.db, *derived)
        feeds = kubernetes.feeds(cluster=ClusterName(cluster), remote_slices=remote)
        self.kinds: dict[str, Any] = {}
        self.sinks: dict[str, list[TableSink[Any, Any]]] = {}
        for kind, table in KINDS.items():
            [feed] = feeds[table]
            seen = observed(feed.kind, foreign=feed.written == "status")
            self.kinds[kind] = feed.kind.struct
            self.sinks[kind] = [TableSink(self.db, tables.OBSERVED, kind, seen)]
            if feed.table in needed:
                self.sinks[kind].append(TableSink(self.db, feed.table, f"{kind}s", feed.convert))
        self.put(tables.NAMESPACES, Namespace("demo"))
        for name in ("c1", "c2", "c3"):
            row = Cluster(name=ClusterName(name), own=name == cluster, state="ready")
            self.put(tables.CLUSTERS, row)

    def put(self, table: Any, row: Any) -> None:
        with self.db.write() as txn:
            txn.put(table, row)
        self.settle()

    def object(self, event: str, body: dict[str, Any]) -> None:
        """A watch event."""
        meta = body["metadata"]
        found = None if event == "DELETED" else msgspec.convert(body, self.kinds[body["kind"]])
        for sink in self.sinks[body["kind"]]:
            sink.apply([Event(f"{meta['namespace']}/{meta['name']}", found)])
        self.settle()

    def settle(self) -> None:
        while self.derivations.step():
            pass


class Member:
    """The agent's and the operator's tables of one member."""

    def __init__(self, cluster: str) -> None:
        name = ClusterName(cluster)
        balancing = [*loadbalancer.derived(name, "n1"), dns.derived("clusterset.local")]
        self.agent = Tables(cluster, balancing, remote=False)
        decided = [*mcs.derived(name), mcs.records.derived(name, 3)]
        self.operator = Tables(cluster, decided, remote=True)

    def put(self, table: Any, row: Any) -> None:
        for each in (self.agent, self.operator):
            if table.name in each.db.tables:
                each.put(table, row)

    def object(self, event: str, body: dict[str, Any]) -> None:
        self.agent.object(event, body)
        self.operator.object(event, body)

    def endpoints(self, service: str) -> dict[str, str]:
        """Address to cluster of every backend that is ready, each once."""
        rows: list[Backend] = self.agent.db.snapshot().by(tables.BACKENDS, "service", ServiceName(service))
        ready = [row for row in rows if row.condition == 0]
        found = {row.key.address: row.key.cluster for row in ready}
        assert len(found) == len(ready), f"one address under two clusters: {ready}"
        return dict(found)

    def resolved(self, name: str) -> tuple[str, ...]:
        """The A record of a name."""
        row: Name | None = self.agent.db.snapshot().get(tables.NAMES, (name, "A"))
        return row.answers if row is not None else ()

    def wanted(self) -> list[Object]:
        """Objects that the operator writes, whole or in part."""
        rows = self.operator.db.snapshot().all(tables.OBJECTS)
        return sorted((row for row in rows if row.body or row.status), key=lambda row: (row.kind, row.name))

    def records(self) -> dict[str, dict[str, Any]]:
        """What is published, by kind and name."""
        rows = self.operator.db.snapshot().all(tables.RECORDS)
        return {f"{row.kind}:{row.name}": msgspec.json.decode(row.value) for row in rows}
