"""A TCP line between two parts that can go silent, be slow, or break in the middle of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Line:
    """Passes bytes on as its switches say."""

    def __init__(self, target: str) -> None:
        url = urlsplit(target)
        self._host, self._port = url.hostname, url.port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.open = asyncio.Event()
        self.open.set()
        self.delay = 0.0
        self.most: int | None = None
        """Bytes of answers after which the connection breaks; None: never."""
        self.endpoint = ""

    def silence(self) -> None:
        """From now on nothing passes, and neither end gets an error."""
        self.open.clear()

    def resume(self) -> None:
        self.open.set()

    def cut(self) -> None:
        """Break every connection now."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, onward = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        for source, sink, answers in ((reader, onward, False), (there, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, answers=answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := await source.read(4096):
                await self.open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                passed += len(data)
                if answers and self.most is not None and passed > self.most:
                    break
                sink.write(data)
                await sink.drain()
        sink.transport.abort()

    async def close(self) -> None:
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def line_to(target: str) -> AsyncIterator[Line]:
    """A line that listens on loopback and leads to a URL's host and port."""
    line = Line(target)
    server = await asyncio.start_server(line.accept, "127.0.0.1", 0)
    line.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        await line.close()
        await server.wait_closed()
