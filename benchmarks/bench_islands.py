"""What a call from one island to another costs: by the Envoys of a node and of a gateway, none, HAProxy's TLS, ssh.

    make bench-islands                              # CALLS=100 ROUNDS=100

All in a network namespace of its own (without root on the host's loopback, and without the second part). The node's
Envoy and the gateway's have what Isthmus gives them for an export, once as bytes and once as HTTP; the two HAProxies
make a tunnel of TCP by mutual TLS 1.3 with certificates of the same kind, ssh forwards a port. All proxies have one
worker. Requests of HTTP to one backend, in turn, in another order in every round, by C (http_load.c): ``existing`` on a
kept connection, ``new`` on one of its own each, ``many`` at once, ``bulk`` for 64 MiB. p50 is the median over the
rounds of each round's median, + what it is above the direct one of the same round; ms is the processor time of both
ends of the tunnel for a request, or connection.

Then the same over a line with a round trip of 20 ms (delay.py) between the two ends, with connections made before
(``gateway.preconnect``) as one more way; × is how many round trips a request takes, by that of ``direct, existing``.

Then the memory of a gateway's Envoy, and of a node's with listeners for as many pods of islands as it has at most.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench_proxy import COUNTS, LIBRARIES, OTHERS, ROUNDS, Processes, Way, answers, resident
from callers import debian, in_turn
from connect_rules import HAPROXY
from machine import delay
from meshes.island_load import Gateway
from meshes.island_world import Islands, islands
from meshes.route_world import C1, C2
from peers.etcd_server import free_ports
from pyroute2 import IPRoute

from isthmus.clusterset import certificates
from isthmus.config import GatewaySection
from isthmus.gateway import naming
from isthmus.gateway.secrets import Identity
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Export, Port
from isthmus.model.tables import CLUSTERS, ENDPOINT_SETS, ISLAND_LISTENERS, OWN_EXPORTS, XDS_SERVED
from isthmus.proxy.process import admins
from isthmus_lab import kernel

TUNNEL: Final = f"""\
{HAPROXY}listen tunnel
  bind {{bind}}
  server s {{server}}
"""
STRICT: Final = "verify required ssl-min-ver TLSv1.3"
HAPROXY_PACKAGES: Final = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
SSH_PACKAGES: Final = ("openssh-server", "libwrap0")
SSHD: Final = """\
mount --bind {directory}/passwd /etc/passwd
mount -t tmpfs none /run
mkdir -m 755 /run/sshd
exec {program} -D -e -f /dev/null -h {directory}/host -o ListenAddress={listen}:{port} -o PidFile=none -o UsePAM=no \
  -o StrictModes=no -o AuthorizedKeysFile={directory}/user.pub -o PermitRootLogin=yes -o LogLevel=FATAL \
  -o ClientAliveInterval=2 -o ClientAliveCountMax=2
"""
"""Its child for a connection would stay for ever where the delayed line goes before the client's FIN has come."""
SSH_OPTIONS: Final = (
    *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
    *("-o", "ExitOnForwardFailure=yes"),
)
BULK: Final = 64 << 20
"""Bytes of the answer of kind bulk."""


class Line(NamedTuple):
    """Where the far end listens, and by which address the near one reaches it."""

    listen: str
    called: str


LOOPBACK: Final = Line(OTHERS, OTHERS)
DELAYED: Final = Line(delay.NEAR, delay.FAR)
RTT: Final = 20
"""Of the delayed line, ms."""
NEAR_COUNTS: Final = {**COUNTS, "bulk": 2}
FAR_COUNTS: Final = {"existing": 10, "new": 10}
EXPORTS: Final = 1_000
"""Of a gateway whose memory is looked at."""
POD_PORTS: Final = GatewaySection().pod_ports
"""Listeners for pods that a node's Envoy has at most, by default."""


async def calls(processes: Processes, directory: Path, line: Line, counts: Mapping[str, int], rounds: int) -> list[Way]:
    """All ways, called in turn."""
    backend = processes.backend("a")  # beside the far end
    direct = processes.backend("a", line.listen)
    async with AsyncExitStack() as stack:
        ways = [processes.way("direct", line.called, direct, counts=counts)]
        for preconnect in (False, True)[: 1 if line is LOOPBACK else 2]:
            options = {"host": line.listen, "preconnect": preconnect}
            world = await stack.enter_async_context(islands(directory / str(preconnect), **options))
            far = f"{line.called}:{world.gateways[0].port}"
            world.rows.put(CLUSTERS, Cluster(name=C2, network="two", gateways=(far,)))
            ways += [await envoys(processes, world, speaks, backend, counts) for speaks in ("", "http")[preconnect:]]
        ways += await asyncio.to_thread(lambda: [*tunnel(processes, world, backend, line, counts)])
        ways += await asyncio.to_thread(lambda: [*forwarded(processes, backend, line, counts)])
        await asyncio.to_thread(in_turn, ways, list(counts), rounds)
    return ways


