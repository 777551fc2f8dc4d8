"""What one hop through the node's Envoy costs, against none, HAProxy and nginx; and what its configuration costs.

    make bench-proxy                                # CALLS=100 ROUNDS=100 SIZES=1000,10000

Requests: Envoy has what Isthmus gives it for one Service with a route that splits by path (RouteWorld, AdsServer,
Supervisor); the others a configuration of their own that does no more. All proxies have one worker, keep connections to
the one backend, and are called in turn, in another order in every round, by C (http_load.c). p50 is the median over the
rounds of each round's median, + what it is above the direct one of the same round; requests a second of a core are
requests over the processor time that the proxy took for them.

Configuration: so many Services with a route each. Envoy has two workers, or one where the limit of open files has no
room for a socket of each listener and worker. Ready: from the start of Envoy's process until it serves all of their
listeners. Push: from the change of an endpoint in the tables until a request gets the other backend, planning and
discovery service (Python, in this process) included. Then the planner alone, as ``make bench-policy`` has it.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import bench_policy
from callers import at, built, called, debian, in_turn, processor
from meshes.envoy_world import EnvoyWorld, envoy_world
from meshes.route_world import C1, RouteWorld, route
from peers.etcd_server import free_ports

from isthmus.config import ProxySection
from isthmus.model.tables import XDS_SERVED

CALLS: Final = int(os.environ.get("CALLS", "100"))
"""In a row, by one way; of kind many: ten times as many."""
ROUNDS: Final = int(os.environ.get("ROUNDS", "100"))
SIZES: Final = tuple(map(int, os.environ.get("SIZES", "1000,10000").split(",")))
PUSHES: Final = 20
RUN: Final = random.randrange(256)
HOST: Final = f"127.83.{RUN}.1"
"""Of this run alone: a port of Envoy is open to a second process, and so to another run at the same time."""
OTHERS: Final = f"127.83.{RUN}.2"
"""Where backends and other proxies listen: Envoy's listeners may take any port of HOST."""
KINDS: Final = {"existing": 1, "new": 1, "many": 10}
COUNTS: Final[Mapping[str, int]] = {kind: CALLS * times for kind, times in KINDS.items()}
LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
ROUTE: Final = """\
parentRefs: [{{group: "", kind: Service, name: {name}}}]
rules:
- {{matches: [{{path: {{value: /other}}}}], backendRefs: [{{name: {name}, port: 80, weight: 1}}]}}
- {{backendRefs: [{{name: {name}, port: 80}}]}}
"""

