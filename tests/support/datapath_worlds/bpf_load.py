"""Calls under load: many at a time, each counted with how it ended and how long it took.

    bpf_load.py '{"host": …, "port": …, "calls": 300, "at_once": 20, "timeout": 20.0, "bytes": 0}'

Reads such requests from stdin, a JSON object per line; prints for each how the calls ended, and their times in ms.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import socket
import sys
import time
from typing import Any

OPTIONS = {"ttl": socket.IP_TTL, "least_ttl": 21}
"""Of IPv4 sockets, which need no right; IP_MINTTL of linux/in.h has no name in Python."""


async def connected(host: str, port: int, options: dict[str, int]) -> socket.socket | None:
    """A connected socket with these options; none where there are none, so that it is made as usual."""
    if not options:
        return None
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        for name, value in options.items():
            sock.setsockopt(socket.IPPROTO_IP, OPTIONS[name], value)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def call(host: str, port: int, *, timeout: float, size: int, options: dict[str, int]) -> tuple[str, float, str]:
    """(how it ended, ms until connected, who answered); with a size, that many bytes are echoed and compared."""
    start, doing = time.monotonic(), "connecting"
    try:
        async with asyncio.timeout(timeout):
            sock = await connected(host, port, options)
            target = {"sock": sock} if sock else {"host": host, "port": port}
            reader, writer = await asyncio.open_connection(**target, limit=1 << 20)
            doing = "reading"
            took = (time.monotonic() - start) * 1000
            peer = writer.get_extra_info("peername")  # None: it was reset meanwhile, which reading reports
            if peer is not None and tuple(peer[:2]) != (host, port):
                return f"peer {peer}", took, ""
            name = (await reader.readline()).decode().strip()
            how = await echo(reader, writer, size) if size else "ok"
            writer.close()
            await writer.wait_closed()
            return (how if name else "empty"), took, name
    except TimeoutError:
        return f"timeout while {doing}", (time.monotonic() - start) * 1000, ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error)), (time.monotonic() - start) * 1000, ""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> str:
    """Send bytes, and compare what comes back."""
    sent = (bytes(range(251)) * (size // 251 + 1))[:size]
    writer.write(sent)
    writer.write_eof()
    came = await reader.read(-1)
    return "ok" if hashlib.sha256(came).digest() == hashlib.sha256(sent).digest() else f"{len(came)} other bytes"


async def load(asked: dict[str, Any]) -> dict[str, Any]:
    """All calls of a request."""
    left = asked["calls"]
    ended: dict[str, int] = {}
    answered: dict[str, int] = {}
    times: list[float] = []
    failures: list[list[object]] = []

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            size = asked.get("bytes", 0)
            how, took, name = await call(
                asked["host"],
                asked["port"],
                timeout=asked.get("timeout", 20.0),
                size=size,
                options=asked.get("options", {}),
            )
            ended[how] = ended.get(how, 0) + 1
            answered[name] = answered.get(name, 0) + 1
            times.append(round(took, 1))
            if how != "ok":
                failures.append([how, round(took, 1)])
            if pause := asked.get("pause"):
                await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(asked.get("at_once", 1)):
            tasks.create_task(caller())
    return {"ended": ended, "answered": answered, "times": sorted(times), "failures": failures}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load(json.loads(line)))), flush=True)


main()
