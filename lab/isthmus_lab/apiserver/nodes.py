"""Proxy for requests that a pod's node answers: logs, exec, attach, port-forward.

A node is reached where ``status.addresses`` (InternalIP) and ``status.daemonEndpoints.kubeletEndpoint.Port`` are,
and serves the kubelet's paths: ``/containerLogs/NS/POD/CONTAINER``, ``/exec/…``, ``/attach/…`` (parameters ``command``,
``input``, ``output``, ``error``, ``tty``), ``/portForward/NS/POD``. Streams are WebSockets, whose protocol client and
node agree on. With certificates both sides prove who they are, as kube-apiserver and kubelet do; without, it is HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
from aiohttp import web

from isthmus_lab.apiserver import errors, kinds
from isthmus_lab.apiserver.api import Api
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object, items, name_of, nested
from isthmus_lab.apiserver.requests import ObjectPath

CONNECT: Final = 5.0
STREAMS: Final = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
LOGS: Final = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes")
PROTOCOL: Final = "Sec-WebSocket-Protocol"

Wishes = list[tuple[str, str]]


class Nodes:
    """The way to the nodes. ``tls`` is an SSLContext, or None for plain HTTP."""

    def __init__(self, api: Api, *, tls: Any = None) -> None:
        self._api = api
        self._tls = tls

    async def answer(self, request: web.Request, target: ObjectPath) -> web.StreamResponse:
        """Have a pod's node answer a request for one of its subresources."""
        pod = self._api.get(target.kind, target.namespace, target.name).body
        base = self._address(pod)
        where = f"{target.namespace}/{target.name}"
        try:
            async with self._session() as session:
                if target.subresource == "log":
                    url = f"{base}/containerLogs/{where}/{_container(pod, request)}"
                    return await _logs(session, url, request)
                if target.subresource == "portforward":
                    return await _stream(session, f"{base}/portForward/{where}", request, list(request.query.items()))
                url = f"{base}/{target.subresource}/{where}/{_container(pod, request)}"
                return await _stream(session, url, request, _wishes(request))
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            node = nested(pod, "spec", "nodeName")
            raise ApiError(502, "BadGateway", f"node {node} does not answer at {base}: {error}") from None

    def _session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
        connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
        return aiohttp.ClientSession(connector=connector, timeout=timeout)

    def _address(self, pod: Object) -> str:
        name = nested(pod, "spec", "nodeName")
        if not name:
            raise errors.bad_request(f"pod {name_of(pod)} does not have a host assigned")
        node = self._api.get(kinds.NODE, "", name).body
        port = nested(node, "status", "daemonEndpoints", "kubeletEndpoint", "Port")
        addresses = (a["address"] for a in items(node, "status", "addresses") if a.get("type") == "InternalIP")
        host = next(addresses, "")
        if not host or not port:
            missing = "an InternalIP" if not host else "status.daemonEndpoints.kubeletEndpoint.Port"
            raise ApiError(501, "NotImplemented", f"node {name} has not got {missing}: it serves neither logs nor exec")
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _container(pod: Object, request: web.Request) -> str:
    """Name of the requested container; defaults to the pod's only one."""
    groups = ("containers", "initContainers", "ephemeralContainers")
    names = [str(c.get("name")) for group in groups for c in items(pod, "spec", group)]
    asked = request.query.get("container", "")
    if asked and asked not in names:
        raise errors.bad_request(f"container {asked} is not valid for pod {name_of(pod)}")
    first = [str(c.get("name")) for c in items(pod, "spec", "containers")]
    if not asked and len(first) > 1:
        message = f"a container name must be specified for pod {name_of(pod)}, choose one of: [{' '.join(first)}]"
        raise errors.bad_request(message)
    return asked or first[0]


def _wishes(request: web.Request) -> Wishes:
    """The parameters of exec and attach, as a kubelet calls them."""
    parameters = [("command", part) for part in request.query.getall("command", [])]
    return parameters + [
        (internal, "1") for external, internal in STREAMS.items() if request.query.get(external) in ("true", "1")
    ]


async def _logs(session: aiohttp.ClientSession, url: str, request: web.Request) -> web.StreamResponse:
    wishes = {name: request.query[name] for name in LOGS if name in request.query}
    async with session.get(url, params=wishes) as answer:
        if answer.status >= 400:
            raise ApiError(answer.status, "BadRequest", (await answer.text()).strip())
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
        await response.write_eof()
        return response


async def _stream(session: aiohttp.ClientSession, url: str, request: web.Request, wishes: Wishes) -> web.StreamResponse:
    if "websocket" not in request.headers.get("Upgrade", "").lower():
        async with session.post(url, params=wishes) as answer:  # kubectl tries SPDY where a WebSocket was refused
            raise ApiError(max(answer.status, 400), "BadRequest", (await answer.text()).strip())
    offered = [each.strip() for each in request.headers.get(PROTOCOL, "").split(",") if each.strip()]
    try:
        node = await session.ws_connect(url, params=wishes, protocols=offered, max_msg_size=0)
    except aiohttp.WSServerHandshakeError as error:
        raise ApiError(error.status, "InternalError", f"the node refuses: {error.message}") from None
    client = web.WebSocketResponse(protocols=[node.protocol] if node.protocol else [], max_msg_size=0)
    await client.prepare(request)
    pumps = [asyncio.create_task(_pump(node, client)), asyncio.create_task(_pump(client, node))]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await client.close(code=node.close_code or 1000)
        await node.close()
    return client


WebSocket = aiohttp.ClientWebSocketResponse | web.WebSocketResponse


async def _pump(source: WebSocket, sink: WebSocket) -> None:
    """Every message, until the source closes."""
    async for message in source:
        if message.type is aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
