"""What it costs to hear other clusters: from cold to planned, one change from etcd to map entry, mirror against direct.

    make bench-clusterset                           # AGENTS=50 for the last story at its full size

Real etcds, two for all peers together; a node's follower, planning and reconciler in a process of its own, with a dict
in the place of the kernel's maps. Reported, not asserted; the load of the machine is printed with the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

from peers.etcd_server import EtcdServer, running

from isthmus import loadbalancer, logs
from isthmus.clusterset.mirror import Mirror
from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.records import endpoints as records
from isthmus.clusterset.records import keys
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.datapath import PlanTarget
from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.services.installed import State
from isthmus.etcd import Put, Session, binary
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, Import, Port, Service
from isthmus.statedb import Database, Derivations, Reconciler

OWN: Final = ClusterSection(name="own", id=511)
"""An id that none of 255 peers has."""
HTTP: Final = Port("http", 8080)
KINDS: Final[tuple[RecordKind, ...]] = ("services",)
CHANGES: Final = 200
PROCESSES: Final = 5
"""Among which many followers are shared out: a process each would measure how Python starts."""


class Shape(NamedTuple):
    """So many peers, each with so many services and endpoints; the services are called alike in all of them."""

    peers: int
    services: int
    endpoints: int

    def __str__(self) -> str:
        return f"{self.peers} peers, each {self.services} services and {self.endpoints} endpoints"


def name(n: int) -> ServiceName:
    """The n-th import."""
    return ServiceName(f"demo/service-{n}")


def address(peer: int, n: int) -> str:
    """The n-th endpoint of a peer."""
    return str(ip_address((10 << 24) + (peer << 14) + n + 1))


def record(shape: Shape, peer: int, n: int, *, more: Sequence[str] = ()) -> Put:
    """The record of the n-th service of a peer."""
    cluster, service = ClusterName(f"c{peer}"), derived(name(n))
    own = [address(peer, each) for each in range(n, shape.endpoints, shape.services)]
    told = [Endpoint(each, (HTTP,)) for each in (*own, *more)]
    value = records.encode(service, cluster=cluster, cluster_id=peer, endpoints=told, frontends={})
    return Put(keys.record("services", cluster, service), value)


async def fill(session: Session, shape: Shape, peers: Sequence[int]) -> int:
    """Everything that peers say; gives the bytes of records."""
    size = 0
    for peer in peers:
        puts = [record(shape, peer, n) for n in range(shape.services)]
        size += sum(len(put.key) + len(put.value) for put in puts)
        for start in range(0, len(puts), 20):
            await session.txn((), puts[start : start + 20])
        cluster = ClusterName(f"c{peer}")
        said = {"id": peer, "capabilities": {"syncedCanaries": True, "maxConnectedClusters": 255}}
        await session.put(keys.config(cluster), json.dumps(said).encode())
        await session.put(keys.canary("services", cluster), b"now")
    return size


class Watched(DictMaps):
    """Maps that tell when some bytes are written into them."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = b""
        self.written = asyncio.Event()

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Any:
        """Write entries."""
        if self.wanted and any(self.wanted in key + value for key, value in items):
            self.written.set()
        return super().put(name, items)


