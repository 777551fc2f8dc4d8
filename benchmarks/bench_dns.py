"""What a question costs, and who it costs: the kernel, our name server, CoreDNS, CoreDNS behind a cache.

    make bench-dns                                  # SECONDS=5

One node of namespaces and a pod that asks by dnsperf, one client at an even pace and sixteen at once, in one run:

    import    A of an import
    walk      what getent asks with ndots:5: the name with three search domains behind it, then the name itself
    other     a name that is not ours: a Service of the cluster

CoreDNS has its `multicluster` zone, over a kube-apiserver (both of make kube-tools); it is the node's cluster DNS, so
that questions that the kernel leaves alone go there, as do those that our server passes on. The cache is CoreDNS too,
as NodeLocal DNSCache is. Processor time is the server's alone, for the kernel that of its program on the pod's link
by the kernel's own statistics (BPF_ENABLE_STATS). Then: one pod's latencies while another asks as much as it can, for
a bounded time, at a bounded rate. Latencies depend on the machine. Ends with 1 where an aim is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import statistics as stats
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from answers.names_node import Node, within
from answers.names_world import CLUSTER_DNS, SECTION, SERVER
from clusters.kube_apiserver import KubeApiServer
from datapath_worlds.bpf_testrun import BPF
from machine import programs
from machine.namespaces import ip
from msgspec.structs import replace
from peers.etcd_server import running

from isthmus import kube
from isthmus.etcd import binary
from isthmus.kube.objects.core import NAMESPACE
from isthmus.kube.objects.core import SERVICE as SERVICES
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.model.dns import Name
from isthmus_lab.realapi import definitions

SECONDS: Final = int(os.environ.get("SECONDS_EACH", "5"))
ZONE: Final = "clusterset.local"
ECHO: Final = f"echo.demo.svc.{ZONE}"
SERVICE: Final = f"_http._tcp.{ECHO}"
PLAIN: Final = "plain.demo.svc.cluster.local"
SEARCH: Final = ("demo.svc.cluster.local", "svc.cluster.local", "cluster.local")
LOADS: Final = {
    "import": (f"{ECHO} A",),
    "walk": (*(f"{ECHO}.{domain} A" for domain in SEARCH), f"{ECHO} A"),
    "other": (f"{PLAIN} A",),
}
ASKED: Final = {"import, by the kernel": f"{ECHO} A", "SRV, by `dns`": f"{SERVICE} SRV"}
"""What one pod asks, and another floods with."""
ROWS: Final = (Name(ECHO, "A", ("10.96.0.7",)), Name(SERVICE, "SRV", (f"0 100 80 {ECHO}.",)))
CLIENTS: Final = {"1": ("-c", "1", "-q", "20", "-Q", "1000"), "16": ("-c", "16", "-q", "16")}
"""One is held to 1,000 questions a second: dnsperf sleeps between questions that wait for each other."""
CACHE: Final = "169.254.7.3"
NODE: Final = "10.9.1.1"
"""The node's end of the first pod's link: a kube-apiserver without a default route wants to be given an address."""
FLOOD: Final = ("-Q", "20000", "-q", "1000", "-c", "16")
"""Questions a second of the flooding pod, and how many of them may wait for an answer."""
CALM: Final = ("-Q", "500", "-q", "20", "-c", "1")
"""Those of the pod beside it: within what ``pod_rate`` allows."""
ROUNDS: Final = 5
"""Of each flood, one after the other: a neighbour on the machine shows in single ones."""
PORTS: Final = [{"name": "http", "port": 80, "protocol": "TCP"}]
COREDNS: Final = """\
.:53 {{
    bind {address}
    errors
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        multicluster clusterset.local
        ttl 5
    }}
}}
"""
CACHED: Final = f"""\
.:53 {{{{
    bind {{address}}
    cache 30
    forward . {CLUSTER_DNS}
}}}}
"""
ENABLE_STATS: Final = 32
TIMES_COREDNS, ADDED, HIGH = 20.0, 1.0, 2_000.0
"""Aims: CoreDNS' processor time by the kernel's, µs that a question of others pays, µs of p99 beside a flood."""


class Measured(NamedTuple):
    """One load on one server."""

    rate: float
    median: float
    high: float
    cpu: float
    """Microseconds of the server's processor time for a question."""
    lost: int
    """Questions without an answer in five seconds."""


