"""The node's own HTTP API, as a kubelet has it: what an API server asks for ``kubectl logs`` and ``exec``.

Only the cluster's API server may ask: by a certificate of the lab's authority, or with the cluster's token.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from isthmus.lab.layout import Node
from isthmus.lab.node import streams
from isthmus.lab.node.containers import Runner

PORT: Final = 10250
CHUNK: Final = 1 << 16
LOOK: Final = 0.1
"""Seconds between two looks at a log that is followed."""


class Running(Protocol):
    """A pod of this node."""

    def container(self, name: str) -> Runner | None:
        """One of its containers, by name; the first if it is empty."""
        ...


Find = Callable[[str, str], Running | None]
"""(namespace, name) → the pod."""


class NotHere(web.HTTPNotFound):
    """The pod or container is not of this node; the text says which."""


async def serve(node: Node, find: Find, *, token: str) -> None:
    """For ever; runs in the node's network namespace."""
    app = web.Application()
    app.router.add_get("/healthz", _healthz)
    where = "{namespace}/{pod}/{container}"
    app.router.add_get(f"/containerLogs/{where}", lambda request: _logs(request, find, token))
    app.router.add_route("*", f"/exec/{where}", lambda request: _exec(request, find, token))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, node.address, PORT, ssl_context=_tls(node)).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def certificate(node: Node) -> Path:
    """What the node shows."""
    return node.directory / "kubelet.crt"


def key(node: Node) -> Path:
    """The key of that."""
    return node.directory / "kubelet.key"


def authority(node: Node) -> Path:
    """Who vouches for those who may ask."""
    return node.cluster.directory / "ca.crt"


def _tls(node: Node) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(node), key(node))
    context.load_verify_locations(authority(node))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _container(request: web.Request, find: Find, token: str) -> Runner:
    """The container that is asked for, if by somebody who may."""
    said = request.headers.get("Authorization", "").removeprefix("Bearer ")
    transport = request.transport
    shown = transport.get_extra_info("peercert") if transport is not None else None
    if not shown and not (token and hmac.compare_digest(said.encode(), token.encode())):
        raise web.HTTPUnauthorized(text="only the cluster's API server may ask\n")
    parts = request.match_info
    pod = find(parts["namespace"], parts["pod"])
    runner = pod.container(parts["container"]) if pod is not None else None
    if runner is None:
        raise NotHere(text=f"container {parts['container']} of pod {parts['namespace']}/{parts['pod']} is not here\n")
    return runner


async def _logs(request: web.Request, find: Find, token: str) -> web.StreamResponse:
    runner = _container(request, find, token)
    previous = _truth(request, "previous")
    path = runner.log(previous=previous)
    if path is None:
        name = request.match_info["container"]
        raise web.HTTPBadRequest(text=f"previous terminated container {name!r} not found\n")
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    follow = _truth(request, "follow") and not previous
    position = start_of(path, request.query.get("tailLines"))
    limit = int(request.query.get("limitBytes") or 1 << 62)
    while limit > 0:
        running = runner.running  # looked at before reading: what is written last is read, too
        data = _read(path, position, min(CHUNK, limit))
        position, limit = position + len(data), limit - len(data)
        if data:
            await response.write(data)
        elif not follow or not running:
            break
        else:
            await asyncio.sleep(LOOK)
    await response.write_eof()
    return response


async def _exec(request: web.Request, find: Find, token: str) -> web.StreamResponse:
    runner = _container(request, find, token)
    asked = streams.Asked(
        command=tuple(request.query.getall("command", [])),
        stdin=_truth(request, "stdin", "input"),
        tty=_truth(request, "tty"),
    )
    inside = runner.inside
    if inside is None:
        raise web.HTTPConflict(text=f"container {request.match_info['container']} does not run\n")
    if not asked.command:
        raise web.HTTPBadRequest(text="command is missing\n")
    return await streams.exec(request, inside, asked)


def _truth(request: web.Request, *names: str) -> bool:
    return any(request.query.get(name, "") in ("1", "true", "True") for name in names)


def _read(path: Path, position: int, most: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(position)
            return log.read(most)
    except FileNotFoundError:
        return b""


def start_of(path: Path, lines: str | None) -> int:
    """Where the last so many lines begin."""
    if lines is None or not lines.isdigit() or not path.exists():
        return 0
    data = path.read_bytes()
    if lines == "0":
        return len(data)
    position = len(data.removesuffix(b"\n"))
    for _ in range(int(lines)):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1