class Node:
    """What an agent makes of peers: rows, plans, map entries."""

    def __init__(self, shape: Shape, directory: str) -> None:
        self.shape = shape
        parts = loadbalancer.derived(ClusterName(OWN.name), "n1", services="multicluster")
        involved = {table.name: table for each in parts for table in (*each.tables, *each.reads)}
        self.db = Database(*{**involved, tables.CLUSTERS.name: tables.CLUSTERS}.values())
        with self.db.write() as txn:
            for n in range(shape.services):
                ip = str(ip_address((10 << 24) + (96 << 16) + n + 1))
                port = (Port("http", 80),)
                txn.put(tables.IMPORTS, Import(name=name(n), ports=port, ips=(ip,)))
                service = derived(name(n))
                row = Service(name=service, source="kubernetes", ports=port, cluster_ips=(ip,), import_of=name(n))
                txn.put(tables.SERVICES, row)
        section = ClustersetSection(directory=directory)
        self.follower = Follower(self.db, cluster=OWN, section=section, kinds=KINDS)
        self.derivations = Derivations(self.db, *parts)
        self.maps = Watched()
        self.plans = Reconciler(self.db, tables.PLANS, PlanTarget(self.maps, State(), grace=0.0))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At work until the end of the block."""
        work = [self.follower.run(), self.derivations.run(), self.plans.run()]
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def heard(self) -> None:
        """Return when every peer is ready."""
        await self.db.until(
            lambda now: sum(row.state == "ready" for row in now.all(tables.CLUSTERS)) > self.shape.peers
        )

    async def planned(self) -> None:
        """Return when everything that peers say is in the maps."""
        await self.heard()
        total = self.shape.peers * self.shape.endpoints
        await self.db.until(lambda now: now.count(tables.BACKENDS) >= total)
        await self.db.until(lambda now: now.initialized(tables.PLANS))
        await self.plans.wait_until_reconciled(self.db.snapshot().revision(tables.PLANS))

    async def change(self, session: Session, n: int) -> float:
        """Milliseconds from a write in a peer's etcd to the entry in a map."""
        more = str(ip_address((172 << 24) + (16 << 16) + n + 1))
        put = record(self.shape, 1, n % self.shape.services, more=(more,))
        self.maps.wanted = ip_address(more).packed
        self.maps.written.clear()
        began = time.perf_counter()
        await session.put(put.key, put.value)
        await self.maps.written.wait()
        return (time.perf_counter() - began) * 1000


def resident(pid: int | str = "self") -> float:
    """Megabytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def node(shape: Shape, directory: str, endpoint: str) -> None:
    """The measured process."""
    async with Session([endpoint]) as session:
        await session.status()
        empty = resident()
        began, cpu = time.perf_counter(), time.process_time()
        measured = Node(shape, directory)
        async with measured.running():
            await measured.planned()
            took, used = time.perf_counter() - began, time.process_time() - cpu
            grown = resident() - empty
            each = grown / shape.peers
            print(f"  cold to planned: {took:.2f} s, {used:.2f} s of the processor")
            print(f"  RSS {resident():.0f} MB, {grown:.0f} MB above an empty process: {each:.1f} MB a cluster")
            changes = []
            for n in range(CHANGES):
                changes.append(await measured.change(session, n))
                await asyncio.sleep(0.01)
            p50, p99 = statistics.median(changes), statistics.quantiles(changes, n=100)[98]
            print(f"  one endpoint, write to map entry: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {max(changes):.1f} ms")


async def listeners(shape: Shape, directory: str, count: int) -> None:
    """Some of many agents: the parts of each that listen, with connections and tables of their own, and no plans."""
    nodes = [Node(shape, directory) for _ in range(count)]
    tasks = [asyncio.create_task(each.follower.run()) for each in nodes]
    for each in nodes:
        await each.heard()
    print("heard", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class Etcds:
    """The etcds of peers, which share them, and the directory that names them."""

    def __init__(self, folder: Path, servers: Sequence[EtcdServer], shape: Shape) -> None:
        self.servers = servers
        self.shape = shape
        self.directory = folder / "peers"
        self.directory.mkdir()
        for peer in range(1, shape.peers + 1):
            self.point(peer, servers[peer % len(servers)].endpoint)

    def point(self, peer: int, endpoint: str) -> None:
        """A peer is to be heard there."""
        (self.directory / f"c{peer}").write_text(f"endpoints: ['{endpoint}']\n")

    async def fill(self) -> int:
        """Let all peers speak; gives the bytes of records."""
        size = 0
        for place, server in enumerate(self.servers):
            async with Session([server.endpoint]) as session:
                await server.ready(session)
                here = [peer for peer in range(1, self.shape.peers + 1) if peer % len(self.servers) == place]
                size += await fill(session, self.shape, here)
        return size


@contextlib.asynccontextmanager
async def world(shape: Shape) -> AsyncIterator[tuple[Etcds, Path]]:
    """Etcds full of a shape."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-clusterset-") as place, contextlib.ExitStack() as ending:
        folder = Path(place)
        servers = [ending.enter_context(running(binary.find(), folder / f"etcd{n}")) for n in range(2)]
        etcds = Etcds(folder, servers, shape)
        size = await etcds.fill()
        print(f"{shape}: {size / 1e6:.1f} MB of records; load {os.getloadavg()[0]:.1f}", flush=True)
        yield etcds, folder


