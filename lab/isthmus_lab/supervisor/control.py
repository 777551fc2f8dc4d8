"""The supervisor's socket: one JSON line asks, one or more answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Commands(Protocol):
    """Commands of the supervisor's socket."""

    def stats(self) -> dict[str, Any]:
        """Status of the lab."""
        ...

    def inject(self, action: str, names: list[str]) -> list[str]:
        """Kill, pause or start."""
        ...

    def replace(self, names: list[str], python: str) -> list[str]:
        """Run programs by another interpreter."""
        ...

    async def relay(self) -> str:
        """Read the network's state again; what is wrong with it."""
        ...

    def follow(self) -> Any:
        """Stream of events."""
        ...


class Control:
    """Listens for the body of ``async with``."""

    def __init__(self, path: Path, served: Commands) -> None:
        self._path = path
        self._served = served
        self._server: asyncio.Server

    async def __aenter__(self) -> Control:
        self._server = await asyncio.start_unix_server(self._handle, self._path)
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = msgspec.json.decode(await reader.readline())
            match asked:
                case {"do": "status"}:
                    writer.write(msgspec.json.encode(self._served.stats()) + b"\n")
                case {"do": "follow"}:
                    async for step in self._served.follow():
                        writer.write(msgspec.json.encode(step) + b"\n")
                        await writer.drain()
                case {"do": ("kill" | "pause" | "start") as action, "programs": [*names]}:
                    writer.write(msgspec.json.encode({"done": self._served.inject(action, names)}) + b"\n")
                case {"do": "replace", "programs": [*names], "python": str(python)}:
                    writer.write(msgspec.json.encode({"done": self._served.replace(names, python)}) + b"\n")
                case {"do": "relay"}:
                    writer.write(msgspec.json.encode({"error": await self._served.relay()}) + b"\n")
                case _:
                    writer.write(msgspec.json.encode({"error": f"what is {asked!r}?"}) + b"\n")
            await writer.drain()
        except (ConnectionError, msgspec.DecodeError):
            pass  # the client disconnected, or speaks something else
        finally:
            writer.close()