def main() -> int:
    """Measure all and print tables; 1 where an aim is missed."""
    with tempfile.TemporaryDirectory() as name, bpffs(Path(name)) as pins:
        directory = Path(name)
        node = Node(directory, pins, ROWS, section=replace(SECTION, pod_rate=2_000))
        try:
            with (
                apiserver(node, directory) as kubeconfig,
                coredns(node, directory, CLUSTER_DNS, COREDNS.replace("{kubeconfig}", kubeconfig)) as origin,
                coredns(node, directory, CACHE, CACHED) as cache,
            ):
                missed = measured(node, directory, origin, cache)
        finally:
            node.close()
    for each in missed:
        print(f"missed: {each}")
    return int(bool(missed))


def measured(node: Node, directory: Path, origin: int, cache: int) -> list[str]:
    """Both tables; the aims that were missed, in words."""
    node.serve(upstream=CLUSTER_DNS)
    node.world.alive(86_400)
    assert node.server is not None
    print(
        "| server | load | clients | questions/s | p50 µs | p99 µs | CPU µs a question |\n|---|---|---|---|---|---|---|"
    )
    everybody(node, directory, "`dns`", SERVER, lambda: processor(server_of(node)))
    theirs = everybody(node, directory, "CoreDNS", CLUSTER_DNS, lambda: processor(origin))
    everybody(node, directory, "CoreDNS, cached", CACHE, lambda: processor(cache))
    with contextlib.closing(node.attach()), statistics():
        ours = everybody(node, directory, "kernel", CLUSTER_DNS, lambda: program_time(node.world.program("from_pod")))
        ratios = {load: theirs[load].cpu / ours[load].cpu for load in ("import", "walk")}
        print("\nCoreDNS' processor time by the kernel's: " + ", ".join(f"{k} {v:.0f}" for k, v in ratios.items()))
        highs = floods(node, directory)
    return [
        *(f"{load}: {ratio:.1f} times CoreDNS" for load, ratio in ratios.items() if ratio < TIMES_COREDNS),
        *([f"other: {ours['other'].cpu:.2f} µs added"] if ours["other"].cpu >= ADDED else []),
        *(f"p99 of {about}: {high:.0f} µs" for about, high in highs.items() if high >= HIGH),
    ]


@contextlib.contextmanager
def bpffs(directory: Path) -> Iterator[Path]:
    """A BPF file system of our own."""
    where = directory / "bpffs"
    where.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@contextlib.contextmanager
def apiserver(node: Node, directory: Path) -> Iterator[str]:
    """A kube-apiserver on the node's loopback that has the import; a kubeconfig."""
    with contextlib.ExitStack() as opened:
        with within(node.name):
            etcd = opened.enter_context(running(binary.find(), directory / "etcd"))
            program, advertised = Path(programs.path("kube-apiserver")), f"--advertise-address={NODE}"
            server = KubeApiServer(program, directory / "apiserver", etcd, advertised)
            server.start()
            opened.callback(server.kill)
            asyncio.run(filled(server))
        yield server.section().kubeconfig


async def filled(server: KubeApiServer) -> None:
    """An import, and a Service that is none, once the server serves them."""
    await server.ready()
    imported: dict[str, Any] = {"type": "ClusterSetIP", "ips": ["10.96.0.7"], "ports": PORTS}
    async with await kube.connect(server.section()) as client:
        while True:
            with contextlib.suppress(kube.KubeError):
                await definitions.apply(client)
                break
            await asyncio.sleep(0.2)
        await client.create(NAMESPACE, "", {"metadata": {"name": "demo"}})
        await client.create(SERVICES, "demo", {"metadata": {"name": "plain"}, "spec": {"ports": PORTS}})
        await client.create(SERVICE_IMPORT, "demo", {"metadata": {"name": "echo"}, "spec": imported})


