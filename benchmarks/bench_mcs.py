"""From cold start to all ServiceImports written: an operator's first minutes in a clusterset that exists.

    make bench-mcs EXPORTS=2000 CLUSTERS=5

One cluster of several, over the small API server of the lab: it exports so many Services, and so does every other,
under the same names. The others are records in an etcd. The operator is a process as deployed; its clock runs from its
start to the moment at which every import names all clusters and has an address. Reported, not asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from apiserver_world import TOKEN, serving
from clusterset_peers import announce, export, service
from etcd_server import EtcdServer, running
from operator_process import OperatorProcess, kubeconfig, replicas

from isthmus import kube
from isthmus.etcd import Session, binary
from isthmus.kube.access import Access
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.discovery import ENDPOINT_SLICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT, SERVICE_IMPORT
from isthmus.kube.transport import Transport
from isthmus.model.names import derived, service_name

AT_ONCE = 32
PORTS = [{"name": "http", "port": 80, "protocol": "TCP"}]


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


async def peers(session: Session, folder: Path, names: list[str], *, clusters: int, endpoint: str) -> None:
    """The other clusters: what they export, with one endpoint each, and where it is to be read."""
    for peer in range(2, clusters + 1):
        cluster = f"c{peer}"
        jobs: list[Callable[[], Awaitable[Any]]] = []
        for number, name in enumerate(names):
            address = f"10.{peer}.{number // 250}.{number % 250 + 1}"
            there = derived(service_name("demo", name))
            ports = [{"name": "http", "protocol": "TCP", "port": 80}]
            jobs.append(lambda c=cluster, n=name, p=ports: export(session, c, f"demo/{n}", ports=p))  # type: ignore[misc]
            jobs.append(lambda c=cluster, t=there, a=address, p=peer: service(session, c, t, a, number=p))  # type: ignore[misc]
        await side_by_side(jobs)
        await announce(session, cluster, peer)
        (folder / cluster).write_text(f"endpoints: ['{endpoint}']\n")


async def written(client: kube.Client, clusters: int) -> tuple[int, int]:
    """How many imports name all clusters and have an address, and how many slices stand behind them."""
    imports = await client.list(SERVICE_IMPORT, "demo")
    whole = [i for i in imports if i.spec and i.spec.ips and i.status and len(i.status.clusters or ()) == clusters]
    selector = "multicluster.kubernetes.io/source-cluster"
    slices = await client.list(ENDPOINT_SLICE, "demo", label_selector=selector) if len(whole) == len(imports) else []
    return len(whole), len(slices)


def cpu(process: OperatorProcess) -> tuple[float, float]:
    """Seconds of the processor that it took, and the most memory it had, in MB."""
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / 100
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return ticks, int(peak.split()[1]) / 1024


async def run(*, exports: int, clusters: int, folder: Path, theirs: EtcdServer) -> None:
    names = [f"svc-{number}" for number in range(exports)]
    with serving(folder / "own") as server:
        access = Access(server=server.url, tls=server.trust, token=TOKEN)
        async with kube.Client(Transport(access)) as client, Session([theirs.endpoint]) as session:
            await theirs.ready(session)
            section = kubeconfig(server, folder)
            with replicas(folder, etcd=server.etcd.endpoint, kubernetes=section) as operators:
                began = time.monotonic()
                await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
                await side_by_side(lambda n=n, i=i: offer(client, n, i) for i, n in enumerate(names))  # type: ignore[misc]
                await peers(session, operators.peers, names, clusters=clusters, endpoint=theirs.endpoint)
                print(f"{exports} exports in each of {clusters} clusters made in {time.monotonic() - began:.1f} s")
                began = time.monotonic()
                process = operators.start()
                done, slices, shown = 0, 0, 0.0
                while done < exports or slices < exports * clusters:
                    assert process.process.poll() is None, process.log
                    await asyncio.sleep(1.0)  # asking costs the server time, too
                    done, slices = await written(client, clusters)
                    if time.monotonic() - shown > 10:
                        shown = time.monotonic()
                        print(f"{time.monotonic() - began:6.1f} s: {done} imports, {slices} slices", flush=True)
                took = time.monotonic() - began
                seconds, peak = cpu(process)
                print(f"all {exports} ServiceImports with {slices} EndpointSlices after {took:.1f} s")
                print(f"the operator: {seconds:.1f} s of the processor, {peak:.0f} MB at most")


def main() -> int:
    parser = argparse.ArgumentParser(description="From cold start to all ServiceImports written.")
    parser.add_argument("--exports", type=int, default=2000)
    parser.add_argument("--clusters", type=int, default=5)
    wanted = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-mcs-") as folder:
        place = Path(folder)
        with running(binary.find(), place / "theirs") as theirs:
            asyncio.run(run(exports=wanted.exports, clusters=wanted.clusters, folder=place, theirs=theirs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
