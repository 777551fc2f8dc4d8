"""An operator's tables, derivations and target over a real API server, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from isthmus import kube, mcs
from isthmus.desired import ApiTarget
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT, ServiceImport, ServiceImportSpec
from isthmus.kube.transport import Transport
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived, service_name, split
from isthmus.model.services import Endpoint, EndpointSet, Export, Family, Port
from isthmus.sources import kubernetes
from isthmus.statedb import Backoff, Database, Derivations, Reconciler, Snapshot

KUBERNETES = ("services", "endpoint_sets", "export_marks", "imports", "namespaces", "observed")


class Operator:
    """The operator of cluster c1 but for its connections to peers: tests say what those export."""

    own = ClusterName("c1")
    peer = ClusterName("c2")

    def __init__(self, client: kube.Client, *, namespace: str, families: tuple[Family, ...] = ("IPv4",)) -> None:
        self.client = client
        self.namespace = namespace
        self.name = service_name(namespace, "echo")
        self.derived_name = derived(self.name)
        self.derived = split(self.derived_name)[1]
        self.writer = kube.Client(Transport(client._transport._access))
        self.db = Database(
            tables.SERVICES,
            tables.ENDPOINT_SETS,
            tables.EXPORT_MARKS,
            tables.IMPORTS,
            tables.NAMESPACES,
            tables.CLUSTERS,
            tables.EXPORTS,
            tables.OBSERVED,
            tables.OVER_QUOTA,
            tables.REFUSED_RECORDS,
            tables.PEER_REFUSALS,
            tables.RECORDS_STATUS,
            tables.REFUSALS,
            tables.OWN_EXPORTS,
            tables.MERGED,
            tables.OBJECTS,
            tables.OBJECTS_STATUS,
        )
        cluster = self.own
        self.reflectors = kubernetes.reflectors(self.db, client, tables=KUBERNETES, cluster=cluster, remote_slices=True)
        self.derivations = Derivations(self.db, *mcs.derived(cluster, families))
        self.target = ApiTarget(self.writer, mcs.KINDS)
        self.reconciler = Reconciler(
            self.db,
            tables.OBJECTS,
            self.target,
            status=tables.OBJECTS_STATUS,
            backoff=Backoff(0.05, 0.2),
            together=lambda row: row.service,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Operator]:
        async with self.writer, asyncio.TaskGroup() as group:
            parts = [*(each.run() for each in self.reflectors), self.derivations.run()]
            tasks = [group.create_task(part) for part in parts]
            await self.until(lambda now: now.initialized(tables.OBJECTS))
            tasks.append(group.create_task(self.reconciler.run()))
            yield self
            for task in tasks:
                task.cancel()

    def forget(self) -> None:
        """Know of what was written as much as a process that begins."""
        self.target._known.clear()

    @property
    def requests(self) -> int:
        """How many its target has sent."""
        return self.writer._transport.requests

    def export(self, cluster: str, **fields: Any) -> None:
        given = {
            "name": self.name,
            "created": "2026-01-01T00:00:00Z",
            "ports": (Port("http", 80),),
            "families": ("IPv4",),
            **fields,
        }
        with self.db.write() as txn:
            txn.put(tables.EXPORTS, Export(cluster=ClusterName(cluster), **given))

    def withdraw(self, cluster: str) -> None:
        with self.db.write() as txn:
            txn.delete(tables.EXPORTS, (ClusterName(cluster), self.name))

    def cluster(self, **fields: Any) -> None:
        """What is known of the peer."""
        with self.db.write() as txn:
            txn.put(tables.CLUSTERS, Cluster(name=self.peer, **fields))

    def publish(self, *endpoints: Endpoint, service: ServiceName) -> None:
        """The peer publishes its endpoints of a service."""
        row = EndpointSet(service=service, cluster=self.peer, source="clusterset", part="record", endpoints=endpoints)
        with self.db.write() as txn:
            txn.put(tables.ENDPOINT_SETS, row)

    def written(self, now: Snapshot) -> list[EndpointSet]:
        """The peer's endpoints as they stand in the API server."""
        found = now.by(tables.ENDPOINT_SETS, "service", self.derived_name)
        return [row for row in found if (row.cluster, row.source) == (self.peer, "kubernetes")]

    async def until(self, condition: Callable[[Snapshot], Any]) -> Snapshot:
        async with asyncio.timeout(60):
            return await self.db.until(lambda now: bool(condition(now)))

    async def nothing_fails(self) -> None:
        """Every object is as wanted; what met a write of another client, or a watch that lags, is tried again."""
        await self.until(lambda now: not now.count(tables.OBJECTS_STATUS))

    async def imported(self, condition: Callable[[ServiceImport], Any]) -> ServiceImport:
        """The import, once it is so."""
        async with asyncio.timeout(60):
            while True:
                try:
                    found = await self.client.get(SERVICE_IMPORT, "echo", self.namespace)
                except kube.NotFound:
                    pass
                else:
                    if condition(found):
                        return found
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Everything wanted is there, and has been seen to be so."""

        def there(now: Snapshot) -> bool:
            wanted = [row for row in now.all(tables.OBJECTS) if row.body]
            imports = {row.name for row in wanted if row.kind == "ServiceImport"}
            return {row.name for row in now.all(tables.EXPORTS)} <= imports and all(row.seen == "=" for row in wanted)

        await self.until(there)
        await self.reconciler.wait_until_reconciled(self.db.snapshot().revision(tables.OBJECTS))

    async def export_here(self) -> None:
        """A Service with one endpoint, exported."""
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        service = {"metadata": {"name": "echo"}, "spec": {"ports": ports}}
        await self.client.create(SERVICE, self.namespace, service)
        body = {
            "metadata": {"name": "echo-abc", "labels": {"kubernetes.io/service-name": "echo"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.1.5"], "conditions": {"ready": True}}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        await self.client.create(ENDPOINT_SLICE, self.namespace, body)
        await self.client.create(SERVICE_EXPORT, self.namespace, {"metadata": {"name": "echo"}})


def spec(found: ServiceImport) -> ServiceImportSpec:
    return found.spec or ServiceImportSpec()


def has_address(found: ServiceImport) -> bool:
    return bool(spec(found).ips)
