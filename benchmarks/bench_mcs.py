"""From cold start to all ServiceImports written: an operator's first minutes in a clusterset that exists.

    make bench-mcs EXPORTS=2000 CLUSTERS=5 APISERVER=real

One cluster of several, over the small API server of the lab or a real one: it exports so many Services, and so does
every other, under the same names. The others are records in an etcd. The operator is a process as deployed; its clock
runs from its start to the moment at which every import names all clusters and has an address, and every slice stands.
Ten seconds in, a peer exports one more: how long that one takes says whether small work waits for large. What is
written is seen in the API server's etcd, so that looking costs the server nothing. Reported, not asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from clusters.apiserver_world import serving
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import Replicas, replicas
from peers.clusterset_peers import announce, export, service
from peers.etcd_server import EtcdServer, running

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.etcd import Session, binary
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.model.names import derived, service_name
from isthmus_lab.apiserver.storage import REGISTRY
from isthmus_lab.realapi import binaries, definitions

AT_ONCE = 32
PORTS = [{"name": "http", "port": 80, "protocol": "TCP"}]
LATE = "late"
LATE_AFTER = 10.0
"""Seconds after its start at which the operator hears of one more export."""


class ApiServer(NamedTuple):
    """The API server of the operator's cluster, and where it keeps things in its etcd."""

    section: KubernetesSection
    etcd: EtcdServer
    imports: str
    slices: str
    process: subprocess.Popen[bytes] | None


@asynccontextmanager
async def small(folder: Path) -> AsyncIterator[ApiServer]:
    """The lab's."""
    with serving(folder / "own") as server:
        imports, slices = "serviceimports.multicluster.x-k8s.io", "endpointslices.discovery.k8s.io"
        yield ApiServer(server.section, server.etcd, f"{REGISTRY}{imports}/", f"{REGISTRY}{slices}/", server._process)


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[ApiServer]:
    """The one that ``make kube-tools`` builds."""
    path = binaries.find(binaries.SERVER)
    assert path is not None, "no kube-apiserver: run `make kube-tools`"
    with running(binary.find(), folder / "own-etcd") as etcd:
        server = KubeApiServer(path, folder / "own", etcd)
        server.start()
        try:
            await server.ready()
            async with await kube.connect(server.section()) as client:
                await defined(client)
            imports, slices = "/registry/multicluster.x-k8s.io/serviceimports/", "/registry/endpointslices/"
            yield ApiServer(server.section(), etcd, imports, slices, server._process)
        finally:
            server.kill()


async def defined(client: kube.Client) -> None:
    """The definitions of exports and imports, once they are served."""
    while True:
        try:
            return await definitions.apply(client)
        except kube.KubeError:
            await asyncio.sleep(0.2)


