"""What a call from one island to another costs: the Envoys of a node and of a gateway, against none and HAProxy's TLS.

    make bench-islands                              # CALLS=100 ROUNDS=100

All on loopback: the node's Envoy and the gateway's have what Isthmus gives them for an export, once as bytes and once
as HTTP; the two HAProxies make a tunnel of TCP by mutual TLS 1.3 with certificates of the same kind. All proxies have
one worker. Requests of HTTP to one backend, in turn, in another order in every round, by C (http_load.c): ``existing``
on a kept connection, ``new`` on one of its own each, ``many`` at once. p50 is the median over the rounds of each
round's median, + what it is above the direct one of the same round; ms is the processor time of both proxies for a
request.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from bench_proxy import KINDS, LIBRARIES, OTHERS, ROUNDS, Processes, Way, answers
from callers import debian, in_turn
from connect_rules import HAPROXY
from etcd_server import free_ports
from island_world import Islands, islands
from route_world import C1, C2

from isthmus.gateway import naming
from isthmus.gateway.secrets import Identity
from isthmus.model.names import ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Port
from isthmus.model.tables import ENDPOINT_SETS
from isthmus.proxy.process import admins

TUNNEL: Final = f"""\
{HAPROXY}listen tunnel
  bind {{bind}}
  server s {{server}}
"""
STRICT: Final = "verify required ssl-min-ver TLSv1.3"


async def calls(processes: Processes, directory: Path) -> None:
    """The table."""
    backend = processes.backend("a")
    async with islands(directory) as world:
        ways = [processes.way("direct", OTHERS, backend)]
        for name, speaks in (("bytes", ""), ("http", "http")):
            world.export(f"demo/{name}", ports=(Port("", 80, app_protocol=speaks),))
            world.put_gateway(ENDPOINT_SETS, pods(f"demo/{name}", backend))
            world.imported(f"demo/{name}", app_protocol=speaks)
            await world.healthy()
            envoys = [admins(of.directory)[0].pid for of in (world.node_of, world.gateway_of)]
            ways.append(processes.way(f"Envoys, {name}", *await world.target(f"demo/{name}"), *envoys))
        ways += await asyncio.to_thread(lambda: list(tunnel(processes, world, backend)))
        await asyncio.to_thread(in_turn, ways, list(KINDS), ROUNDS)
        show(ways)


def pods(name: str, backend: int) -> EndpointSet:
    """The backend as a pod of c2."""
    found = Endpoint(OTHERS, (Port("", backend),))
    return EndpointSet(service=ServiceName(name), cluster=C2, source="kubernetes", part="slice", endpoints=(found,))


def tunnel(processes: Processes, world: Islands, backend: int) -> Iterator[Way]:
    """A tunnel of two HAProxies, where Debian's is to be had."""
    unpacked = debian("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
    if unpacked is None:
        return
    near, far = free_ports(2)
    node, gateway = pem(world.identity(C1, naming.NODE)), pem(world.identity(C2, naming.GATEWAY))
    trust = {name: world.trust / f"{name}.ca.crt" for name in (C1, C2)}
    ends = {
        "far": (f"{OTHERS}:{far} ssl crt {gateway} ca-file {trust[C1]} {STRICT}", f"{OTHERS}:{backend}"),
        "near": (f"{OTHERS}:{near}", f"{OTHERS}:{far} ssl crt {node} ca-file {trust[C2]} {STRICT}"),
    }
    pids = []
    for name, (bind, server) in ends.items():
        file = processes.directory / f"{name}.conf"
        file.write_text(TUNNEL.format(bind=bind, server=server))
        command = (f"{unpacked}/usr/sbin/haproxy", "-f", str(file))
        pids.append(processes.start(*command, library=str(unpacked / LIBRARIES)).pid)
    while not (answers(near) and answers(far)):
        time.sleep(0.1)
    yield processes.way("HAProxies, TLS", OTHERS, near, *pids)


def pem(identity: Identity) -> Path:
    """A certificate and its key in one file."""
    path = identity.certificate.with_suffix(".pem")
    path.write_bytes(identity.certificate.read_bytes() + identity.key.read_bytes())
    return path


def show(ways: Sequence[Way]) -> None:
    """Print it."""
    direct = ways[0]
    print(f"{'':18}" + "".join(f"{kind + ' p50 µs':>18}{'+':>8}{'ms':>8}" for kind in KINDS))
    for way in ways:
        line = f"{way.name:18}"
        for kind in KINDS:
            above = median(b - a for a, b in zip(direct.medians[kind], way.medians[kind], strict=True))
            spent = way.spent[kind] / max(1, way.calls[kind]) / 1e6
            line += f"{median(way.medians[kind]):18.0f}{above:8.0f}{spent:8.3f}"
        print(line)


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as short, ExitStack() as stack:
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {ROUNDS} rounds")
        asyncio.run(calls(Processes(stack, Path(name)), Path(short)))


if __name__ == "__main__":
    main()
