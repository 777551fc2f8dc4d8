"""Requests to a lab's supervisor, for commands; it imports little, since each command pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from isthmus_lab import cgroups
from isthmus_lab.layout import Lab


def control_group(lab: Lab) -> Path:
    """The control group of the supervisor itself."""
    return cgroups.root() / lab.prefix / "supervisor"


def abandoned(lab: Lab) -> bool:
    """True if the lab was started and its supervisor has died; then no process is restarted."""
    return lab.socket.exists() and not cgroups.processes(control_group(lab))


async def ask(lab: Lab, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Ask the supervisor; ConnectionError where it does not run."""
    try:
        reader, writer = await asyncio.open_unix_connection(lab.socket, limit=1 << 24)
    except (FileNotFoundError, ConnectionRefusedError):
        raise ConnectionError(f"the supervisor of lab {lab.name} does not run") from None
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        while line := await reader.readline():
            yield msgspec.json.decode(line)
    finally:
        writer.close()