async def envoys(processes: Processes, world: Islands, speaks: str, backend: int, counts: Mapping[str, int]) -> Way:
    """The way by both Envoys to an export that speaks HTTP, or to one of which nothing is known."""
    name = ServiceName(f"demo/{speaks or 'bytes'}")
    world.export(name, ports=(Port("", 80, app_protocol=speaks),))
    world.put_gateway(ENDPOINT_SETS, pods(name, backend))
    world.imported(name, app_protocol=speaks)
    await world.healthy()
    pids = [admins(of.directory)[0].pid for of in (world.node_of, world.gateway_of)]
    text = f"Envoys, {speaks or 'bytes'}" + (", preconnect" if world.node_of.preconnect else "")
    return processes.way(text, *await world.target(name), *pids, counts=counts)


def pods(name: str, backend: int) -> EndpointSet:
    """The backend as a pod of c2."""
    found = Endpoint(OTHERS, (Port("", backend),))
    return EndpointSet(service=ServiceName(name), cluster=C2, source="kubernetes", part="slice", endpoints=(found,))


def tunnel(processes: Processes, world: Islands, backend: int, line: Line, counts: Mapping[str, int]) -> Iterator[Way]:
    """A tunnel of two HAProxies, where Debian's is to be had."""
    unpacked = debian(*HAPROXY_PACKAGES)
    if unpacked is None:
        return
    near, far = free_ports(2)
    node, gateway = pem(world.identity(C1, naming.NODE)), pem(world.identity(C2, naming.GATEWAY))
    trust = {name: world.trust / f"{name}.ca.crt" for name in (C1, C2)}
    ends = {
        "far": (f"{line.listen}:{far} ssl crt {gateway} ca-file {trust[C1]} {STRICT}", f"{OTHERS}:{backend}"),
        "near": (f"{OTHERS}:{near}", f"{line.called}:{far} ssl crt {node} ca-file {trust[C2]} {STRICT}"),
    }
    pids = []
    for name, (bind, server) in ends.items():
        file = processes.directory / f"{name}-{near}.conf"
        file.write_text(TUNNEL.format(bind=bind, server=server))
        command = (f"{unpacked}/usr/sbin/haproxy", "-f", str(file))
        pids.append(processes.start(*command, library=str(unpacked / LIBRARIES)).pid)
    while not (answers(near) and answers(far, line.called)):
        time.sleep(0.1)
    yield processes.way("HAProxies, TLS", OTHERS, near, *pids, counts=counts)


def forwarded(processes: Processes, backend: int, line: Line, counts: Mapping[str, int]) -> Iterator[Way]:
    """A port that ssh forwards to Debian's sshd, with a list of users and a directory /run of its own; root only."""
    unpacked = debian(*SSH_PACKAGES)
    if unpacked is None or os.getuid() or shutil.which("ssh") is None:
        return
    near, far = free_ports(2)
    directory = processes.directory / f"ssh-{near}"
    directory.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    (directory / "passwd").write_text(Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/bin/false\n")
    program = unpacked / "usr/sbin/sshd"
    script = SSHD.format(directory=directory, program=program, listen=line.listen, port=far)
    daemon = processes.start("unshare", "-m", "sh", "-ec", script, library=str(unpacked / LIBRARIES))
    while not answers(far, line.called):
        if daemon.poll() is not None:
            print("sshd has ended: without it", file=sys.stderr)
            return
        time.sleep(0.1)
    to = ("-L", f"{OTHERS}:{near}:{OTHERS}:{backend}", "-p", str(far), f"root@{line.called}")
    client = processes.start("ssh", "-N", "-F", "none", "-i", str(directory / "user"), *SSH_OPTIONS, *to)
    while not answers(near):
        if client.poll() is not None:
            print("ssh has ended: without it", file=sys.stderr)
            return
        time.sleep(0.1)
    yield processes.way("ssh -L", OTHERS, near, client.pid, *descendants(daemon.pid), counts=counts)


def descendants(pid: int) -> list[int]:
    """A process and what it has started."""
    below = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in below for each in descendants(child))]


def pem(identity: Identity) -> Path:
    """A certificate and its key in one file."""
    path = identity.certificate.with_suffix(".pem")
    path.write_bytes(identity.certificate.read_bytes() + identity.key.read_bytes())
    return path


