"""``kubectl port-forward``: calls from the caller's machine to a pod's own loopback, or its address.

kubectl speaks SPDY within a WebSocket. A call is two streams, opened by kubectl: errors use the first, bytes the
second. Other clients (kubernetes-python, kr8s) speak the older ``v4.channel.k8s.io``: a WebSocket is one call of each
port that its query names. A message begins with the number of its channel: 2n for the bytes of the nth port, 2n + 1 for
its errors. The first message of each channel is the port, two bytes in little-endian order.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from aiohttp import WSMsgType, web

from isthmus import bounds
from isthmus_lab import kernel
from isthmus_lab.node import spdy

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
CHANNELS: Final = "v4.channel.k8s.io"
MAX_PORTS: Final = 64
PIECE: Final = 1 << 15


async def forward(request: web.Request, namespace: Path | None, *, host: str = "127.0.0.1") -> web.StreamResponse:
    """Forward until the caller leaves, to the ports of an address, in a network namespace if there is one."""
    client = web.WebSocketResponse(protocols=(PROTOCOL, CHANNELS), max_msg_size=0)
    ready = client.can_prepare(request)
    if not ready or ready.protocol is None:
        raise web.HTTPBadRequest(
            text=f"port-forward needs a WebSocket of {PROTOCOL} (kubectl from 1.31) or {CHANNELS}\n"
        )
    ports = _ports(request) if ready.protocol == CHANNELS else []
    await client.prepare(request)
    dial = Dial(namespace, host)
    if ready.protocol == CHANNELS:
        await _channels(client, dial, ports)
        return client
    calls = _Calls(client, dial)
    try:
        async for message in client:
            if message.type is WSMsgType.BINARY:
                await calls.take(message.data)
    except spdy.BadFrame as error:
        await client.close(code=1002, message=str(error).encode())
    finally:
        calls.end()
    return client


class Dial:
    """Connects to a port of a pod."""

    def __init__(self, namespace: Path | None, host: str) -> None:
        self._namespace = namespace
        self._host = host

    async def __call__(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect over IPv4, else over IPv6. Raises the OSError of IPv4."""
        try:
            return await self._connect(socket.AF_INET, self._host, port)
        except OSError as error:
            try:
                return await self._connect(socket.AF_INET6, "::1", port)
            except OSError:
                raise error from None

    async def _connect(
        self, family: socket.AddressFamily, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with nullcontext() if self._namespace is None else kernel.inside(self._namespace):
            made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        except BaseException:
            made.close()
            raise
        return await asyncio.open_connection(sock=made)


def _ports(request: web.Request) -> list[int]:
    """Ports in the query (``ports=80&ports=81`` or ``ports=80,81``)."""
    words = [word for text in request.query.getall("ports", []) for word in text.split(",")]
    try:
        ports = [bounds.port(word) for word in words]
    except bounds.OutOfBounds as error:
        raise web.HTTPBadRequest(text=f"ports: {error}\n") from None
    if not 0 < len(ports) <= MAX_PORTS:
        raise web.HTTPBadRequest(text=f"ports: want 1 to {MAX_PORTS}\n")
    return ports


async def _channels(client: web.WebSocketResponse, dial: Dial, ports: list[int]) -> None:
    """Forward one call of each port by channels, until the caller leaves or every call has ended."""
    writers: dict[int, asyncio.StreamWriter] = {}

    async def copy(number: int, port: int) -> None:
        try:
            reader, writer = await dial(port)
        except OSError as error:
            await client.send_bytes(bytes([2 * number + 1]) + f"port {port} of the pod: {error}".encode())
            return
        writers[number] = writer
        with suppress(ConnectionError):
            while data := await reader.read(PIECE):
                await client.send_bytes(bytes([2 * number]) + data)

    async def copy_all() -> None:
        await asyncio.gather(*(copy(number, port) for number, port in enumerate(ports)))
        await client.close()

    for channel in range(2 * len(ports)):
        await client.send_bytes(bytes([channel]) + ports[channel // 2].to_bytes(2, "little"))
    copying = asyncio.ensure_future(copy_all())
    try:
        async for message in client:
            channel = message.data[0] if message.type is WSMsgType.BINARY and message.data else -1
            if channel % 2 == 0 and (writer := writers.get(channel // 2)) is not None:
                writer.write(message.data[1:])
                with suppress(ConnectionError):
                    await writer.drain()
    finally:
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        for writer in writers.values():
            writer.close()


class _Calls:
    """The streams of one caller."""

    def __init__(self, client: web.WebSocketResponse, dial: Dial) -> None:
        self._there = client
        self._dial = dial
        self._session = spdy.Session()
        self._errors: dict[str, int] = {}
        """Error stream of each forwarded connection, by kubectl's request ID."""
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def take(self, data: bytes) -> None:
        """Process data from the caller."""
        for event in self._session.received(data):
            match event:
                case spdy.Opened(stream, headers):
                    await self._there.send_bytes(self._session.accept(stream))
                    await self._open(stream, headers)
                case spdy.Data(stream, data):
                    await self._write(stream, data)
                case spdy.Ended(stream, reset):
                    self._ended(stream, reset=reset)
                case spdy.Pinged(frame):
                    await self._there.send_bytes(frame)

    def end(self) -> None:
        """The caller is gone."""
        for stream in [*self._writers]:
            self._ended(stream, reset=True)

    async def _open(self, stream: int, headers: dict[str, str]) -> None:
        call, port = headers.get("requestid", ""), headers.get("port", "")
        if headers.get("streamtype") == "error":
            self._errors[call] = stream
            return
        failed = self._errors.pop(call, 0)
        try:
            reader, writer = await self._dial(bounds.port(port))
        except (OSError, ValueError) as error:
            await self._send(failed, f"port {port} of the pod: {error}".encode(), end=True)
            await self._send(stream, b"", end=True)
            return
        self._writers[stream] = writer
        self._tasks[stream] = asyncio.ensure_future(self._read(stream, reader, failed))

    async def _read(self, stream: int, reader: asyncio.StreamReader, failed: int) -> None:
        try:
            while data := await reader.read(PIECE):
                await self._send(stream, data)
        except ConnectionError:
            pass  # the pod's end was reset, or the caller is gone: the end of the stream reports it
        if not self._there.closed:
            await self._send(stream, b"", end=True)
            await self._send(failed, b"", end=True)
        self._ended(stream, reset=True)

    async def _write(self, stream: int, data: bytes) -> None:
        if data and (writer := self._writers.get(stream)) is not None:
            writer.write(data)
            try:
                await writer.drain()
            except ConnectionError:
                self._ended(stream, reset=True)

    def _ended(self, stream: int, *, reset: bool) -> None:
        writer = self._writers.get(stream)
        if writer is None:
            return
        if not reset and writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()  # what the pod still sends is forwarded
            return
        del self._writers[stream]
        task = self._tasks.pop(stream)
        if task is not asyncio.current_task():
            task.cancel()
        writer.close()

    async def _send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        await self._there.send_bytes(spdy.data_frame(stream, data, end=end))
