"""Names on a node with many pods, and under questions without end.

    make scale-names                                # PODS=1000 NAMES=5000
    make soak-names                                 # QUESTIONS=10000000

scale: every pod has a network namespace and a link of its own; each asks for names, one address each, and gets them
right. soak: dnsperf asks as fast as it is answered, nine in ten questions by the kernel and the rest by the server;
what processes and maps hold afterwards is compared with what they held after the first tenth. Both end with 1 where
something is wrong. Times are reported and depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import dns.message
from answers.names_node import Node, within
from answers.names_world import CLUSTER_DNS, CLUSTER_DNS6
from bench_dns import ECHO, ROWS, SERVICE, ZONE, bpffs

from isthmus.datapath.names.manifest import MAPS
from isthmus.model.dns import Name

MIX: Final = (
    *(f"{ECHO} A" for _ in range(10)), *(f"{ECHO}.demo.svc.cluster.local A" for _ in range(4)), f"{ECHO} AAAA",
    f"{ECHO} MX", f"absent.demo.svc.{ZONE} A", f"demo.svc.{ZONE} A", f"{SERVICE} SRV", f"dns-version.{ZONE} TXT",
)  # fmt: skip
GROWTH: Final = 2048
"""kB that the server may grow by after the first tenth: its allocator's, no matter how many questions there are."""
ASKED_BY_EACH: Final = 5
HASHES: Final = ("names", "dns_servers", "steered", "tc_namespaces", "tc_probes", "pod_allowances")


@contextlib.contextmanager
def node(rows: tuple[Name, ...]) -> Iterator[Node]:
    """A node with these names."""
    with tempfile.TemporaryDirectory() as name, bpffs(Path(name)) as pins:
        made = Node(Path(name), pins, rows)
        try:
            yield made
        finally:
            made.close()


def resident(pid: int) -> int:
    """Memory of a process in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def entries(on: Node) -> dict[str, int]:
    """How many entries each map has that could grow."""
    assert set(HASHES) <= {row.name for row in MAPS}
    return {name: sum(1 for _ in on.world.maps.items(name)) for name in HASHES}


def locked(on: Node) -> int:
    """Memory of the maps in kB, as the kernel accounts it."""
    found = [Path(f"/proc/self/fdinfo/{on.world.maps.fd(row.name)}").read_text() for row in MAPS]
    return (
        sum(int(line.split()[1]) for text in found for line in text.splitlines() if line.startswith("memlock:")) >> 10
    )


def ask_much(on: Node, directory: Path, count: int) -> tuple[int, int]:
    """(answered, lost) of so many questions."""
    given = directory / "questions"
    given.write_text("".join(f"{each}\n" for each in MIX))
    flags = ["-n", str(count // len(MIX)), "-c", "8", "-q", "64", "-t", "30", "-d", str(given), "-s", CLUSTER_DNS]
    command = ["ip", "netns", "exec", on.pod, "dnsperf", *flags]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = {line.split(":")[0].strip(): line.split()[2] for line in output.splitlines() if "Queries " in line}
    return int(numbers["Queries completed"]), int(numbers["Queries lost"])


async def renewed(on: Node, work: asyncio.Future[tuple[int, int]]) -> tuple[int, int]:
    """The result of work, the server declared alive meanwhile."""
    while not work.done():
        on.world.alive(60)
        on.world.target.renew()
        await asyncio.wait([work], timeout=5)
    return work.result()


async def soak(count: int) -> bool:
    """Ask; whether nothing was lost and nothing grew."""
    with node(ROWS) as on, tempfile.TemporaryDirectory() as directory:
        on.serve()
        assert on.server is not None
        with contextlib.closing(on.attach()):
            seen = []
            began = time.monotonic()
            for each in (count // 10, count - count // 10):
                answered, lost = await renewed(on, asyncio.ensure_future(
                    asyncio.to_thread(ask_much, on, Path(directory), each)
                ))  # fmt: skip
                seen.append((answered, lost, resident(on.server.pid), resident(os.getpid()), locked(on), entries(on)))
            took = time.monotonic() - began
        print(f"{sum(each[0] for each in seen):,} questions answered in {took:.0f} s: {on.world.questions()}")
    print("| after | lost | server kB | test kB | maps kB | entries |\n|---|---|---|---|---|---|")
    for about, (_, lost, server, own, maps, held) in zip(("the first tenth", "all"), seen, strict=True):
        print(f"| {about} | {lost} | {server:,} | {own:,} | {maps:,} | {held} |")
    (_, lost, before, _, maps, held), (_, more, after, _, maps_after, held_after) = seen
    steady = {name: n for name, n in held.items() if name != "steered"}
    return (
        lost + more == 0
        and after - before <= GROWTH
        and maps_after == maps
        and {name: held_after[name] for name in steady} == steady
        and held_after["steered"] <= 16_384
    )


def scale(pods: int, names: int) -> bool:
    """Attach to every pod and ask from each; whether every answer was right."""
    of = [f"s{n}.ns{n % 50}.svc.{ZONE}" for n in range(names)]
    four = [Name(name, "A", (f"10.{97 + n // 62_500}.{n // 250 % 250}.{n % 250}",)) for n, name in enumerate(of)]
    rows = (*four, *(Name(name, "AAAA", (f"fd00:97::{n:x}",)) for n, name in enumerate(of)))
    began = time.monotonic()
    with node(rows) as on:
        print(f"{names:,} names written and one pod made in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        plugged = [on.pod, *(on.plug(number) for number in range(2, pods + 1))]
        print(f"{pods - 1:,} pods made in {time.monotonic() - began:.0f} s")
        before, began = resident(os.getpid()), time.monotonic()
        with contextlib.closing(on.attach()) as links:
            took = time.monotonic() - began
            print(f"attached to {links.stats().interfaces:,} in {took:.2f} s, {resident(os.getpid()) - before:,} kB")
            wrong = sum(
                asked(pod, rows[(number * ASKED_BY_EACH + n) * 7919 % len(rows)])
                for number, pod in enumerate(plugged)
                for n in range(ASKED_BY_EACH)
            )
            complete = links.stats().interfaces == pods
        print(f"{pods * ASKED_BY_EACH:,} questions, {wrong} answered wrong; maps {locked(on):,} kB, {entries(on)}")
    return complete and wrong == 0


def asked(pod: str, row: Name) -> bool:
    """Whether a pod's question for a name is answered wrong, or not at all."""
    with within(pod):
        sock = socket.socket(socket.AF_INET6 if row.type == "AAAA" else socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(10)
        sock.connect((CLUSTER_DNS6 if row.type == "AAAA" else CLUSTER_DNS, 53))
        sock.send(dns.message.make_query(row.name, row.type).to_wire())
        try:
            reply = dns.message.from_wire(sock.recv(512))
        except TimeoutError:
            return True
    return [str(item) for rrset in reply.answer for item in rrset] != list(row.answers)


def main() -> int:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scale", "soak"))
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--names", type=int, default=5_000)
    parser.add_argument("--questions", type=int, default=10_000_000)
    given = parser.parse_args()
    if given.what == "scale":
        return int(not scale(given.pods, given.names))
    if shutil.which("dnsperf") is None:
        sys.exit("soak-names: dnsperf is missing: apt-get install dnsperf")
    return int(not asyncio.run(soak(given.questions)))


if __name__ == "__main__":
    sys.exit(main())
