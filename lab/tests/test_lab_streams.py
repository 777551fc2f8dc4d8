"""exec, attach and port-forward through the small API server; the frames of port-forward by themselves."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from clusters import streams_by_kubectl
from hypothesis import given
from hypothesis import strategies as st
from labs.lab_running import Running, until

from isthmus_lab.node import spdy
from isthmus_lab.node.forwarding import forward
from isthmus_lab.node.spdy import Data, Ended, Opened, Pinged


@pytest.fixture(scope="module")
def served(clusters: Running) -> Running:
    streams_by_kubectl.prepare(clusters)
    return clusters


@pytest.mark.lab
@pytest.mark.parametrize("holds", streams_by_kubectl.ALL, ids=lambda each: each.__name__)
def test_kubectl_reaches_into_a_pod(served: Running, holds: Callable[[Running], None]) -> None:
    holds(served)


@pytest.mark.lab
def test_a_terminal_has_a_name_in_its_container(served: Running) -> None:
    command = " ".join([*served.kubectl_command(), "exec", "-it", "served", "-c", "web", "--", "tty"])
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=100)
    assert "/dev/pts/0" in done.stdout


@pytest.mark.lab
def test_why_a_container_cannot_be_entered_is_reported(served: Running) -> None:
    served.kubectl("run", "over", "--image=busybox", "--", "false")
    until(lambda: "container over does not run" in streams_by_kubectl.run(served, "exec", "over", "--", "true").stderr)


def opened(stream: int, headers: dict[str, str], deflate: zlib._Compress) -> bytes:
    """SYN_STREAM of SPDY as a client writes it."""
    words = [each.encode() for pair in headers.items() for each in pair]
    block = struct.pack("!I", len(headers)) + b"".join(struct.pack("!I", len(word)) + word for word in words)
    packed = deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return struct.pack("!HHIIIH", 0x8003, 1, 10 + len(packed), stream, 0, 0) + packed


def conversation() -> tuple[bytes, list[spdy.Event]]:
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    ping = struct.pack("!HHII", 0x8003, 6, 4, 1)
    settings = struct.pack("!HHII", 0x8003, 4, 4, 0)
    reset = struct.pack("!HHIII", 0x8003, 3, 8, 3, 5)
    sent = [
        opened(1, {"streamtype": "error", "port": "80"}, deflate),
        opened(3, {"streamtype": "data", "port": "80"}, deflate),
        spdy.data_frame(1, b"", end=True),
        ping,
        settings,
        spdy.data_frame(3, b"GET / HTTP/1.0\r\n\r\n"),
        reset,
    ]
    return b"".join(sent), [
        Opened(1, {"streamtype": "error", "port": "80"}),
        Opened(3, {"streamtype": "data", "port": "80"}),
        Data(1, b""),
        Ended(1, reset=False),
        Pinged(ping),
        Data(3, b"GET / HTTP/1.0\r\n\r\n"),
        Ended(3, reset=True),
    ]


@given(st.lists(st.integers(1, 60)))
def test_frames_are_read_in_whatever_pieces_they_come(sizes: list[int]) -> None:
    sent, expected = conversation()
    session = spdy.Session()
    received: list[spdy.Event] = []
    for size in [*sizes, len(sent)]:
        received += session.received(sent[:size])
        sent = sent[size:]
    assert received == expected


def test_the_dictionary_of_headers_is_the_protocols() -> None:
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2


@pytest.mark.parametrize(
    "sent",
    [struct.pack("!II", 1, 0xFFFFFF), struct.pack("!HHIIIH", 0x8003, 1, 12, 1, 0, 0) + b"xx", b"\x80\3\0\1\0\0\0\1x"],
)
def test_what_is_no_frame_is_an_error_and_nothing_else(sent: bytes) -> None:
    with pytest.raises(spdy.BadFrame):
        list(spdy.Session().received(sent))


async def shouts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A pod's program that answers in capitals, until its caller ends."""
    while data := await reader.read(100):
        writer.write(data.upper())
    writer.close()


@asynccontextmanager
async def forwarding() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await forward(request, None)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_a_client_that_forwards_by_channels_gets_the_bytes_of_each_port_and_its_errors() -> None:
    """kubernetes-python and kr8s forward so; the first message of each channel is its port."""
    server = await asyncio.start_server(shouts, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    closed = await asyncio.start_server(shouts, "127.0.0.1", 0)
    nobody = closed.sockets[0].getsockname()[1]
    closed.close()
    async with forwarding() as url, aiohttp.ClientSession() as session:
        query = [("ports", f"{port},{nobody}")]
        async with session.ws_connect(url, params=query, protocols=["v4.channel.k8s.io"]) as client:
            first = [await client.receive_bytes() for _ in range(4)]
            assert [(each[0], int.from_bytes(each[1:], "little")) for each in first] == [
                (0, port), (1, port), (2, nobody), (3, nobody),
            ]  # fmt: skip
            error = await client.receive_bytes()
            assert (error[0], f"port {nobody} of the pod" in error[1:].decode()) == (3, True)
            await client.send_bytes(b"\x00hello")
            assert await client.receive_bytes() == b"\x00HELLO"
    server.close()


@pytest.mark.parametrize("query", ["", "ports=0", "ports=99999", "ports=http", "ports=" + "1," * 65 + "1"])
async def test_ports_that_are_none_are_refused_before_the_connection_is_a_websocket(query: str) -> None:
    async with forwarding() as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{url}?{query}", protocols=["v4.channel.k8s.io"])
    assert refused.value.status == 400
