"""Probes of a container: exec, tcpSocket, httpGet, grpc. Each gives a failure as a sentence, or None."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from isthmus.model.hosts import joined
from isthmus_lab.node import grpc_health
from isthmus_lab.node.objects import Container, HttpGet, Probe

Run = Callable[[list[str]], Awaitable[int]]
EAGER = 0.05
"""Until it first succeeds a readiness probe runs more often than its period, so that a pod is ready sooner."""


async def ask(probe: Probe, container: Container, *, address: str, run: Run) -> str | None:
    """One attempt, within the probe's timeout."""
    try:
        async with asyncio.timeout(probe.timeout_seconds):
            if probe.exec is not None:
                code = await run(probe.exec.command)
                return f"{probe.exec.command[0]} gave {code}" if code else None
            if probe.http_get is not None:
                return await _http(probe.http_get, container, address)
            if probe.tcp_socket is not None:
                port = port_of(probe.tcp_socket.port, container)
                _, writer = await asyncio.open_connection(probe.tcp_socket.host or address, port)
                writer.close()
            if probe.grpc is not None:
                return await grpc_health.check(address, probe.grpc.port, probe.grpc.service)
            return None
    except TimeoutError:
        return f"no answer within {probe.timeout_seconds} s"
    except (OSError, ValueError) as error:
        return str(error)


def port_of(port: int | str, container: Container) -> int:
    """Port number, looked up if given by name. Raises ValueError for an unknown name."""
    if isinstance(port, int):
        return port
    for container_port in container.ports or ():
        if container_port.name == port:
            return container_port.container_port
    raise ValueError(f"container {container.name} has no port named {port!r}")


def ports(container: Container) -> list[str]:
    """Ports that a container should listen on, declared or probed, as ``tcp:80``."""
    result = [f"{port.protocol.lower()}:{port.container_port}" for port in container.ports or ()]
    for probe in (container.startup_probe, container.readiness_probe, container.liveness_probe):
        for way in (probe.http_get, probe.tcp_socket, probe.grpc) if probe else ():
            if way is not None and isinstance(way.port, int):
                result.append(f"tcp:{way.port}")
    return [each for each in dict.fromkeys(result) if each.startswith(("tcp:", "udp:"))]


def eager(probe: Probe) -> list[float]:
    """Pauses before the first success: doubling up to the probe's period."""
    pauses, pause = [], EAGER
    while pause < probe.period_seconds:
        pauses.append(pause)
        pause *= 2
    return pauses


async def _http(get: HttpGet, container: Container, address: str) -> str | None:
    """A request by hand: a client library would follow redirects and share connections, a kubelet does neither."""
    host, port = get.host or address, port_of(get.port, container)
    headers = {"Host": joined(host, port), "User-Agent": "kube-probe/isthmus-lab", "Connection": "close"}
    headers |= {header.name: header.value for header in get.http_headers or ()}
    path = get.path if get.path.startswith("/") else f"/{get.path}"
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write("\r\n".join(lines).encode())
        status = (await reader.readline()).split()
    finally:
        writer.close()
    if len(status) < 2 or not status[1].isdigit():
        return "the answer is not HTTP"
    code = int(status[1])
    return None if 200 <= code < 400 else f"HTTP status {code}"
