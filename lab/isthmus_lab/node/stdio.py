"""A command's standard streams, and our ends of them: a pipe for each, or one terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
CHUNK: Final = 1 << 15
_UNLOCK: Final = 0x40045431
_PEER: Final = 0x5441
"""TIOCSPTLCK and TIOCGPTPEER."""


class Input:
    """A pipe to a command's standard input, or none."""

    outputs: tuple[tuple[int, int], ...] = ()
    """Channels and our ends of them."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.stdin, self._write_end = os.pipe() if enabled else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        self._open = [self.stdin]

    def handed_over(self) -> None:
        """The child has its ends."""
        while self._open:
            os.close(self._open.pop())

    async def write(self, data: bytes) -> None:
        """Write to its standard input; dropped once the container has closed it."""
        if self._write_end < 0:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, _write_all, self._write_end, data)
        except OSError:
            self.end()

    def end(self) -> None:
        """No more input."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def resize(self, data: bytes) -> None:
        """A pipe has no size."""

    def close(self) -> None:
        """It is over."""
        self.handed_over()
        self.end()
        for _, descriptor in self.outputs:
            os.close(descriptor)


class Pipes(Input):
    """A pipe for each stream."""

    def __init__(self, *, stdin: bool) -> None:
        super().__init__(enabled=stdin)
        (out, self.stdout), (err, self.stderr) = os.pipe(), os.pipe()
        self.outputs = ((STDOUT, out), (STDERR, err))
        self._open += [self.stdout, self.stderr]


class Terminal:
    """One terminal for all streams; one of a container's own where ``ptmx`` is that container's."""

    def __init__(self, ptmx: str = "/dev/ptmx") -> None:
        self._write_end = os.open(ptmx, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        fcntl.ioctl(self._write_end, _UNLOCK, struct.pack("i", 0))
        self.stdin = fcntl.ioctl(self._write_end, _PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self.stdout = self.stderr = self.stdin
        self.outputs = ((STDOUT, self._write_end),)
        self._open = [self.stdin]

    def handed_over(self) -> None:
        """The child has its end."""
        while self._open:
            os.close(self._open.pop())

    async def write(self, data: bytes) -> None:
        """Write input to the terminal, as if typed."""
        await asyncio.get_running_loop().run_in_executor(None, _write_all, self._write_end, data)

    def end(self) -> None:
        """End of input, as ^D on a terminal."""
        os.write(self._write_end, b"\x04")

    def resize(self, data: bytes) -> None:
        """The caller's window has another size."""
        try:
            size = msgspec.json.decode(data, type=dict[str, int])
        except msgspec.MsgspecError:
            return
        packed = struct.pack("HHHH", size.get("Height", 0), size.get("Width", 0), 0, 0)
        fcntl.ioctl(self._write_end, termios.TIOCSWINSZ, packed)

    def close(self) -> None:
        """It is over."""
        self.handed_over()
        os.close(self._write_end)


StandardStreams = Input | Terminal


async def pour(descriptor: int, sink: Callable[[bytes], Awaitable[None]]) -> None:
    """Copy a pipe's or terminal's output until its other end closes or the sink is gone."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    pipe = os.fdopen(os.dup(descriptor), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while data := await reader.read(CHUNK):
            await sink(data)
    except OSError:
        pass
    finally:
        transport.close()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
