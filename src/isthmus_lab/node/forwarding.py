"""``kubectl port-forward``: calls from the caller's machine to a pod's own loopback, or its address.

kubectl speaks SPDY within a WebSocket. A call is two streams, opened by kubectl: what went wrong goes by the first,
bytes by the second.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from aiohttp import WSMsgType, web

from isthmus_lab import kernel
from isthmus_lab.node import spdy

PROTOCOL: Final = "SPDY/3.1+portforward.k8s.io"
PIECE: Final = 1 << 15


async def forward(request: web.Request, namespace: Path | None, *, host: str = "127.0.0.1") -> web.StreamResponse:
    """Until the caller leaves; the ports are those of an address, in a network namespace if there is one."""
    there = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
    if not there.can_prepare(request):
        raise web.HTTPBadRequest(text="port-forward wants a WebSocket, as kubectl speaks it from 1.31 on\n")
    await there.prepare(request)
    calls = _Calls(there, namespace, host)
    try:
        async for message in there:
            if message.type is WSMsgType.BINARY:
                await calls.take(message.data)
    except spdy.BadFrame as why:
        await there.close(code=1002, message=str(why).encode())
    finally:
        calls.end()
    return there


class _Calls:
    """The streams of one caller."""

    def __init__(self, there: web.WebSocketResponse, namespace: Path | None, host: str) -> None:
        self._there = there
        self._namespace = namespace
        self._host = host
        self._session = spdy.Session()
        self._errors: dict[str, int] = {}
        """By the number that kubectl gave the call: where its errors go."""
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def take(self, data: bytes) -> None:
        """What the caller sends."""
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
            reader, writer = await self._connect(int(port))
        except (OSError, ValueError) as why:
            await self._send(failed, f"port {port} of the pod: {why}".encode(), end=True)
            await self._send(stream, b"", end=True)
            return
        self._writers[stream] = writer
        self._tasks[stream] = asyncio.ensure_future(self._read(stream, reader, failed))

    async def _connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await self._dial(socket.AF_INET, self._host, port)
        except OSError as why:
            try:
                return await self._dial(socket.AF_INET6, "::1", port)
            except OSError:
                raise why from None

    async def _dial(
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
