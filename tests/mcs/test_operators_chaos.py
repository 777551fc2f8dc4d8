"""Three whole operators over three etcds and API servers, disturbed at random, come to equal imports.

``ISTHMUS_CHAOS_RUNS`` says how many stories are told, ``ISTHMUS_CHAOS_SEED`` with which the first begins.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_world import TOKEN, ApiServer, until
from etcd_server import EtcdServer
from operator_process import OperatorProcess, Replicas, kubeconfig, leading

from isthmus import kube
from isthmus.config import ClusterSection
from isthmus.etcd import Session, binary
from isthmus.kube.access import Access
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.transport import Transport
from isthmus.mcs import wire
from isthmus.mcs.merge import merge
from isthmus.model.exports import agreed_ports, own_export
from isthmus.model.names import ClusterName, derived, service_name, split
from isthmus.sources.multicluster import export_mark
from isthmus.sources.services import service as service_row

CLUSTERS = ("c1", "c2", "c3")
NAMES = ("echo", "web")
FIRST_SEED = int(os.environ.get("ISTHMUS_CHAOS_SEED", "1"))
RUNS = int(os.environ.get("ISTHMUS_CHAOS_RUNS", "3"))
SETTLE = 5.0
STEPS = 25
LONGEST_PAUSE = 5.0
"""Seconds: one that is held up longer may find that another leads."""


class Wire:
    """A way to somebody's etcd that can be cut: nothing gets through, and what stood is reset."""

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

    def __init__(self, name: str, number: int, client: kube.Client, replicas: Replicas) -> None:
        self.name = name
        self.number = number
        self.client = client
        self._replicas = replicas
        self.operator: OperatorProcess | None = None
        self._held_since: float | None = None
        self.wires: list[Wire] = []
        self.pods: dict[str, list[str]] = {name: [] for name in NAMES}
        """Addresses behind the Services of this cluster."""

    def start(self) -> None:
        if self.operator is None:
            self.operator = self._replicas.start(cluster=ClusterSection(name=self.name, id=self.number))

    async def stop(self) -> None:
        """Told to, so that the lease is given away: after a kill the next would wait for it."""
        self.go_on()
        if self.operator is not None:
            self.operator.send(signal.SIGTERM)
            await asyncio.to_thread(self.operator.process.wait, 10)
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

    async def scale(self, name: str) -> None:
        """The slice of a Service's pods as it is now."""
        body = {
            "metadata": {"labels": {wire.SLICE_SERVICE: name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in self.pods[name]],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "metrics", "port": 9090}],
        }
        await self.client.apply(ENDPOINT_SLICE, "demo", f"{name}-abc", body, field_manager="people")

    def check(self) -> None:
        """The operator has not died by itself."""
        if self.operator is not None and self.operator.process.poll() is not None:
            pytest.fail(f"{self.name}: operator ended\n{self.operator.log[-2000:]}")

    async def seen(self) -> dict[str, Any]:
        """What people see of imports, but for what is this cluster's own: address, readiness.

        The API says nothing of the order of clusters; that ours is by age is tested on a real API server.
        """
        behind = await self._behind()
        found = {}
        for each in await self.client.list(SERVICE_IMPORT, "demo"):
            spec, status = each.spec, each.status
            assert spec is not None
            clusters = frozenset(c.cluster for c in (status.clusters if status else None) or ())
            ports = tuple((p.name, p.port, p.protocol) for p in spec.ports or ())
            name, labels = each.metadata.name, each.metadata.labels or {}
            endpoints = frozenset(behind.pop(split(derived(service_name("demo", name)))[1], ()))
            found[name] = (spec.type, ports, spec.session_affinity, clusters, labels, endpoints)
        return {**found, **({"nobody's": behind} if behind else {})}

    async def _behind(self) -> dict[str, set[tuple[str, str, frozenset[str | None]]]]:
        """By derived Service: source cluster, address and names of ports of each endpoint."""
        found: dict[str, set[tuple[str, str, frozenset[str | None]]]] = {}
        for each in await self.client.list(ENDPOINT_SLICE, "demo", label_selector=wire.SOURCE_CLUSTER):
            labels = each.metadata.labels or {}
            ports = frozenset(port.name for port in each.ports or ())
            known = found.setdefault(labels[wire.SLICE_SERVICE], set())
            known |= {(labels[wire.SOURCE_CLUSTER], e.addresses[0], ports) for e in each.endpoints or () if e.addresses}
        return found


async def expected(clusters: list[Cluster]) -> Mapping[str, Any]:
    """The merge of what the API servers hold, whatever operators say."""
    wanted = {}
    for name in NAMES:
        exports = {}
        for cluster in clusters:
            try:
                service = service_row(await cluster.client.get(SERVICE, name, "demo"))
                mark = export_mark(await cluster.client.get(SERVICE_EXPORT, name, "demo"))
            except kube.NotFound:
                continue
            exports[cluster.name] = own_export(ClusterName(cluster.name), service=service, mark=mark)
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