@contextlib.contextmanager
def coredns(node: Node, directory: Path, address: str, configuration: str) -> Iterator[int]:
    """A CoreDNS at an address of the node, once it knows the import; its process id."""
    ip("-n", node.name, "addr", "add", address, "dev", "lo")
    corefile, log = directory / f"Corefile-{address}", directory / f"log-{address}"
    corefile.write_text(configuration.format(address=address))
    command = ["ip", "netns", "exec", node.name, programs.path("coredns"), f"-conf={corefile}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while node.ask(ECHO, "A", address, patience=0.5) != ["0 10.96.0.7"]:
            if process.poll() is not None:
                raise SystemExit(f"bench-dns: CoreDNS ended: {log.read_text()}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def everybody(
    node: Node, directory: Path, server: str, address: str, spent: Callable[[], float]
) -> dict[str, Measured]:
    """Every load on a server; what sixteen clients measured. ``spent``: seconds of processor time until now."""
    found: dict[str, Measured] = {}
    for load, names in LOADS.items():
        for clients, flags in CLIENTS.items():
            command = dnsperf(node.pod, directory, names, address, *flags)
            each = found[load] = measure(command, spent)
            print(
                f"| {server} | {load} | {clients} | {each.rate:,.0f} | {each.median:.0f} | {each.high:.0f} "
                f"| {each.cpu:.2f} |",
                flush=True,
            )
    return found


def measure(command: list[str], spent: Callable[[], float]) -> Measured:
    """What dnsperf sees, and what its questions cost."""
    before, start = spent(), time.monotonic()
    done = subprocess.run([*command, "-v"], capture_output=True, text=True, check=True)
    cost, took = spent() - before, time.monotonic() - start
    times = sorted(float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("> "))
    if not times:
        raise SystemExit(f"bench-dns: nobody answers {command}: {done.stdout[-400:]}")
    rate = len(times) / min(took, SECONDS)
    lost = next(int(line.split()[2]) for line in done.stdout.splitlines() if "Queries lost:" in line)
    high = times[len(times) * 99 // 100]
    return Measured(rate, times[len(times) // 2] * 1e6, high * 1e6, cost / len(times) * 1e6, lost)


def dnsperf(pod: str, directory: Path, questions: tuple[str, ...], address: str, *flags: str) -> list[str]:
    """The command that asks from a pod for some seconds."""
    given = directory / f"questions-{pod}"
    given.write_text("".join(f"{each}\n" for each in questions))
    return ["ip", "netns", "exec", pod, "dnsperf", "-l", str(SECONDS), "-d", str(given), "-s", address, *flags]


def floods(node: Node, directory: Path) -> dict[str, float]:
    """One client's latencies while another pod asks as much as it may; p99 in µs of each pair."""
    other = node.plug(2)
    with within(node.name), contextlib.closing(node.links()) as links:
        links.look()
    pairs = [(asked, flooded) for asked in ASKED for flooded in ("nothing", *ASKED)]
    found: dict[tuple[str, str], list[Measured]] = {pair: [] for pair in pairs}
    for asked, flooded in pairs * ROUNDS:
        flood = ASKED.get(flooded, "")
        command = dnsperf(other, directory, (flood,), CLUSTER_DNS, *FLOOD) if flood else ["true"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flooding:
            calm = dnsperf(node.pod, directory, (ASKED[asked],), CLUSTER_DNS, *CALM)
            found[asked, flooded].append(measure(calm, lambda: 0.0))
            flooding.kill()
    print(f"\nMedians of {ROUNDS} rounds:\n")
    print("| a pod asks | another floods with | p50 µs | p99 µs | lost |\n|---|---|---|---|---|")
    highs: dict[str, float] = {}
    for (asked, flooded), rounds in found.items():
        median, high = (stats.median(numbers) for numbers in zip(*((e.median, e.high) for e in rounds), strict=True))
        lost = sum(each.lost for each in rounds)
        print(f"| {asked} | {flooded} | {median:.0f} | {high:.0f} | {lost} |", flush=True)
        highs[f"{asked}, beside {flooded}"] = float("inf") if lost else high
    return highs


def server_of(node: Node) -> int:
    """The process id of the node's own server; ``ip netns exec`` becomes what it starts."""
    assert node.server is not None
    return node.server.pid


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def statistics() -> Iterator[None]:
    """The kernel measures the time of programs meanwhile."""
    attributes = ctypes.create_string_buffer(struct.pack("=I", 0), 128)  # BPF_STATS_RUN_TIME
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(BPF, ENABLE_STATS, attributes, 128)
    if descriptor < 0:
        raise SystemExit(f"bench-dns: BPF_ENABLE_STATS: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(descriptor)


def program_time(descriptor: int) -> float:
    """Seconds that a program has run while statistics were on."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("run_time_ns:")) / 1e9


if __name__ == "__main__":
    if shutil.which("dnsperf") is None:
        sys.exit("bench-dns: dnsperf is missing: apt-get install dnsperf")
    sys.exit(main())
