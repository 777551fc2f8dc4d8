"""What a call of a Service costs the caller, against other ways of reaching a backend: ratios of one interleaved run.

    make bench-connect                              # CALLS=100 ROUNDS=200
    make bench-connect OUTPUT=docs/bench-connect    # and as docs/bench-connect.json and .svg
    make bench-connect SIGNED=1                     # what proof of the caller costs, instead of all other ways

Each way has a pod, a node and a machine with three backends of its own, network namespaces in a row, so that no way's
rules or programs are in another's path. Measured are connect and close of TCP, the same with a byte from the backend
in between (else a proxy would have answered alone), and a question and its answer by UDP, each with a new socket.
Caller and backend are C, on one processor.

    direct              the backend's own address, no program, no rule
    miss                the same, with our programs and 50,000 services in the maps
    hit, N services     a service of N; rescue's programs are on the pod's interface only where that is said
    signed and verified programs on the interfaces of both pods; the SYN is signed at one and verified at the other
    nftables, iptables  rules as kube-proxy's modes of these names write them, with N services
    HAProxy, Envoy      a listener on the node that forwards TCP

All ways are called in turn, some calls in a row, in another order in every round, so that whatever else the machine
does hits all of them alike. p10 and p50 are medians over the rounds of the ratio to the direct calls of the same round;
p99 and processor time (of the caller, the backend and, where there is one, the proxy) are of all calls. Reported, not
asserted.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import connect_rules as rules
from callers import at, built, called, debian, in_turn, processor
from connect_picture import Measured, picture
from machine import programs
from machine.namespaces import ip, switch_on

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, cgroup_root, remove
from isthmus.datapath.core.namespaces import CLONE_NEWNET
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.core.tc import Direction, create_link
from isthmus.datapath.identity import IdentityTarget
from isthmus.model.balancing import FrontendKey, Group, Plan, PlanKey, Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Protocol
from isthmus.model.signing import Guard, Permit, SignedTo, Source

CALLS: Final = int(os.environ.get("CALLS", "100"))
"""In a row, by one way."""
ROUNDS: Final = int(os.environ.get("ROUNDS", "200"))
BACKENDS: Final = ("10.8.1.1", "10.8.1.2", "10.8.1.3")
PROXY: Final = "10.200.0.1"
SIGNED: Final = bool(os.environ.get("SIGNED"))
SIZES: Final = (10, 1_000, 50_000)
RULES: Final = (10, 1_000)
KINDS: Final = {
    "connect": "TCP: connect and close",
    "byte": "TCP: connect, one byte, close",
    "udp": "UDP: question and answer",
}
DIRECTIONS: Final[Mapping[str, Direction]] = {"from_pod": "ingress", "to_pod": "egress"}
T = TypeVar("T")


class Machines:
    """A pod, a node and a machine of backends, in a row."""

    def __init__(self, name: str, loader: Path) -> None:
        self.pod, self.node, self.far = (f"bench-connect-{name}-{part}" for part in ("p", "n", "f"))
        self._loader = loader
        self._processes: list[subprocess.Popen[bytes]] = []
        for namespace in (self.pod, self.node, self.far):
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        self._wire(self.pod, self.node, "10.7.0.1/24", "10.7.0.2/24", "pod0")
        self._wire(self.far, self.node, "10.8.0.1/24", "10.8.0.2/24", "far0")
        for namespace, via in ((self.pod, "10.7.0.2"), (self.far, "10.8.0.2")):
            ip("-n", namespace, "route", "add", "default", "via", via)
        ip("-n", self.node, "route", "add", "10.8.1.0/24", "via", "10.8.0.1")
        switch_on(self.node, "net/ipv4/ip_forward")
        ip("netns", "exec", self.pod, "sh", "-c", "echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range")
        for backend in BACKENDS:
            ip("-n", self.far, "addr", "add", f"{backend}/32", "dev", "lo")
        endpoints = [word for backend in BACKENDS for word in (backend, str(rules.PORT))]
        self.server = self.start(self.far, [str(loader), "serve", *endpoints])
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == b"ready\n"

    def _wire(self, end: str, node: str, address: str, gateway: str, name: str) -> None:
        ip("link", "add", "name", "eth0", "netns", end, "type", "veth", "peer", "name", name, "netns", node)
        for namespace, link, each in ((end, "eth0", address), (node, name, gateway)):
            ip("-n", namespace, "addr", "add", each, "dev", link)
            ip("-n", namespace, "link", "set", link, "up")

    def start(self, namespace: str, command: Sequence[str], *, cgroup: Path | None = None) -> subprocess.Popen[bytes]:
        """A process that ends with this."""

        def join() -> None:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(os.getpid()))

        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            preexec_fn=join,
        )
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str], text: str, **more: Any) -> None:
        """A program of the node that reads rules."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.node, *command],
            input=text,
            text=True,
            capture_output=True,
            check=False,
            **more,
        )
        if done.returncode:
            raise SystemExit(f"bench-connect: {command[0]}: {done.stderr[-400:]}")

    def close(self) -> None:
        """Away with all of it."""
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        for namespace in (self.pod, self.node, self.far):
            ip("netns", "del", namespace)


