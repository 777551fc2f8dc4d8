"""What a question for an import costs, and who it costs: the kernel, our name server, CoreDNS, CoreDNS behind a cache.

    make bench-dns                                  # SECONDS=5

One node of namespaces and a pod that asks by dnsperf, one question at a time and sixteen clients at once, in one run:

    import    A of an import
    walk      what getent asks with ndots:5: the name with three search domains behind it, then the name itself

CoreDNS has the names in a zone file: less work than its multicluster plugin has. The cache is CoreDNS too, as
NodeLocal DNSCache is. Also the time of the kernel's program alone, by BPF_PROG_TEST_RUN: for an import, for a name with
a search domain behind it, and for a name that is not ours, which is all that such a question pays. Reported, not
asserted; processor seconds count the server alone, and a neighbour on the machine shows in the latencies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import dns.message
import programs
from names_node import Node, within
from names_world import CLUSTER_DNS, SERVER, NamesWorld, packet
from namespaces import ip

from isthmus.model.dns import Name

SECONDS: Final = int(os.environ.get("SECONDS_EACH", "5"))
ZONE: Final = "clusterset.local"
ECHO: Final = f"echo.demo.svc.{ZONE}"
SERVICE: Final = f"_http._tcp.{ECHO}"
SEARCH: Final = ("demo.svc.cluster.local", "svc.cluster.local", "cluster.local")
LOADS: Final = {
    "import": (f"{ECHO} A",),
    "walk": (*(f"{ECHO}.{domain} A" for domain in SEARCH), f"{ECHO} A"),
}
ASKED: Final = {"import, by the kernel": f"{ECHO} A", "SRV, by `dns`": f"{SERVICE} SRV"}
"""What one pod asks, and another floods with."""
ROWS: Final = (Name(ECHO, "A", ("10.96.0.7",)), Name(SERVICE, "SRV", (f"0 100 80 {ECHO}.",)))
CLIENTS: Final = (1, 16)
COREDNS, CACHE = "169.254.7.2", "169.254.7.3"
FLOOD: Final = 1_000
"""Questions of the flooding pod under way at a time."""
REPEAT: Final = 200_000
ZONE_FILE: Final = f"""\
$ORIGIN {ZONE}.
@ 5 IN SOA ns.dns hostmaster 1 7200 1800 86400 5
echo.demo.svc 5 IN A 10.96.0.7
"""
COREFILE: Final = """\
{zone}:53 {{
    bind {address}
    {plugin}
}}
cluster.local:53 {{
    bind {address}
    {other}
}}
"""
DENY: Final = """template ANY ANY {
        rcode NXDOMAIN
    }"""


class Measured(NamedTuple):
    """One load on one server."""

    rate: float
    median: float
    high: float
    cpu: float
    """Microseconds of the server's processor time for a question; below 0: not known."""
    lost: int
    """Questions without an answer in five seconds."""


def main() -> None:
    """Measure all and print a table."""
    with tempfile.TemporaryDirectory() as name, bpffs(Path(name)) as pins:
        directory = Path(name)
        node = Node(directory, pins, ROWS)
        try:
            print("| server | load | clients | questions/s | p50 µs | p99 µs | server CPU µs |")
            print("|---|---|---|---|---|---|---|")
            node.serve()
            assert node.server is not None
            everybody(node, directory, "dns", SERVER, node.server.pid)
            with coredns(node, directory, COREDNS, f"file {zone_file(directory)}", DENY) as origin:
                everybody(node, directory, "CoreDNS", COREDNS, origin)
                behind = f"cache 30\n    forward . {COREDNS}"
                with coredns(node, directory, CACHE, behind, behind) as cache:
                    everybody(node, directory, "CoreDNS, cached", CACHE, cache)
            with contextlib.closing(node.attach()):
                everybody(node, directory, "kernel", CLUSTER_DNS, None)
                floods(node, directory)
            program(node.world)
        finally:
            node.close()


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


def zone_file(directory: Path) -> Path:
    """The zone for CoreDNS."""
    path = directory / "zone"
    path.write_text(ZONE_FILE)
    return path


