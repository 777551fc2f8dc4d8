"""Clusters for stories of disturbed operators: what people do in one, how its ways to others are cut, what is seen."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from clusters.apiserver_world import ApiServer, until
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import OperatorProcess, Replicas, leading
from machine import programs
from peers.etcd_server import EtcdServer

from isthmus import kube
from isthmus.config import ClusterSection, KubernetesSection
from isthmus.etcd import Session
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.mcs import words
from isthmus.mcs.exports import agreed_ports, export_of
from isthmus.mcs.merge import merge
from isthmus.model.names import ClusterName, derived, service_name, split
from isthmus.sources.multicluster import export_mark
from isthmus.sources.services import service as service_row
from isthmus_lab.realapi import definitions

CLUSTERS = ("c1", "c2", "c3")
NAMES = ("echo", "web")
LONGEST_PAUSE = 5.0
"""Seconds: one that is held up longer may find that another leads."""


class Wire:
    """A connection to an etcd that can be cut: nothing gets through, and what stood is reset."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._open: set[asyncio.StreamWriter] = set()
        self.cut = False
        self.endpoint = ""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Wire]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.sever()

    def sever(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._to)
        self._open |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._open -= {writer, back}
            writer.transport.abort()
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class Cluster:
    """One cluster: its API server for people, its operator's process, and its ways to the others."""

    def __init__(self, name: str, number: int, client: kube.Client, replicas: Replicas, *, namespace: str) -> None:
        self.name = name
        self.number = number
        self.client = client
        self.namespace = namespace
        self._replicas = replicas
        self.operator: OperatorProcess | None = None
        self._held_since: float | None = None
        self.wires: list[Wire] = []
        self.pods: dict[str, list[str]] = {name: [] for name in NAMES}
        """Addresses behind the Services of this cluster."""

    def start(self) -> None:
        if self.operator is None:
            self.operator = self._replicas.start(cluster=ClusterSection(name=self.name, id=self.number))

    async def end(self, how: signal.Signals) -> None:
        """On SIGTERM it gives its lease away; killed, it leaves it to run out."""
        self.go_on()
        if self.operator is not None:
            self.operator.send(how)
            await asyncio.to_thread(self.operator.process.wait, 60)
            self.operator = None

    def hold_up(self) -> None:
        if self.operator is not None:
            self.operator.send(signal.SIGSTOP)
            self._held_since = time.monotonic()

    def go_on(self) -> None:
        if self.operator is not None and self._held_since is not None:
            self.operator.send(signal.SIGCONT)
        self._held_since = None

    @property
    def held_up(self) -> bool:
        return self._held_since is not None

    def not_too_long(self) -> None:
        if self._held_since is not None and time.monotonic() - self._held_since > LONGEST_PAUSE:
            self.go_on()

    async def at_work(self) -> None:
        """The operator leads."""
        self.go_on()
        self.start()
        assert self.operator is not None
        await leading(self.operator)

    async def clear(self) -> None:
        """Nothing is exported any more; what follows from it is for the operators of another story to take away."""
        for name in NAMES:
            await self.client.delete(SERVICE_EXPORT, self.namespace, name)

    async def scale(self, name: str) -> None:
        """The slice of a Service's pods as it is now."""
        body = {
            "metadata": {"labels": {words.SLICE_SERVICE: name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in self.pods[name]],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "metrics", "port": 9090}],
        }
        await self.client.apply(ENDPOINT_SLICE, self.namespace, f"{name}-abc", body, field_manager="people")

    def check(self) -> None:
        """The operator has not died by itself."""
        if self.operator is not None and self.operator.process.poll() is not None:
            pytest.fail(f"{self.name}: operator ended\n{self.operator.log[-2000:]}")

    async def seen(self) -> dict[str, Any]:
        """What people see of imports, but for what is this cluster's own: address, readiness.

        The API defines no order of clusters; that ours is by age is tested on a real API server.
        """
        behind = await self._behind()
        found = {}
        for each in await self.client.list(SERVICE_IMPORT, self.namespace):
            spec, status = each.spec, each.status
            assert spec is not None
            clusters = frozenset(c.cluster for c in (status.clusters if status else None) or ())
            ports = tuple((p.name, p.port, p.protocol) for p in spec.ports or ())
            name, labels = each.metadata.name, each.metadata.labels or {}
            endpoints = frozenset(behind.pop(split(derived(service_name(self.namespace, name)))[1], ()))
            found[name] = (spec.type, ports, spec.session_affinity, clusters, labels, endpoints)
        return {**found, **({"nobody's": behind} if behind else {})}

    async def _behind(self) -> dict[str, set[tuple[str, str, frozenset[str | None]]]]:
        """By derived Service: source cluster, address and names of ports of each endpoint."""
        found: dict[str, set[tuple[str, str, frozenset[str | None]]]] = {}
        for each in await self.client.list(ENDPOINT_SLICE, self.namespace, label_selector=words.SOURCE_CLUSTER):
            labels = each.metadata.labels or {}
            ports = frozenset(port.name for port in each.ports or ())
            known = found.setdefault(labels[words.SLICE_SERVICE], set())
            known |= {
                (labels[words.SOURCE_CLUSTER], e.addresses[0], ports) for e in each.endpoints or () if e.addresses
            }
        return found


