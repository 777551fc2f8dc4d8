"""A cluster ``c1`` of the clusterset, as tables: what goes in, and what the operator wants of it."""

from __future__ import annotations

from typing import Any

import msgspec
from clusters.seen_objects import seen

from isthmus import mcs
from isthmus.desired.drafts import conditions
from isthmus.model import tables
from isthmus.model.mcs import Merged
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import (
    Endpoint,
    EndpointSet,
    Export,
    ExportMark,
    Import,
    Namespace,
    Port,
    Service,
)
from isthmus.statedb import Database, Derivations

HTTP = Port("http", 80)
INPUTS = (
    tables.SERVICES,
    tables.ENDPOINT_SETS,
    tables.EXPORT_MARKS,
    tables.IMPORTS,
    tables.NAMESPACES,
    tables.CLUSTERS,
    tables.EXPORTS,
)


class World:
    """The operator's tables of a cluster, with demo as a namespace; each change is followed by a pass."""

    inputs: tuple[Any, ...] = INPUTS

    def __init__(
        self,
        *families: Any,
        default_global: bool = True,
        cluster: ClusterName = ClusterName("c1"),  # noqa: B008
        max_derived_services: int = 2_500,
        list_importers: bool = False,
    ) -> None:
        self.cluster = cluster
        self.db = Database(
            *INPUTS,
            tables.OBSERVED,
            tables.OWN_EXPORTS,
            tables.MERGED,
            tables.OVER_QUOTA,
            tables.REFUSED_RECORDS,
            tables.PEER_REFUSALS,
            tables.RECORDS_STATUS,
            tables.REFUSALS,
            tables.OBJECTS,
            tables.OBJECTS_STATUS,
        )
        derived = mcs.derived(
            cluster,
            families or ("IPv4",),
            default_global=default_global,
            max_derived_services=max_derived_services,
            list_importers=list_importers,
        )
        self.derivations = Derivations(self.db, *derived)
        self.version = 1_000_000
        self.put(tables.NAMESPACES, Namespace("demo"))

    def put(self, table: Any, row: Any) -> None:
        """A row comes or changes; where it is of an object that we may write, the object is seen so."""
        self.version += 1
        observed = seen(row, metadata=self.metadata(table, row), version=str(self.version))
        with self.db.write() as txn:
            txn.put(table, row)
            if observed is not None:
                txn.put(tables.OBSERVED, observed)
        self.settle()

    def metadata(self, table: Any, row: Any) -> dict[str, Any]:
        """What no row has of a slice: its labels and annotations, which are as we wrote them."""
        if table is not tables.ENDPOINT_SETS:
            return {}
        key = ("EndpointSlice", ServiceName(f"demo/{row.part}"))
        wanted = self.db.snapshot().get(tables.OBJECTS, key)
        return dict(msgspec.json.decode(wanted.body)["metadata"]) if wanted is not None else {}

    def delete(self, table: Any, key: Any) -> None:
        with self.db.write() as txn:
            deleted = txn.delete(table, key)
            assert deleted is not None
            observed = seen(deleted, metadata={}, version="")
            if observed is not None:
                txn.delete(tables.OBSERVED, (observed.kind, observed.name))
        self.settle()

    def settle(self) -> None:
        while self.derivations.step():
            pass

    def service(self, name: str = "demo/echo", **fields: Any) -> None:
        given = {"ports": (HTTP,), "cluster_ips": ("10.96.0.9",), "families": ("IPv4",), **fields}
        self.put(tables.SERVICES, Service(name=ServiceName(name), source="kubernetes", **given))

    def mark(self, name: str = "demo/echo", **fields: Any) -> None:
        given = {"created": "2026-01-02T00:00:00Z", "generation": 1, "uid": "mark-uid", **fields}
        self.put(tables.EXPORT_MARKS, ExportMark(name=ServiceName(name), **given))

    def export(self, cluster: str = "c2", name: str = "demo/echo", **fields: Any) -> None:
        given = {"created": "2026-01-01T00:00:00Z", "ports": (HTTP,), "families": ("IPv4",), **fields}
        self.put(tables.EXPORTS, Export(cluster=ClusterName(cluster), name=ServiceName(name), **given))

    def withdraw(self, cluster: str = "c2", name: str = "demo/echo") -> None:
        self.delete(tables.EXPORTS, (ClusterName(cluster), ServiceName(name)))

    def slice(self, part: str, *endpoints: Endpoint, service: str = "demo/echo") -> None:
        row = EndpointSet(
            service=ServiceName(service), cluster=ClusterName("c1"), source="kubernetes", part=part, endpoints=endpoints
        )
        self.put(tables.ENDPOINT_SETS, row)

    def imported(self, name: str = "demo/echo", **fields: Any) -> None:
        """The API server has the import, as far as it was written."""
        body = self.object("ServiceImport", name)
        annotations = tuple(sorted(body["metadata"]["annotations"].items()))
        status = self.row("ServiceImport", name).status
        exporters = [each["cluster"] for each in msgspec.json.decode(status)["clusters"]]
        given = {
            "uid": "import-uid",
            "ports": (HTTP,),
            "annotations": annotations,
            "clusters": tuple(sorted(exporters)),
            "conditions": tuple(sorted(conditions(status), key=lambda each: each.type)),
            **fields,
        }
        self.put(tables.IMPORTS, Import(name=ServiceName(name), **given))

    def derived(self, name: str = "demo/derived-qieggqc27v", **fields: Any) -> None:
        """The API server has the derived Service of demo/echo, as it was written, with an address."""
        body = self.object("Service", name)
        given = {
            "uid": "service-uid",
            "import_of": ServiceName("demo/echo"),
            "labels": tuple(sorted(body["metadata"]["labels"].items())),
            "annotations": tuple(sorted(body["metadata"]["annotations"].items())),
            "cluster_ips": ("10.96.7.7",),
            **fields,
        }
        self.service(name, **given)

    @property
    def merged(self) -> Merged | None:
        return self.db.snapshot().get(tables.MERGED, ServiceName("demo/echo"))

    @property
    def objects(self) -> list[Object]:
        return sorted(self.db.snapshot().all(tables.OBJECTS), key=lambda row: (row.kind, row.name))

    @property
    def kinds(self) -> list[str]:
        return [row.kind for row in self.objects]

    def row(self, kind: str, name: str = "demo/echo") -> Object:
        found = self.db.snapshot().get(tables.OBJECTS, (kind, ServiceName(name)))
        assert found is not None, f"no {kind} {name} among {[(o.kind, o.name) for o in self.objects]}"
        return found

    def object(self, kind: str, name: str = "demo/echo") -> dict[str, Any]:
        body: dict[str, Any] = msgspec.json.decode(self.row(kind, name).body)
        return body

    def status(self, kind: str, name: str = "demo/echo") -> dict[str, Any]:
        status: dict[str, Any] = msgspec.json.decode(self.row(kind, name).status)
        return status

    def condition(self, kind: str, type: str, name: str = "demo/echo") -> dict[str, Any] | None:
        found = [c for c in self.status(kind, name)["conditions"] if c["type"] == type]
        return found[0] if found else None
