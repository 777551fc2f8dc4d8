"""exec as client-go's SPDY executor asks for it: frames on a bare connection to the node."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest
from labs.host_processes import with_command
from labs.lab_running import Running

from isthmus_lab import kernel
from isthmus_lab.network import namespaces
from isthmus_lab.node import spdy
from isthmus_lab.node.kubelet import PORT

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NAMES = ("error", "stdin", "stdout", "stderr")
STREAMS = {name: 2 * number + 1 for number, name in enumerate(NAMES)}
"""A client's streams have odd numbers."""


@pytest.fixture(scope="module")
def called(clusters: Running) -> Running:
    """A lab with a pod that does nothing."""
    clusters.kubectl("run", "called", "--image=isthmus/client")
    clusters.kubectl("wait", "--for=condition=Ready", "pod/called", "--timeout=180s")
    return clusters


class Caller:
    """The client's side of a connection that was upgraded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
        self.output: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def open(self, name: str, stream: int) -> None:
        words = [b"streamtype", name.encode()]
        block = struct.pack("!I", 1) + b"".join(struct.pack("!I", len(word)) + word for word in words)
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._writer.write(struct.pack("!HHIIIH", 0x8003, 1, 10 + len(packed), stream, 0, 0) + packed)

    def send(self, data: bytes) -> None:
        self._writer.write(spdy.data_frame(STREAMS["stdin"], data, end=True))

    def leave(self) -> None:
        self._writer.close()

    async def read_to_the_end(self) -> None:
        """Until the node closes the connection."""
        session = spdy.Session()
        async with asyncio.timeout(60):
            while data := await self._reader.read(1 << 16):
                for event in session.received(data):
                    if isinstance(event, spdy.Data):
                        self.output[event.stream] = self.output.get(event.stream, b"") + event.data
                    elif isinstance(event, spdy.Ended):
                        self.ended.add(event.stream)

    def of(self, name: str) -> bytes:
        return self.output.get(STREAMS[name], b"")


@asynccontextmanager
async def calling(
    lab: Running, *command: str, version: str = "v4.channel.k8s.io", opened: Iterable[str] = NAMES, status: int = 101
) -> AsyncIterator[Caller]:
    """A caller whose streams are open, or one that was answered with another status."""
    cluster = lab.lab.clusters[0]
    address = str(cluster.nodes[0].address)
    with kernel.inside(namespaces.path(cluster.control_plane)):
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (address, PORT))
    context = ssl.create_default_context(cafile=str(cluster.directory / "ca.crt"))
    reader, writer = await asyncio.open_connection(sock=made, ssl=context, server_hostname=address)
    query = urlencode([*(("command", word) for word in command), ("input", "1"), ("output", "1"), ("error", "1")])
    head = [
        f"POST /exec/default/called/called?{query} HTTP/1.1",
        f"Host: {address}",
        f"Authorization: Bearer {(cluster.directory / 'token').read_text()}",
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        f"X-Stream-Protocol-Version: {version}",
        "Content-Length: 0",
    ]
    try:
        writer.write("\r\n".join([*head, "", ""]).encode())
        async with asyncio.timeout(60):
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert answer.split()[1] == str(status), answer
        caller = Caller(reader, writer)
        if status == 101:
            assert "v4.channel.k8s.io" in answer
            for name in opened:
                caller.open(name, STREAMS.get(name, 9))
        yield caller
    finally:
        writer.close()
        async with asyncio.timeout(60):
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_output_errors_and_the_exit_code_come_by_streams_of_their_own(called: Running) -> None:
    async with calling(called, "sh", "-c", "cat; echo no >&2; exit 3") as caller:
        caller.send(b"yes")
        await caller.read_to_the_end()
    assert (caller.of("stdout"), caller.of("stderr")) == (b"yes", b"no\n")
    assert json.loads(caller.of("error"))["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert caller.ended == {STREAMS["error"], STREAMS["stdout"], STREAMS["stderr"]}


async def test_much_output_arrives_whole(called: Running) -> None:
    async with calling(called, "head", "-c", "3000000", "/dev/zero") as caller:
        await caller.read_to_the_end()
    assert len(caller.of("stdout")) == 3_000_000
    assert json.loads(caller.of("error"))["status"] == "Success"


async def test_a_command_ends_with_its_caller(called: Running, until: Callable[..., Any]) -> None:
    async with calling(called, "sleep", "4712") as caller:
        await asyncio.to_thread(until, lambda: [*with_command("sleep 4712")])
        caller.leave()
    await asyncio.to_thread(until, lambda: not [*with_command("sleep 4712")])


async def test_a_stream_of_a_type_that_is_not_known_ends_the_call_and_no_other(called: Running) -> None:
    async with calling(called, "true", opened=("error", "loud")) as caller:
        await caller.read_to_the_end()
    assert caller.of("error") == b""
    async with calling(called, "echo", "on") as caller:
        await caller.read_to_the_end()
    assert caller.of("stdout") == b"on\n"


async def test_a_version_without_a_status_is_refused(called: Running) -> None:
    async with calling(called, "true", version="channel.k8s.io", status=403):
        pass
