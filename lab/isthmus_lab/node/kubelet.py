"""The kubelet API of a node: an API server calls it for ``kubectl logs``, ``exec`` and the like.

Only the cluster's API server may ask: by a certificate of the lab's authority, or with the cluster's token.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from isthmus_lab.layout import LONGEST_REQUEST_LINE, Node
from isthmus_lab.node import forwarding, streams, tail
from isthmus_lab.node.containers import Runner
from isthmus_lab.node.pod_record import PodLocation

PORT: Final = 10250
POLL_INTERVAL: Final = 0.1
"""Seconds between two looks at a log that is followed."""


class Running(Protocol):
    """A pod of this node."""

    place: PodLocation

    def container(self, name: str) -> Runner | None:
        """One of its containers, by name; the first if it is empty."""
        ...


Find = Callable[[str, str], Running | None]
"""(namespace, name) → the pod."""


class NotHere(web.HTTPNotFound):
    """The pod or container is not of this node; the text names it."""


async def serve(node: Node, find: Find, *, token: str) -> None:
    """For ever; runs in the node's network namespace."""
    app = web.Application()
    app.router.add_get("/healthz", _healthz)
    where = "{namespace}/{pod}/{container}"
    app.router.add_get(f"/containerLogs/{where}", lambda request: _logs(request, find, token))
    app.router.add_route("*", f"/exec/{where}", lambda request: _exec(request, find, token))
    app.router.add_route("*", f"/attach/{where}", lambda request: _attach(request, find, token))
    app.router.add_route("*", "/portForward/{namespace}/{pod}", lambda request: _forward(request, find, token))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, max_line_size=LONGEST_REQUEST_LINE)
    await runner.setup()
    try:
        for address in node.addresses:
            await web.TCPSite(runner, address, PORT, ssl_context=_tls(node)).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def certificate(node: Node) -> Path:
    """Server certificate of the node."""
    return node.directory / "kubelet.crt"


def key(node: Node) -> Path:
    """Private key of that certificate."""
    return node.directory / "kubelet.key"


def authority(node: Node) -> Path:
    """CA certificate that client certificates are verified with."""
    return node.cluster.directory / "ca.crt"


def _tls(node: Node) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(node), key(node))
    context.load_verify_locations(authority(node))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _pod(request: web.Request, find: Find, token: str) -> Running:
    """The pod of a request, if the request is authorised."""
    sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
    transport = request.transport
    peer = transport.get_extra_info("peercert") if transport is not None else None
    if not peer and not (token and hmac.compare_digest(sent.encode(), token.encode())):
        raise web.HTTPUnauthorized(text="only the cluster's API server may ask\n")
    parts = request.match_info
    if (pod := find(parts["namespace"], parts["pod"])) is None:
        raise NotHere(text=f"pod {parts['namespace']}/{parts['pod']} is not here\n")
    return pod


def _container(request: web.Request, find: Find, token: str) -> Runner:
    parts = request.match_info
    runner = _pod(request, find, token).container(parts["container"])
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
    position = tail.start_of(path, request.query.get("tailLines"))
    limit = int(request.query.get("limitBytes") or 1 << 62)
    async with aclosing(tail.read(runner, path, position, every=POLL_INTERVAL if follow else 0.0)) as lines:
        async for data in lines:
            await response.write(data[:limit])
            limit -= len(data)
            if limit <= 0:
                break
    await response.write_eof()
    return response


async def _exec(request: web.Request, find: Find, token: str) -> web.StreamResponse:
    runner = _container(request, find, token)
    asked = _asked(request)
    inside = runner.inside
    if inside is None:
        raise _not_running(request)
    if not asked.command:
        raise web.HTTPBadRequest(text="command is missing\n")
    return await streams.exec(request, inside, asked)


async def _attach(request: web.Request, find: Find, token: str) -> web.StreamResponse:
    runner = _container(request, find, token)
    if not runner.running:
        raise _not_running(request)
    return await streams.attach(request, runner, _asked(request))


async def _forward(request: web.Request, find: Find, token: str) -> web.StreamResponse:
    place = _pod(request, find, token).place
    if (namespace := place.namespace_path) is None:
        return await forwarding.forward(request, None, host=place.address)
    return await forwarding.forward(request, namespace)


def _not_running(request: web.Request) -> web.HTTPConflict:
    return web.HTTPConflict(text=f"container {request.match_info['container']} does not run\n")


def _asked(request: web.Request) -> streams.StreamRequest:
    return streams.StreamRequest(
        command=tuple(request.query.getall("command", [])),
        stdin=_truth(request, "stdin", "input"),
        tty=_truth(request, "tty"),
    )


def _truth(request: web.Request, *names: str) -> bool:
    return any(request.query.get(name, "") in ("1", "true", "True") for name in names)