async def expected(clusters: list[Cluster]) -> Mapping[str, Any]:
    """The merge of what the API servers hold, whatever operators say."""
    wanted = {}
    for name in NAMES:
        exports = {}
        for cluster in clusters:
            try:
                service = service_row(await cluster.client.get(SERVICE, name, cluster.namespace))
                mark = export_mark(await cluster.client.get(SERVICE_EXPORT, name, cluster.namespace))
            except kube.NotFound:
                continue
            exports[cluster.name] = export_of(mark, service, cluster=ClusterName(cluster.name))
        merged = merge(exports.values())
        if merged is not None:
            ports = tuple((p.name or None, p.port, p.protocol) for p in merged.ports)
            endpoints = frozenset(
                (cluster.name, address, frozenset(agreed))
                for cluster in clusters
                if cluster.name in exports and (agreed := agreed_ports(exports[cluster.name], merged))
                for address in cluster.pods[name]
            )
            clusters_of = frozenset(merged.clusters)
            wanted[name] = (merged.type, ports, merged.affinity, clusters_of, dict(merged.labels), endpoints)
    return wanted


class Served(NamedTuple):
    """What is there before and after every story: a cluster's API server and etcd."""

    etcd: EtcdServer
    section: KubernetesSection


def lab_server(etcd: EtcdServer, folder: Path, stack: ExitStack) -> KubernetesSection:
    """The lab's."""
    server = ApiServer(etcd, folder)
    server.start()
    stack.callback(server.kill)
    until(server.ready)
    return server.section


def real_server(etcd: EtcdServer, folder: Path, stack: ExitStack, *flags: str) -> KubernetesSection:
    """A kube-apiserver."""
    server = KubeApiServer(Path(programs.path("kube-apiserver")), folder, etcd, *flags)
    server.start()
    stack.callback(server.kill)
    return server.section()


async def defined(client: kube.Client) -> None:
    """Exports and imports are served, by a server that is ready."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await definitions.apply(client)
            except kube.KubeError:
                await asyncio.sleep(0.2)


@asynccontextmanager
async def clusterset(served: list[Served], folder: Path, *, namespace: str) -> AsyncIterator[list[Cluster]]:
    """The clusters with an operator each, and a namespace of the story's own."""
    async with AsyncExitStack() as stack:
        clusters = []
        for number, (name, (etcd, section)) in enumerate(zip(CLUSTERS, served, strict=True), 1):
            async with Session([etcd.endpoint]) as session:
                await etcd.ready(session)
            client = await stack.enter_async_context(await kube.connect(section))
            await defined(client)
            await client.create(NAMESPACE, "", {"metadata": {"name": namespace}})
            place = folder / name
            place.mkdir(parents=True)
            made = Replicas(place, etcd=etcd.endpoint, kubernetes=section, state=str(place / "state"))
            stack.callback(made.end)
            cluster = Cluster(name, number, client, made, namespace=namespace)
            for peer, (other, _) in zip(CLUSTERS, served, strict=True):
                if peer != name:
                    way = await stack.enter_async_context(Wire(other.endpoint).laid())
                    (made.peers / peer).write_text(yaml.safe_dump({"endpoints": [way.endpoint]}))
                    cluster.wires.append(way)
            clusters.append(cluster)
        for cluster in clusters:
            cluster.start()
        yield clusters
        for cluster in clusters:
            await cluster.clear()
            await cluster.end(signal.SIGTERM)