@asynccontextmanager
async def clusterset(folder: Path) -> AsyncIterator[list[Cluster]]:
    async with AsyncExitStack() as stack:
        etcds = [EtcdServer(binary.find(), folder / name) for name in CLUSTERS]
        for etcd in etcds:
            etcd.start()
            stack.callback(etcd.stop)
        clusters = []
        for number, (name, etcd) in enumerate(zip(CLUSTERS, etcds, strict=True), 1):
            async with Session([etcd.endpoint]) as session:
                await etcd.ready(session)
            server = ApiServer(etcd, folder / f"{name}-apiserver")
            server.start()
            stack.callback(server.kill)
            await asyncio.to_thread(until, server.ready)
            access = Access(server=server.url, tls=server.trust, token=TOKEN)
            client = await stack.enter_async_context(kube.Client(Transport(access)))
            await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
            place = folder / name
            place.mkdir(exist_ok=True)
            section = kubeconfig(server, place)
            made = Replicas(place, etcd=etcd.endpoint, kubernetes=section, state=str(place / "state"))
            stack.callback(made.end)
            cluster = Cluster(name, number, client, made)
            for peer, other in zip(CLUSTERS, etcds, strict=True):
                if peer != name:
                    wire = await stack.enter_async_context(Wire(other.endpoint).laid())
                    (made.peers / peer).write_text(yaml.safe_dump({"endpoints": [wire.endpoint]}))
                    cluster.wires.append(wire)
            clusters.append(cluster)
        for cluster in clusters:
            cluster.start()
        yield clusters


async def disturb(chance: random.Random, clusters: list[Cluster]) -> str:
    """One thing happens; what, as a sentence."""
    cluster, name = chance.choice(clusters), chance.choice(NAMES)
    where = f"{cluster.name} {name}"
    match chance.randrange(12):
        case 0 | 1:
            await cluster.client.delete(SERVICE, "demo", name)
            ports = [{"name": "http", "port": chance.choice([80, 81])}, {"name": "metrics", "port": 9090}]
            spec = {"ports": chance.sample(ports, chance.randrange(1, 3))}
            headless = {"clusterIP": "None"} if chance.random() < 0.3 else {}
            await cluster.client.create(SERVICE, "demo", {"metadata": {"name": name}, "spec": {**spec, **headless}})
            return f"{where}: another Service"
        case 2 | 3:
            labels = {"exportedLabels": {"team": "red"}} if chance.random() < 0.5 else {}
            await cluster.client.apply(SERVICE_EXPORT, "demo", name, {"spec": labels}, field_manager="people")
            return f"{where}: exported"
        case 4:
            await cluster.client.delete(SERVICE_EXPORT, "demo", name)
            return f"{where}: no longer exported"
        case 5 | 6:
            cluster.pods[name] = [f"10.{cluster.number}.1.{n}" for n in chance.sample(range(1, 9), chance.randrange(4))]
            await cluster.scale(name)
            return f"{where}: pods {cluster.pods[name]}"
        case 7:
            await cluster.stop()
            return f"{cluster.name}: operator stopped"
        case 8 | 9:
            cluster.start()
            return f"{cluster.name}: operator started"
        case 10:
            if cluster.held_up:
                cluster.go_on()
                return f"{cluster.name}: operator goes on"
            cluster.hold_up()
            return f"{cluster.name}: operator held up"
        case _:
            wire = chance.choice(cluster.wires)
            wire.cut = not wire.cut
            if wire.cut:
                wire.sever()
            return f"{cluster.name}: a peer is {'cut off' if wire.cut else 'back'}"


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
@pytest.mark.timeout(180)
async def test_operators_come_to_equal_imports_within_five_seconds(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    async with clusterset(tmp_path) as clusters:
        story = []
        for _ in range(STEPS):
            story.append(await disturb(chance, clusters))
            for cluster in clusters:
                cluster.not_too_long()
            await asyncio.sleep(chance.random() * 0.2)  # time passes between what people do
        for cluster in clusters:
            for wire in cluster.wires:
                wire.cut = False
        for cluster in clusters:
            await cluster.at_work()
        wanted = await expected(clusters)
        found: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(SETTLE):
                while not found or any(each != wanted for each in found):
                    for cluster in clusters:
                        cluster.check()
                    found = [await cluster.seen() for cluster in clusters]
                    await asyncio.sleep(0.02)
        except TimeoutError:
            told = "\n".join(story)
            pytest.fail(f"seed {seed}: after\n{told}\nwanted {wanted}\nfound {found}")
