"""A caller's standard streams over one connection: messages of a WebSocket, or streams of SPDY. One numbering for both.

WebSocket is kubectl's ``v5.channel.k8s.io`` and the one before it: the first byte of a message is its channel. SPDY/3.1
is what client-go's SPDY executor and kubectl before 1.31 speak (``v4.channel.k8s.io``): the caller opens a stream for
each channel, whose header ``streamType`` names it. In both the status is sent last, then the close: without a status
kubectl takes any end for success.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

import msgspec
from aiohttp import WSMsgType, web

from isthmus_lab.node import spdy
from isthmus_lab.node.stdio import CHUNK, STDERR, STDIN, STDOUT

STATUS, RESIZE, CLOSE = 3, 4, 255
"""CLOSE carries the number of the channel whose input has ended."""
WEBSOCKET: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SPDY: Final = "v4.channel.k8s.io"
STREAM_TYPES: Final = {"stdin": STDIN, "stdout": STDOUT, "stderr": STDERR, "error": STATUS, "resize": RESIZE}
VERSION: Final = "X-Stream-Protocol-Version"
OPEN_TIMEOUT: Final = 30.0
"""Seconds in which a SPDY caller must open its streams; a kubelet uses the same bound."""


class Channels(Protocol):
    """One caller."""

    async def send(self, channel: int, data: bytes) -> None:
        """Output of the command."""

    def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """Channel and data, until the caller leaves."""

    async def finish(self, status: dict[str, Any]) -> web.StreamResponse:
        """Send the status, and close."""


async def opened(request: web.Request, *, required: frozenset[int]) -> Channels:
    """The channels of a request, accepted. ``required``: those without which a SPDY caller's command cannot begin."""
    if request.headers.get("Upgrade", "").upper() == "SPDY/3.1":
        return await SpdyChannels.opened(request, required | {STATUS})
    socket = web.WebSocketResponse(protocols=WEBSOCKET)
    if not socket.can_prepare(request):
        raise web.HTTPBadRequest(text="this node streams over WebSockets and SPDY/3.1\n")
    await socket.prepare(request)
    return WebSocketChannels(socket)


class WebSocketChannels:
    """Messages that begin with the number of their channel."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def send(self, channel: int, data: bytes) -> None:
        """See :class:`Channels`."""
        await self._socket.send_bytes(bytes([channel]) + data)

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """See :class:`Channels`."""
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]

    async def finish(self, status: dict[str, Any]) -> web.StreamResponse:
        """See :class:`Channels`."""
        if not self._socket.closed:
            await self.send(STATUS, msgspec.json.encode(status))
            await self._socket.close()
        return self._socket


class SpdyChannels:
    """Streams of SPDY, right after the answer 101."""

    def __init__(self, response: web.StreamResponse, reader: asyncio.StreamReader) -> None:
        self._response = response
        self._reader = reader
        self._session = spdy.Session()
        self._streams: dict[int, int] = {}
        """Stream numbers by channel."""
        self._channels: dict[int, int] = {}
        """Channel numbers by stream."""
        self._early: list[tuple[int, bytes]] = []
        """Messages received before the last stream was open."""

    @classmethod
    async def opened(cls, request: web.Request, required: frozenset[int]) -> SpdyChannels:
        """Accept the upgrade, and wait until the caller has opened the streams."""
        offered = ",".join(request.headers.getall(VERSION, []))
        if SPDY not in (each.strip() for each in offered.split(",")):
            raise web.HTTPForbidden(text=f"this node speaks {SPDY} over SPDY/3.1\n")
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", VERSION: SPDY}
        response = web.StreamResponse(status=101, headers=headers)
        response.force_close()
        reader = asyncio.StreamReader(limit=CHUNK)
        assert request.transport is not None
        reader.set_transport(request.transport)
        request.protocol.set_parser(_Feed(reader))  # type: ignore[arg-type]  # as WebSocketReader is used there
        await response.prepare(request)
        channels = cls(response, reader)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                while not required <= channels._streams.keys():
                    channels._early += await channels._read()
        except (TimeoutError, ConnectionError) as error:
            request.transport.close()  # an answer of HTTP would come among the frames
            raise web.HTTPRequestTimeout(text=f"the streams were not opened: {error}\n") from None
        return channels

    async def send(self, channel: int, data: bytes) -> None:
        """See :class:`Channels`."""
        await self._send(channel, data)

    async def received(self) -> AsyncIterator[tuple[int, bytes]]:
        """See :class:`Channels`."""
        while True:
            early, self._early = self._early, []
            for message in early:
                yield message
            try:
                self._early = await self._read()
            except ConnectionError:
                return

    async def finish(self, status: dict[str, Any]) -> web.StreamResponse:
        """See :class:`Channels`."""
        try:
            for channel in (STDOUT, STDERR):
                await self._send(channel, b"", end=True)
            await self._send(STATUS, msgspec.json.encode(status), end=True)
        except ConnectionError:
            pass  # the caller has left
        return self._response

    async def _send(self, channel: int, data: bytes, *, end: bool = False) -> None:
        if (stream := self._streams.get(channel)) is not None:
            await self._response.write(spdy.data_frame(stream, data, end=end))

    async def _read(self) -> list[tuple[int, bytes]]:
        """Read the next messages. Raises ConnectionError at the end or if the data is not SPDY."""
        data = await self._reader.read(CHUNK)
        if not data:
            raise ConnectionResetError("the caller has left")
        messages: list[tuple[int, bytes]] = []
        try:
            for event in self._session.received(data):
                match event:
                    case spdy.Opened(stream, headers):
                        await self._open(stream, headers.get("streamtype", ""))
                    case spdy.Data(stream, data) if data and stream in self._channels:
                        messages.append((self._channels[stream], data))
                    case spdy.Ended(stream, _) if stream in self._channels:
                        messages.append((CLOSE, bytes([self._channels[stream]])))
                    case spdy.Pinged(frame):
                        await self._response.write(frame)
        except spdy.BadFrame as error:
            raise ConnectionResetError(str(error)) from None
        return messages

    async def _open(self, stream: int, kind: str) -> None:
        """Accept a stream; one of each type, so that a caller cannot open more than five."""
        channel = STREAM_TYPES.get(kind)
        if channel is None or channel in self._streams:
            raise spdy.BadFrame(f"a stream of type {kind!r}")
        self._streams[channel] = stream
        self._channels[stream] = channel
        await self._response.write(self._session.accept(stream))


class _Feed:
    """Gives a connection's bytes to a stream reader, as aiohttp hands them to a parser of an upgraded connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()