HAPROXY: Final = """\
global
  nbthread 1
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
listen echo
  bind {host}:{port}
  acl other path_beg /other
  server s {host}:{backend}
"""
NGINX: Final = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4000; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  keepalive_requests 100000000;
  upstream echo {{ server {host}:{backend}; keepalive 32; keepalive_requests 100000000; }}
  server {{
    listen {host}:{port};
    location / {{ proxy_pass http://echo; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    location /other {{ proxy_pass http://echo; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


class Way:
    """One way to the backend, and what was measured of it: medians of rounds in µs, and the proxy's processor time."""

    def __init__(
        self,
        name: str,
        callers: dict[str, subprocess.Popen[bytes]],
        proxies: Sequence[int],
        counts: Mapping[str, int],
    ) -> None:
        """``counts``: calls of a kind in a row."""
        self.name = name
        self.callers = callers
        self._proxies = proxies
        self._counts = counts
        self.forget()

    def call(self, kind: str) -> None:
        """Make some requests."""
        count, before = self._counts[kind], sum(map(processor, self._proxies))
        times, _ = called(self.callers[kind], count)
        self.medians[kind].append(at(times, 50) / 1000)
        self.spent[kind] += sum(map(processor, self._proxies)) - before
        self.calls[kind] += count

    def forget(self) -> None:
        """The first requests only warm up."""
        self.medians: dict[str, list[float]] = {kind: [] for kind in self.callers}
        self.spent = dict.fromkeys(self.callers, 0)
        self.calls = dict.fromkeys(self.callers, 0)


class Processes:
    """What is started here, and ends with this."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self.directory = directory
        self.load = built("http_load", directory)

    def start(self, *command: str, library: str = "") -> subprocess.Popen[bytes]:
        """A process with pipes."""
        environment = os.environ | ({"LD_LIBRARY_PATH": library} if library else {})
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=sys.stderr, env=environment)
        self._stack.callback(_end, process)
        return process

    def backend(self, text: str, host: str = OTHERS) -> int:
        """The port of a backend that answers with a text."""
        [port] = free_ports(1)
        process = self.start(str(self.load), "serve", host, str(port), text)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return port

    def way(self, name: str, host: str, port: int, *proxies: int, counts: Mapping[str, int] = COUNTS) -> Way:
        """One that is called at an address, for each kind so often in a row."""
        callers = {kind: self.start(str(self.load), "call", kind, host, str(port)) for kind in counts}
        return Way(name, callers, proxies, counts)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def others(processes: Processes, backend: int) -> Iterator[Way]:
    """HAProxy and nginx, where Debian's are to be had."""
    if unpacked := debian("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"):
        yield _other(processes, "HAProxy", HAPROXY, [f"{unpacked}/usr/sbin/haproxy", "-f"], unpacked, backend)
    if unpacked := debian("nginx"):
        yield _other(processes, "nginx", NGINX, [f"{unpacked}/usr/sbin/nginx", "-c"], unpacked, backend)


def _other(
    processes: Processes, name: str, configuration: str, command: Sequence[str], unpacked: Path, backend: int
) -> Way:
    [port] = free_ports(1)
    file = processes.directory / f"{name}.conf"
    file.write_text(configuration.format(host=OTHERS, port=port, backend=backend, directory=processes.directory))
    process = processes.start(*command, str(file), library=str(unpacked / LIBRARIES))
    while not answers(port):
        if process.poll() is not None:
            raise SystemExit(f"bench-proxy: {name} has ended")
        time.sleep(0.1)
    return processes.way(name, OTHERS, port, process.pid)


def answers(port: int, host: str = OTHERS) -> bool:
    """Whether something listens on a port."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def services(backend: int, count: int) -> RouteWorld:
    """The tables of a node with so many Services, each with a route."""
    world = RouteWorld(HOST, ports=2 * count)
    for number in range(count):
        world.service(f"demo/s{number}", f"{OTHERS}:{backend}")
    return world.routes(*(route(ROUTE.format(name=f"s{number}"), name=f"demo/r{number}") for number in range(count)))


async def served(world: EnvoyWorld, count: int) -> None:
    """Wait until Envoy serves so many listeners."""
    async with asyncio.timeout(300):
        await world.db.until(lambda now: now.count(XDS_SERVED) >= count or bool(world.refused()))
    if refused := world.refused():
        raise SystemExit(f"bench-proxy: {refused[0]}")


async def requests(processes: Processes) -> None:
    """The table of one hop."""
    backend = processes.backend("a")
    tables = services(backend, 1)
    async with envoy_world(processes.directory / "one", db=tables.db) as world:
        await served(world, 1)
        envoy = processes.way(
            "Envoy, as the node's", HOST, tables.listener_port("demo/s0"), world.supervisor.stats().running
        )
        ways = [processes.way("direct", OTHERS, backend), envoy, *others(processes, backend)]
        await asyncio.to_thread(in_turn, ways, tuple(KINDS), ROUNDS)
    report(ways)


def report(ways: Sequence[Way]) -> None:
    """A line for each way."""
    print(
        "\n| one hop | existing p50 µs | + | new p50 µs | + | requests a second of a core |\n|---|---|---|---|---|---|"
    )
    for way in ways:
        columns = [way.name]
        for kind in ("existing", "new"):
            above = median(mine - its for mine, its in zip(way.medians[kind], ways[0].medians[kind], strict=True))
            columns += [f"{median(way.medians[kind]):.0f}", f"{above:.0f}"]
        spent = way.spent["many"]
        columns.append(f"{way.calls['many'] / spent * 1e9:,.0f}" if spent else "–")
        print(f"| {' | '.join(columns)} |", flush=True)


async def configuration(processes: Processes, count: int) -> str:
    """The line of so many Services."""
    ports = {text: processes.backend(text) for text in ("a", "b")}
    tables = services(ports["a"], count)
    workers = ProxySection().concurrency if 2 * count < resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 1_000 else 1
    began = time.monotonic()
    async with envoy_world(processes.directory / str(count), db=tables.db, workers=workers) as world:
        await served(world, count)
        ready = time.monotonic() - began
        tables.derive()  # what follows from the listeners that are served now
        memory = resident(world.supervisor.stats().running)
        took = [await push(tables, ports, turn) for turn in range(PUSHES)]
    return f"| {count:,} | {workers} | {ready:.1f} | {memory} | {median(took) * 1000:.1f} | {max(took) * 1000:.1f} |"


async def push(tables: RouteWorld, ports: dict[str, int], turn: int) -> float:
    """Seconds from the change of an endpoint to its effect."""
    text, listener = "ba"[turn % 2], tables.listener_port("demo/s0")
    reader, writer = await asyncio.open_connection(HOST, listener)
    began = time.monotonic()
    tables.endpoints("demo/s0", C1, f"{OTHERS}:{ports[text]}")
    async with asyncio.timeout(60):
        while True:
            writer.write(b"GET / HTTP/1.1\r\nHost: echo\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [
                line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            ]
            if await reader.readexactly(int(length)) == text.encode():
                break
            await asyncio.sleep(0)
    took = time.monotonic() - began
    writer.close()
    return took


def resident(pid: int) -> int:
    """MB of memory that a process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1000


def main() -> None:
    """Print the tables."""
    with ExitStack() as stack:
        processes = Processes(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        asyncio.run(requests(processes))
        print(
            "\n| Services with a route | workers | ready s | Envoy MB | push p50 ms | longest |"
            "\n|---|---|---|---|---|---|",
            flush=True,
        )
        for count in SIZES:
            print(asyncio.run(configuration(processes, count)), flush=True)
    print()
    sys.exit(bench_policy.main())


if __name__ == "__main__":
    main()