async def side_by_side(jobs: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """All of them, so many at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(job: Callable[[], Awaitable[Any]]) -> None:
        async with slots:
            await job()

    await asyncio.gather(*(one(job) for job in jobs))


async def offer(client: kube.Client, name: str, number: int) -> None:
    """A Service of the own cluster with one endpoint, exported."""
    await client.create(SERVICE, "demo", {"metadata": {"name": name}, "spec": {"ports": PORTS}})
    body = {
        "metadata": {"name": f"{name}-abc", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.1.{number // 250}.{number % 250 + 1}"], "conditions": {"ready": True}}],
        "ports": [{**PORTS[0], "port": 8080}],
    }
    await client.create(ENDPOINT_SLICE, "demo", body)
    await client.create(SERVICE_EXPORT, "demo", {"metadata": {"name": name}})


async def abroad(session: Session, peer: int, name: str, number: int) -> None:
    """What a peer tells of one of its exports, with one endpoint."""
    address = f"10.{peer}.{number // 250}.{number % 250 + 1}"
    await service(session, f"c{peer}", derived(service_name("demo", name)), address, number=peer)
    await export(session, f"c{peer}", f"demo/{name}", ports=[{"name": "http", "protocol": "TCP", "port": 80}])


async def peers(session: Session, folder: Path, names: list[str], *, clusters: int, endpoint: str) -> None:
    """The other clusters, and where they are to be read."""
    for peer in range(2, clusters + 1):
        await side_by_side(lambda n=n, i=i, p=peer: abroad(session, p, n, i) for i, n in enumerate(names))  # type: ignore[misc]
        await announce(session, f"c{peer}", peer)
        (folder / f"c{peer}").write_text(f"endpoints: ['{endpoint}']\n")


class Written:
    """What stands in the API server's etcd, and since when: seconds after the operator's start."""

    def __init__(self, clusters: int) -> None:
        self._clusters = clusters
        self.began = time.monotonic()
        self.imports: dict[str, float] = {}
        self.slices = 0

    async def follow(self, session: Session, own: ApiServer) -> None:
        """See what is written, for ever."""
        here = (await session.list(own.imports)).revision
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._imports(session, own.imports, here + 1))
            tasks.create_task(self._slices(session, own.slices, here + 1))

    async def _imports(self, session: Session, prefix: str, revision: int) -> None:
        async for batch in session.watch(prefix, revision):
            for event in batch.events:
                name = event.key.rpartition("/")[2]
                if event.kv is not None and name not in self.imports and self._whole(name, event.kv.value):
                    self.imports[name] = time.monotonic() - self.began

    async def _slices(self, session: Session, prefix: str, revision: int) -> None:
        async for batch in session.watch(prefix, revision):
            self.slices += sum(each.kv is not None and each.prev_kv is None for each in batch.events)

    def _whole(self, name: str, value: bytes) -> bool:
        """Whether an import names everybody and has an address."""
        body = msgspec.json.decode(value)
        clusters = body.get("status", {}).get("clusters", ())
        return bool(body["spec"].get("ips")) and len(clusters) == (1 if name == LATE else self._clusters)

    def course(self) -> str:
        """When the imports were whole."""
        times = sorted(each for name, each in self.imports.items() if name != LATE)
        part = {f"{percent} %": times[(len(times) - 1) * percent // 100] for percent in (0, 50, 90, 100)}
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in part.items())


def processor(process: subprocess.Popen[bytes] | None) -> float:
    """Seconds of the processor that a process has taken."""
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: subprocess.Popen[bytes]) -> float:
    """The most memory that a process had, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


async def measured(own: ApiServer, theirs: Session, operators: Replicas, *, exports: int, clusters: int) -> None:
    """Start the operator, and tell how it goes until all is written."""
    async with Session([own.etcd.endpoint]) as session, asyncio.TaskGroup() as tasks:
        before = [processor(own.process), processor(own.etcd._process)]
        seen = Written(clusters)
        following = tasks.create_task(seen.follow(session, own))
        process = operators.start()
        late = shown = 0.0
        while len(seen.imports) < exports + 1 or seen.slices < exports * clusters + 1:
            assert process.process.poll() is None, process.log
            await asyncio.sleep(0.1)
            now = time.monotonic() - seen.began
            if now > LATE_AFTER and not late:
                late = now
                await abroad(theirs, 2, LATE, 0)
            if now > shown + 10:
                shown = now
                print(f"{now:6.1f} s: {len(seen.imports)} imports, {seen.slices} slices", flush=True)
        print(f"all {exports} ServiceImports with {seen.slices} EndpointSlices after {now:.1f} s: {seen.course()}")
        print(f"one more export, heard of after {late:.1f} s, was imported {seen.imports[LATE] - late:.1f} s later")
        own_server, own_etcd = processor(own.process) - before[0], processor(own.etcd._process) - before[1]
        print(
            f"processor: operator {processor(process.process):.1f} s ({memory(process.process):.0f} MB at most),"
            f" API server {own_server:.1f} s, its etcd {own_etcd:.1f} s; load {os.getloadavg()[0]:.1f}"
        )
        following.cancel()


async def run(*, exports: int, clusters: int, folder: Path, theirs: EtcdServer, which: str) -> None:
    names = [f"svc-{number}" for number in range(exports)]
    async with (
        (real if which == "real" else small)(folder) as own,
        await kube.connect(own.section) as client,
        Session([theirs.endpoint]) as session,
    ):
        await theirs.ready(session)
        began = time.monotonic()
        with replicas(folder, etcd=own.etcd.endpoint, kubernetes=own.section) as operators:
            await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
            await side_by_side(lambda n=n, i=i: offer(client, n, i) for i, n in enumerate(names))  # type: ignore[misc]
            await peers(session, operators.peers, names, clusters=clusters, endpoint=theirs.endpoint)
            print(f"{exports} exports in each of {clusters} clusters made in {time.monotonic() - began:.1f} s")
            await measured(own, session, operators, exports=exports, clusters=clusters)


def main() -> int:
    parser = argparse.ArgumentParser(description="From cold start to all ServiceImports written.")
    parser.add_argument("--exports", type=int, default=2000)
    parser.add_argument("--clusters", type=int, default=5)
    parser.add_argument("--apiserver", choices=["small", "real"], default="small")
    wanted = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-mcs-") as folder:
        place = Path(folder)
        with running(binary.find(), place / "theirs") as theirs:
            asyncio.run(
                run(
                    exports=wanted.exports,
                    clusters=wanted.clusters,
                    folder=place,
                    theirs=theirs,
                    which=wanted.apiserver,
                )
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