def show(ways: Sequence[Way]) -> None:
    """Print what was measured without a delay."""
    kinds = ("existing", "new", "many")
    print("\n| loopback |" + "".join(f" {kind} p50 µs | + | ms |" for kind in kinds) + " Gbit/s | ms for 64 MiB |")
    print("|---" * 12 + "|")
    for way in ways:
        line = f"| {way.name} |"
        for kind in kinds:
            above = median(b - a for a, b in zip(ways[0].medians[kind], way.medians[kind], strict=True))
            line += f" {median(way.medians[kind]):,.0f} | {above:,.0f} | {spent(way, kind):.3f} |"
        print(f"{line} {BULK * 8 / median(way.medians['bulk']) / 1000:.1f} | {spent(way, 'bulk'):.0f} |", flush=True)


def spent(way: Way, kind: str) -> float:
    """Processor time of a call, ms."""
    return way.spent[kind] / max(1, way.calls[kind]) / 1e6


def show_delayed(ways: Sequence[Way]) -> None:
    """Print what was measured over the delayed line."""
    print(f"\n| {RTT} ms of round trip | existing p50 ms | × | new p50 ms | × |\n|---|---|---|---|---|")
    trip = median(ways[0].medians["existing"])
    for way in ways:
        found = [median(way.medians[kind]) for kind in FAR_COUNTS]
        print(f"| {way.name} |" + "".join(f" {each / 1000:.1f} | {each / trip:.2f} |" for each in found), flush=True)


async def memory(directory: Path, speaks: str, members: int) -> int:
    """MB of the Envoy of a gateway with so many exports and members, when it serves them."""
    async with AsyncExitStack() as stack:
        made = Islands(directory, stack)
        for number in range(members - len(made.authorities)):
            (made.trust / f"m{number}.ca.crt").write_bytes(certificates.authority(f"m{number}").certificate)
        world = Gateway(made, C2, 1)
        for number in range(EXPORTS):
            name = ServiceName(f"demo/s{number}")
            row = Export(cluster=C2, name=name, created="", ports=(Port("", 80, app_protocol=speaks),))
            with world.db.write() as txn:
                txn.put(OWN_EXPORTS, OwnExport(name=name, export=row))
                txn.put(ENDPOINT_SETS, pods(name, 80))
        await world.start()
        async with asyncio.timeout(300):
            await world.db.until(lambda now: now.count(XDS_SERVED) > 0)
        return resident(world.envoy.supervisor.stats().running)


async def memory_of_node(directory: Path, pods: int) -> int:
    """MB of the Envoy of a node with a listener for each of so many pods of an island, when it serves them."""
    async with AsyncExitStack() as stack:
        made = Islands(directory, stack, pod_ports=max(pods, 1))
        made.rows.put(CLUSTERS, Cluster(name=C2, network="two", gateways=("192.0.2.1:15443",)))
        made.rows.headless(
            "demo/db", c2=[f"db-{number}=10.1.{number >> 8}.{number & 255}:80" for number in range(pods)]
        )
        await made.start_node()
        listeners = made.rows.db.snapshot().count(ISLAND_LISTENERS)
        assert listeners == pods
        async with asyncio.timeout(300):
            await made.rows.db.until(lambda now: now.count(XDS_SERVED) >= listeners)
            while made.node.supervisor.stats().running == 0:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.1)
        return resident(made.node.supervisor.stats().running)


def main() -> None:
    """Run it."""
    for packages in (HAPROXY_PACKAGES, SSH_PACKAGES):
        debian(*packages)  # while there is a network
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as short, ExitStack() as stack:
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {ROUNDS} rounds")
        processes = Processes(stack, Path(name))
        if os.getuid() == 0:
            kernel.unshare(kernel.CLONE_NEWNET)
            with IPRoute() as route:
                route.link("set", index=1, state="up")
        show(asyncio.run(calls(processes, Path(short) / "near", LOOPBACK, NEAR_COUNTS, ROUNDS)))
        if os.getuid() == 0:
            relay = processes.start(sys.executable, delay.__file__, str(RTT))
            assert relay.stdout is not None
            assert relay.stdout.readline() == b"ready\n"
            show_delayed(asyncio.run(calls(processes, Path(short) / "far", DELAYED, FAR_COUNTS, max(3, ROUNDS // 5))))
        print(f"\n| {EXPORTS:,} exports on a gateway | members | MB |\n|---|---|---|")
        for speaks, members in (("", 3), ("http", 3), ("http", 10)):
            found = asyncio.run(memory(Path(short) / f"memory-{speaks}{members}", speaks, members))
            print(f"| {speaks or 'bytes'} | {members} | {found} |", flush=True)
        print("\n| pods of an island called by name, on a node | MB |\n|---|---|")
        for pods_there in (0, POD_PORTS):
            found = asyncio.run(memory_of_node(Path(short) / f"node-{pods_there}", pods_there))
            print(f"| {pods_there:,} | {found} |", flush=True)


if __name__ == "__main__":
    main()