async def child(*arguments: str) -> asyncio.subprocess.Process:
    """This program again."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdin=pipe, stdout=pipe)


async def cold(shape: Shape) -> None:
    """One node from cold to planned, and changes."""
    async with world(shape) as (etcds, _):
        process = await child("node", *map(str, shape), str(etcds.directory), etcds.servers[1].endpoint)
        said, _ = await process.communicate()
        print(said.decode(), flush=True)


async def many(shape: Shape, agents: int) -> None:
    """The listening parts of many agents that each listen to every peer, and the same behind a mirror."""
    async with world(shape) as (etcds, folder):
        with running(binary.find(), folder / "own") as own:
            await crowd("direct", etcds, agents, etcds.servers)
            async with Session([own.endpoint]) as session:
                await own.ready(session)
                mirror = Mirror(session, cluster=OWN, section=ClustersetSection(directory=str(etcds.directory)))
                task = asyncio.create_task(mirror.run())
                last = keys.canary("services", ClusterName(f"c{shape.peers}"), cached=True)
                while await session.get(last) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                (folder / "local").mkdir()
                local = Etcds(folder / "local", [own], shape)
                await crowd("mirror", local, agents, [*etcds.servers, own])
                task.cancel()
                await asyncio.wait([task])


async def crowd(how: str, etcds: Etcds, agents: int, servers: Sequence[EtcdServer]) -> None:
    """Start them, wait until each has heard all, and tell what that took of the etcds."""
    before, began = [cpu(server) for server in servers], time.perf_counter()
    shares = [len(range(n, agents, PROCESSES)) for n in range(min(agents, PROCESSES))]
    processes = [await child("listen", *map(str, etcds.shape), str(etcds.directory), str(n)) for n in shares]
    for process in processes:
        assert process.stdout is not None
        await process.stdout.readline()
    took = time.perf_counter() - began
    used = [cpu(server) - start for server, start in zip(servers, before, strict=True)]
    memory = [resident(process.pid) for process in processes]
    print(f"  {how}: {agents} followers in {len(processes)} processes have heard all after {took:.1f} s;", end=" ")
    print(f"{sum(memory) / agents:.0f} MB each")
    told = ", ".join(f"{seconds:.1f} s and {resident(pid(s)):.0f} MB" for seconds, s in zip(used, servers, strict=True))
    print(f"    etcds: {told}", flush=True)
    for process in processes:
        await process.communicate(b"")


def pid(server: EtcdServer) -> int:
    """Its process."""
    assert server._process is not None
    return server._process.pid


def cpu(server: EtcdServer) -> float:
    """Seconds of the processor that it has used."""
    fields = Path(f"/proc/{pid(server)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def everything(agents: int) -> None:
    """All stories."""
    print(f"{os.cpu_count()} processors, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 1e9:.0f} GB\n")
    await cold(Shape(10, 300, 4_000))
    await cold(Shape(255, 100, 200))
    await many(Shape(10, 300, 4_000), agents)


def main() -> int:
    parser = argparse.ArgumentParser(description="What it costs to hear other clusters.")
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    logs.configure(level="error", form="text")  # what a child prints is its answer
    match wanted.part:
        case ["node", peers, services, ends, directory, endpoint]:
            asyncio.run(node(Shape(int(peers), int(services), int(ends)), directory, endpoint))
        case ["listen", peers, services, ends, directory, count]:
            asyncio.run(listeners(Shape(int(peers), int(services), int(ends)), directory, int(count)))
        case _:
            asyncio.run(everything(wanted.agents))
    return 0


if __name__ == "__main__":
    sys.exit(main())