class Way:
    """One way of calling, and what was measured of it, in ns: sorted times of each round, processor time of all."""

    def __init__(
        self, name: str, path: Machines, address: str, port: int, *, cgroup: Path, loader: Path, proxy: int = 0
    ) -> None:
        self.name = name
        self.path = path
        self._also = [path.server.pid, *([proxy] if proxy else [])]
        kinds = ("byte",) if proxy else tuple(KINDS)
        self.callers = {
            kind: path.start(path.pod, [str(loader), "call", kind, address, str(port)], cgroup=cgroup) for kind in kinds
        }
        self.times: dict[str, list[list[int]]] = {kind: [] for kind in kinds}
        self.spent = dict.fromkeys(kinds, 0.0)

    def call(self, kind: str) -> None:
        """Make some calls."""
        before = sum(map(processor, self._also))
        times, spent = called(self.callers[kind], CALLS)
        self.times[kind].append(times)
        self.spent[kind] += spent + sum(map(processor, self._also)) - before

    def forget(self) -> None:
        """The first calls only warm up."""
        for kind in self.times:
            self.times[kind], self.spent[kind] = [], 0.0


def main() -> None:
    """Build every way, call by all of them in turn, print."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = list(ways(stack, directory, built("connect_load", directory)))
        in_turn(made, tuple(KINDS), ROUNDS)
        found = {what: compared([way for way in made if kind in way.callers], kind) for kind, what in KINDS.items()}
    for what, rows in found.items():
        print(f"\n| {what} | p10 µs | × p10 | × p50 | × p99 | × processor |\n|---|---|---|---|---|---|")
        for row in rows:
            ratios = (row["p10"], row["p50"], row["p99"], row["processor"])
            print(f"| {row['name']} | {row['us']:.1f} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |")
    if output := os.environ.get("OUTPUT"):
        Path(f"{output}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        Path(f"{output}.svg").write_text(picture(found))


def compared(made: Sequence[Way], kind: str) -> list[Measured]:
    """Ratios to the first way."""
    first, rows = made[0], list[Measured]()
    for way in made:
        by_round = list(zip(way.times[kind], first.times[kind], strict=True))
        p10, p50 = (median(at(mine, part) / at(its, part) for mine, its in by_round) for part in (10, 50))
        everything = [sorted(time for times in each.times[kind] for time in times) for each in (way, first)]
        rows.append(
            Measured(
                name=way.name,
                us=round(median(at(times, 10) for times in way.times[kind]) / 1000, 1),
                p10=round(p10, 3),
                p50=round(p50, 3),
                p99=round(at(everything[0], 99) / at(everything[1], 99), 3),
                processor=round(way.spent[kind] / first.spent[kind], 3),
            )
        )
    return rows


def ways(stack: ExitStack, directory: Path, loader: Path) -> Iterator[Way]:
    """All of them, the one that the others are compared with first."""
    root = cgroup_root()
    if root is None:
        raise SystemExit("bench-connect: no cgroup v2 here")
    bpffs = directory / "bpf"
    bpffs.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bench-connect", str(bpffs)], check=True)
    stack.callback(subprocess.run, ["umount", str(bpffs)], check=True)

    def path(name: str) -> Machines:
        found = Machines(name, loader)
        stack.callback(found.close)
        return found

    def cgroup(name: str) -> Path:
        found = root / f"bench-connect-{os.getpid()}-{name}"
        found.mkdir()
        stack.callback(_remove_cgroup, found)
        return found

    def ours(name: str, services: int, **more: Any) -> tuple[Path, Datapath]:
        where, pin = cgroup(name), str(bpffs / name)
        section = DatapathSection(cgroup=str(where), pin=pin, grace=0.0, **more)
        opened = Datapath.open(section, DnsSection())
        stack.callback(remove, pin)
        stack.callback(opened.close)
        program(opened, services)
        return where, opened

    plain = cgroup("plain")

    def way(name: str, at: Machines, address: str, port: int = 80, *, within: Path = plain, proxy: int = 0) -> Way:
        return Way(name, at, address, port, cgroup=within, loader=loader, proxy=proxy)

    yield way("direct", path("d"), BACKENDS[0], rules.PORT)
    if SIGNED:
        for name, title in (
            ("b", "hit, 1,000, programs on both pods' interfaces"),
            ("s", "the same, signed and verified"),
        ):
            where, opened = ours(name, 1_000, flows="off")
            found = path(name)
            interfaces = [on_link(stack, opened, found, device) for device in ("pod0", "far0")]
            if name == "s":
                asyncio.run(prove(opened, *interfaces))
            yield way(title, found, rules.vip(500), within=where)
        return
    for size in SIZES:
        where, _ = ours(f"h{size}", size)
        yield way(f"hit, {size:,} services", path(f"h{size}"), rules.vip(size // 2), within=where)
    yield way("miss, 50,000 services", path("m"), BACKENDS[0], rules.PORT, within=where)
    for name, title, more in (
        ("r", "hit, 1,000, ejection and rescue on", {"flows": "off"}),
        ("f", "the same, flows 1:256", {"flows": 256}),
        ("a", "the same, flows 1:1", {"flows": 1}),
    ):
        where, opened = ours(name, 1_000, **more)
        found = path(name)
        on_link(stack, opened, found)
        yield way(title, found, rules.vip(500), within=where)
    for size in RULES:
        found = path(f"n{size}")
        found.run(["nft", "-f", "-"], rules.nftables(size, BACKENDS))
        yield way(f"kube-proxy nftables, {size:,}", found, rules.vip(size // 2))
    if unpacked := debian("iptables", "libip4tc2", "libip6tc2", "libxtables12"):
        library = f"{unpacked}/usr/lib/x86_64-linux-gnu"
        environment = os.environ | {"LD_LIBRARY_PATH": library, "XTABLES_LIBDIR": f"{library}/xtables"}
        for size in RULES:
            found = path(f"i{size}")
            command = [f"{unpacked}/usr/sbin/xtables-legacy-multi", "iptables-legacy-restore"]
            found.run(command, rules.iptables(size, BACKENDS), env=environment)
            yield way(f"kube-proxy iptables, {size:,}", found, rules.vip(size // 2))
    yield from proxies(directory, path, way)


def proxies(directory: Path, path: Callable[[str], Machines], way: Callable[..., Way]) -> Iterator[Way]:
    """HAProxy and Envoy, where they are to be had."""
    commands: list[tuple[str, str, str, list[str]]] = []
    if unpacked := debian("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"):
        program = f"{unpacked}/usr/sbin/haproxy"
        commands.append(("HAProxy", "haproxy.cfg", rules.haproxy(PROXY, BACKENDS), [program, "-f"]))
    if envoy := programs.find("envoy"):
        flags = ["--concurrency", "1", "-l", "error", "--base-id", str(os.getpid()), "-c"]
        commands.append(("Envoy", "envoy.yaml", rules.envoy(PROXY, BACKENDS), [str(envoy), *flags]))
    for name, file, text, command in commands:
        at = path(name[0])
        (directory / file).write_text(text)
        ip("-n", at.node, "addr", "add", f"{PROXY}/32", "dev", "lo")
        library = f"LD_LIBRARY_PATH={unpacked}/usr/lib/x86_64-linux-gnu"
        process = at.start(at.node, ["env", library, *command, str(directory / file)])
        while not listening(at.node):
            if process.poll() is not None:
                raise SystemExit(f"bench-connect: {name} has ended")
            time.sleep(0.1)
        yield way(name, at, PROXY, proxy=process.pid)


def listening(namespace: str) -> bool:
    """Whether a process listens on port 80."""
    command = ["ip", "netns", "exec", namespace, "ss", "-Hltn", "sport = :80"]
    return bool(subprocess.run(command, check=True, capture_output=True).stdout)


def program(datapath: Datapath, services: int) -> None:
    """So many services with three backends each, by TCP; the one that is called by UDP too."""
    rows = [plan(number, "TCP") for number in range(services)]
    failures = asyncio.run(_update(datapath, [*rows, plan(services // 2, "UDP")]))
    if failures:
        raise SystemExit(f"bench-connect: {next(iter(failures.values()))}")


async def _update(datapath: Datapath, rows: Sequence[Plan]) -> Any:
    return await datapath.target().update(rows)


def plan(number: int, protocol: Protocol) -> Plan:
    """The plan of a service."""
    targets = tuple(Target(backend, rules.PORT, protocol, ClusterName("c1")) for backend in BACKENDS)
    return Plan(
        key=PlanKey(ServiceName(f"demo/echo-{number}"), 80, protocol, "IPv4"),
        frontends=(FrontendKey(rules.vip(number), 80, protocol),),
        groups=(Group(targets),),
    )


async def prove(datapath: Datapath, pod: int, far: int) -> None:
    """Sign what the pod sends to the backends, and verify it at their interface."""
    interfaces = {"10.7.0.1": pod, **dict.fromkeys(BACKENDS, far)}
    target = IdentityTarget(datapath.maps, lambda: interfaces)
    identity, policy, key = 7 << 16 | 300, ServiceName("demo/echo"), os.urandom(16)
    await target.permits.update([Permit(policy, identity)])
    guards = [Guard(policy=policy, address=each, port=rules.PORT, protocol="TCP") for each in BACKENDS]
    await target.guards.update(guards)
    await target.sources.update([Source("demo/client", ("10.7.0.1",), identity)])
    await target.signed_to.update([SignedTo(policy, each, ClusterName("c1"), 7) for each in BACKENDS])
    target.put_keys({(7, 1): key}, {(7, 1): key}, number=1)


def on_link(stack: ExitStack, datapath: Datapath, path: Machines, device: str = "pod0") -> int:
    """Programs on the node's end of a link, by tcx where the kernel has it, else none. Returns the interface."""
    command = ["ip", "netns", "exec", path.node, "ip", "-j", "link", "show", device]
    [link] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    index, peer = link["ifindex"], link["link_netnsid"]
    datapath.maps.put("pod_links", [(ID.pack(index), ID.pack(peer))])
    for name, direction in DIRECTIONS.items():
        fd = within(path.node, partial(create_link, datapath.program_fd(name), index, direction))
        stack.callback(os.close, fd)
    found: int = index
    return found


def within(namespace: str, act: Callable[[], T]) -> T:
    """What a function gives in a network namespace."""

    def enter() -> T:
        with Path("/run/netns", namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return act()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter).result()


def _remove_cgroup(path: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            return path.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
