"""A command in a container, its streams in one WebSocket: kubectl's ``v5.channel.k8s.io`` and the one before it.

The first byte of a message is its channel. The status goes last, then the close: without a status kubectl takes any
end for success.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from typing import Any, Final

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from isthmus.lab import entering, spawn
from isthmus.lab.images import missing

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CHUNK: Final = 1 << 15


class Asked(Struct, frozen=True):
    """What is to be run, and how."""

    command: tuple[str, ...]
    stdin: bool
    tty: bool


async def exec(request: web.Request, inside: entering.Container, asked: Asked) -> web.StreamResponse:
    """Run it to its end."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(request)
    try:
        status = await _run(socket, inside, asked)
    except OSError as error:
        program = missing(asked.command[0]) if isinstance(error, FileNotFoundError) else f"{asked.command[0]}: {error}"
        status = _failure(f"cannot execute: {program}", 127 if isinstance(error, FileNotFoundError) else 126)
    if not socket.closed:
        await socket.send_bytes(bytes([STATUS]) + msgspec.json.encode(status))
        await socket.close()
    return socket


async def _run(socket: web.WebSocketResponse, inside: entering.Container, asked: Asked) -> dict[str, Any]:
    ends = _Terminal() if asked.tty else _Pipes(stdin=asked.stdin)
    with ends:
        child = entering.run(
            inside,
            asked.command,
            stdin=ends.theirs[0],
            stdout=ends.theirs[1],
            stderr=ends.theirs[2],
            terminal=asked.tty,
        )
        process = spawn.watch(child)
        ends.handed_over()
        outputs = [asyncio.ensure_future(_output(socket, *each)) for each in ends.outputs]
        listening = asyncio.ensure_future(_listen(socket, ends, process))
        try:
            code = await process.wait()
            await asyncio.wait(outputs, timeout=1.0)  # a grandchild may hold the pipe: it is not waited for
        finally:
            for task in (listening, *outputs):
                task.cancel()
    return {"metadata": {}, "status": "Success"} if code == 0 else _failure("", code)


async def _output(socket: web.WebSocketResponse, channel: int, descriptor: int) -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe = os.fdopen(os.dup(descriptor), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while data := await reader.read(CHUNK):
            await socket.send_bytes(bytes([channel]) + data)
    except (OSError, ConnectionError):
        pass  # a terminal's other end is closed, or the caller is gone
    finally:
        transport.close()


async def _listen(socket: web.WebSocketResponse, ends: _Pipes | _Terminal, process: spawn.Process) -> None:
    """What the caller sends, until the caller leaves, and then the command ends, too."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await ends.write(data)
        elif channel == CLOSE and data == bytes([STDIN]):
            ends.end()
        elif channel == RESIZE:
            ends.resize(data)
    process.signal(signal.SIGKILL)


class _Pipes:
    """A pipe for each stream."""

    def __init__(self, *, stdin: bool) -> None:
        inward = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), -1)
        out, err = os.pipe(), os.pipe()
        self.theirs = (inward[0], out[1], err[1])
        self.outputs = ((STDOUT, out[0]), (STDERR, err[0]))
        self._stdin = inward[1]
        self._open = [*self.theirs]

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.handed_over()
        self.end()
        for _, descriptor in self.outputs:
            os.close(descriptor)

    def handed_over(self) -> None:
        """The child has its ends."""
        while self._open:
            os.close(self._open.pop())

    async def write(self, data: bytes) -> None:
        """To its standard input; what nobody reads any more is dropped."""
        if self._stdin < 0:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, _write_all, self._stdin, data)
        except OSError:
            self.end()

    def end(self) -> None:
        """No more input."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def resize(self, data: bytes) -> None:
        """A pipe has no size."""


class _Terminal:
    """One terminal for all streams."""

    def __init__(self) -> None:
        self._ours, theirs = os.openpty()
        self.theirs = (theirs, theirs, theirs)
        self.outputs = ((STDOUT, self._ours),)
        self._open = [theirs]

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.handed_over()
        os.close(self._ours)

    def handed_over(self) -> None:
        """The child has its end."""
        while self._open:
            os.close(self._open.pop())

    async def write(self, data: bytes) -> None:
        """As if it were typed."""
        await asyncio.get_running_loop().run_in_executor(None, _write_all, self._ours, data)

    def end(self) -> None:
        """End of input, as ^D says it."""
        os.write(self._ours, b"\x04")

    def resize(self, data: bytes) -> None:
        """The caller's window has another size."""
        try:
            size = msgspec.json.decode(data, type=dict[str, int])
        except msgspec.MsgspecError:
            return
        packed = struct.pack("HHHH", size.get("Height", 0), size.get("Width", 0), 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, packed)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _failure(message: str, code: int) -> dict[str, Any]:
    return {
        "metadata": {},
        "status": "Failure",
        "message": message or f"command terminated with non-zero exit code: exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