@contextlib.contextmanager
def coredns(node: Node, directory: Path, address: str, plugin: str, other: str) -> Iterator[int]:
    """A CoreDNS at an address of the node; its process id."""
    ip("-n", node.name, "addr", "add", address, "dev", "lo")
    corefile = directory / f"Corefile-{address}"
    corefile.write_text(COREFILE.format(zone=ZONE, address=address, plugin=plugin, other=other))
    command = ["ip", "netns", "exec", node.name, programs.path("coredns"), f"-conf={corefile}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while node.ask(ECHO, "A", address, patience=0.5) != ["0 10.96.0.7"]:
            if process.poll() is not None:
                assert process.stdout is not None
                raise SystemExit(f"bench-dns: CoreDNS ended: {process.stdout.read()}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def everybody(node: Node, directory: Path, server: str, address: str, pid: int | None) -> None:
    """Every load on a server."""
    for load, names in LOADS.items():
        for clients in CLIENTS:
            found = measure(node, directory, names, address, clients, pid)
            cpu = f"{found.cpu:.1f}" if found.cpu >= 0 else "see below"
            rate = f"{found.rate:,.0f}" if clients > 1 else "–"  # dnsperf sleeps between single questions
            print(
                f"| {server} | {load} | {clients} | {rate} | {found.median:.0f} | {found.high:.0f} | {cpu} |",
                flush=True,
            )


def measure(
    node: Node, directory: Path, questions: tuple[str, ...], address: str, clients: int, pid: int | None
) -> Measured:
    """dnsperf in the pod, for some seconds."""
    before, start = processor(pid), time.monotonic()
    command = dnsperf(node.pod, directory, questions, address, clients)
    done = subprocess.run([*command, "-v"], capture_output=True, text=True, check=True)
    spent, took = processor(pid) - before, time.monotonic() - start
    times = sorted(float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("> "))
    if not times:
        raise SystemExit(f"bench-dns: nobody answers at {address}: {done.stdout[-400:]}")
    per_question = spent / len(times) * 1e6 if pid is not None else -1.0
    rate = len(times) / min(took, SECONDS)
    lost = next(int(line.split()[2]) for line in done.stdout.splitlines() if "Queries lost:" in line)
    return Measured(rate, times[len(times) // 2] * 1e6, times[len(times) * 99 // 100] * 1e6, per_question, lost)


def dnsperf(
    pod: str, directory: Path, questions: tuple[str, ...], address: str, clients: int, *, at_once: int = 0
) -> list[str]:
    """The command that asks from a pod for some seconds, ``at_once`` or as many questions at a time as clients."""
    given = directory / f"questions-{pod}"
    given.write_text("".join(f"{each}\n" for each in questions))
    flags = ["-l", str(SECONDS), "-c", str(clients), "-q", str(at_once or clients), "-d", str(given), "-s", address]
    return ["ip", "netns", "exec", pod, "dnsperf", *flags]


def floods(node: Node, directory: Path) -> None:
    """One client's latencies while another pod asks as much as it can."""
    other = node.plug(2)
    with within(node.name), contextlib.closing(node.links()) as links:
        links.look()
    print("\n| a pod asks | another floods with | p50 µs | p99 µs | lost |\n|---|---|---|---|---|")
    for asked, question in ASKED.items():
        for flooded, flood in {"nothing": "", **ASKED}.items():
            command = dnsperf(other, directory, (flood,), CLUSTER_DNS, 16, at_once=FLOOD) if flood else ["sleep", "0"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as flooding:
                found = measure(node, directory, (question,), CLUSTER_DNS, 1, None)
                flooding.kill()
            print(f"| {asked} | {flooded} | {found.median:.0f} | {found.high:.0f} | {found.lost} |", flush=True)


def processor(pid: int | None) -> float:
    """Seconds of processor time that a process has used."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def program(world: NamesWorld) -> None:
    """The kernel's program alone."""
    print("\n| question | the kernel's program, ns |\n|---|---|")
    for about, name in (
        ("import", ECHO),
        ("import and a search domain", f"{ECHO}.{SEARCH[0]}"),
        ("not ours", "example.com"),
    ):
        frame = packet(dns.message.make_query(name, "A").to_wire())
        world.ingress(frame, repeat=1 if about != "not ours" else REPEAT)
        print(f"| {about} | {once(world, frame) if about != 'not ours' else world.ingress.nanoseconds:,} |")


def once(world: NamesWorld, frame: bytes) -> int:
    """Median of single runs: a run that answers changes the packet, so it cannot be repeated on it."""
    times: list[int] = []
    for _ in range(5_000):
        world.ingress(frame)
        times.append(world.ingress.nanoseconds)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    if shutil.which("dnsperf") is None:
        sys.exit("bench-dns: dnsperf is missing: apt-get install dnsperf")
    main()
