"""What pods of these tests run: an echo server, and callers of it. Standard library only; the image has a Python.

traffic.py serve                 echo lines on port 8080
traffic.py call HOST COUNT       so many calls, one after the other; prints how many were answered
traffic.py load HOST [CALLS HELD]  CALLS new calls a second (50) and HELD connections (100), until /tmp/stop exists;
                                 prints a report
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from pathlib import Path
from typing import Final

PORT: Final = 80
SERVED: Final = 8080
CALLS: Final = 50
HELD: Final = 100
USED_EACH: Final = 2.0
"""Seconds between two uses of a held connection."""
FILES: Final = 8192
PATIENCE: Final = 30.0
"""Seconds for one answer: machines of tests stand still now and then."""
STOP: Final = Path("/tmp/stop")


class Report:
    """What a caller counted."""

    def __init__(self) -> None:
        self.calls = 0
        self.exchanges = 0
        self.failed: list[str] = []
        self.dropped: list[str] = []

    def __repr__(self) -> str:
        return json.dumps(vars(self))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each line with itself."""
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    writer.close()


async def serve() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(echo, "0.0.0.0", SERVED, backlog=1024)
    await server.serve_forever()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One line there and back."""
    writer.write(b"hello\n")
    if await reader.readline() != b"hello\n":
        raise ConnectionError("closed by the other end")


async def call(host: str) -> None:
    """One connection, one answer."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(host, PORT)
        try:
            await exchange(reader, writer)
        finally:
            writer.close()


async def count(host: str, times: int) -> int:
    """Make calls one after the other, and return how many were answered."""
    answered = 0
    for _ in range(times):
        with contextlib.suppress(OSError, TimeoutError):
            await call(host)
            answered += 1
    return answered


async def counted(host: str, report: Report) -> None:
    """One call of a load."""
    report.calls += 1
    try:
        await call(host)
    except (OSError, TimeoutError) as error:
        report.failed.append(f"{time.time():.1f} {error!r}")


async def hold(host: str, report: Report) -> None:
    """One connection that is used again and again until the end."""
    try:
        reader, writer = await asyncio.open_connection(host, PORT)
        while not STOP.exists():
            async with asyncio.timeout(PATIENCE):
                await exchange(reader, writer)
            report.exchanges += 1
            await asyncio.sleep(USED_EACH)
    except (OSError, TimeoutError) as error:
        report.dropped.append(f"{time.time():.1f} {error!r}")


async def load(host: str, calls: int, held: int) -> Report:
    """Call at a constant rate until told to stop."""
    report = Report()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(held):
            tasks.create_task(hold(host, report))
            await asyncio.sleep(USED_EACH / held)  # in turn, so that they are used in turn
        print("running", flush=True)
        due = time.monotonic()
        while not STOP.exists():
            tasks.create_task(counted(host, report))
            due = max(due + 1 / calls, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return report


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["call", host, times]:
            print(asyncio.run(count(host, int(times))))
        case ["load", host, *numbers]:
            calls, held = map(int, numbers or (CALLS, HELD))
            print(asyncio.run(load(host, calls, held)), flush=True)
        case words:
            sys.exit(f"no such command: {words}")
