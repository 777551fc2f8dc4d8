"""Read a container's log from a position to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from isthmus_lab.node.containers import Runner

CHUNK: Final = 1 << 16


async def follow(runner: Runner, *, every: float) -> AsyncGenerator[bytes, None]:
    """Output from now on, until the container ends; polled this often."""
    path = runner.log(previous=False)
    if path is not None:
        async for data in read(runner, path, size(path), every=every):
            yield data


async def read(runner: Runner, path: Path, position: int, *, every: float = 0.0) -> AsyncGenerator[bytes, None]:
    """Read from a position to the end of the file, or, if ``every`` is set, until the container ends."""
    while True:
        more = every and runner.running and runner.log(previous=False) == path  # before reading: the last is read, too
        data = _piece(path, position)
        position += len(data)
        if data:
            yield data
        elif not more:
            return
        else:
            await asyncio.sleep(every)


def size(path: Path) -> int:
    """Size of the log: the position of the next byte."""
    return path.stat().st_size if path.exists() else 0


def start_of(path: Path, lines: str | None) -> int:
    """Position where the last ``lines`` lines begin."""
    if lines is None or not lines.isdigit() or not path.exists():
        return 0
    data = path.read_bytes()
    if lines == "0":
        return len(data)
    position = len(data.removesuffix(b"\n"))
    for _ in range(int(lines)):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _piece(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(position)
            return log.read(CHUNK)
    except FileNotFoundError:
        return b""
