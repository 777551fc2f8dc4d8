"""The network between hosts: delay, connections that break, and paths that are cut in one direction or both.

A cut way swallows what is sent, as a firewall does; TCP repeats it, so it arrives when the way is open again unless the
connection has ended meanwhile. A connection belongs to a pair of hosts and has a number that a reset increments.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Final

from isthmus_sim.process import Process

DELAY: Final = (0.0002, 0.004)
"""Least and most seconds from one host to another, unless that path is slow."""


class Lost(Exception):  # noqa: N818
    """The connection broke."""


class Refused(Lost):
    """Nothing listens there."""


class Network:
    """A network of hosts, by name."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._cut: Counter[tuple[str, str]] = Counter()
        self._slow: Counter[tuple[str, str]] = Counter()
        self._resets: Counter[frozenset[str]] = Counter()
        self._changed = asyncio.Event()
        self.down: Counter[str] = Counter()
        """Servers that do not run, by the number of reasons."""

    def __repr__(self) -> str:
        return f"<Network, cut {[*+self._cut]}, down {[*+self.down]}>"

    def cut(self, source: str, target: str) -> None:
        """Drop what ``source`` sends to ``target``, until :meth:`heal` was called as often."""
        self._cut[source, target] += 1
        self._notify()

    def heal(self, source: str, target: str) -> None:
        """Open the path again."""
        self._cut[source, target] -= 1
        self._notify()

    def slow(self, source: str, target: str, milliseconds: int) -> None:
        """Add this delay to a path; subtract it if negative."""
        self._slow[source, target] += milliseconds

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two hosts."""
        self._resets[frozenset((one, other))] += 1
        self._notify()

    def take_down(self, server: str, clients: list[str]) -> None:
        """Stop a server: its connections break, and new ones are refused."""
        self.down[server] += 1
        for client in clients:
            self.reset(client, server)

    def bring_up(self, server: str) -> None:
        """Start a server again."""
        self.down[server] -= 1

    def open(self, source: Process, target: str) -> Connection:
        """A new connection; nothing is sent yet."""
        return Connection(self, source, target)

    def wake(self) -> None:
        """Wake all waiters, after a process has died."""
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def number(self, one: str, other: str) -> int:
        """The number of the connections between two hosts now."""
        return self._resets[frozenset((one, other))]

    async def carry(self, source: str, target: str, connection: Connection) -> None:
        """Return when what is sent now has arrived; Lost if the connection breaks before."""
        await asyncio.sleep(self._chance.uniform(*DELAY) + self._slow[source, target] / 1000)
        while self._cut[source, target] > 0 and not connection.broken:
            await self._changed.wait()
        if connection.broken:
            raise Lost("connection reset by peer")

    def is_cut(self, source: str, target: str) -> bool:
        """True if what ``source`` sends does not arrive."""
        return self._cut[source, target] > 0

    async def change(self) -> None:
        """Wait until something heals or breaks."""
        await self._changed.wait()


class Connection:
    """A connection of a process to a server."""

    def __init__(self, network: Network, source: Process, target: str) -> None:
        self._network = network
        self._process = source
        self.source = source.host
        self.target = target
        self._number = network.number(source.host, target)

    @property
    def broken(self) -> bool:
        """True if it was reset, or its process is dead."""
        return self._process.dead or self._network.number(self.source, self.target) != self._number

    async def to_server(self) -> None:
        """Carry a request."""
        await self._network.carry(self.source, self.target, self)
        if self._network.down[self.target] > 0:
            raise Refused("connection refused")

    async def to_client(self) -> None:
        """Carry an answer."""
        await self._network.carry(self.target, self.source, self)

    async def fails(self, silence: float) -> None:
        """Return when the connection has broken, or the server has been out of reach for so many seconds.

        That is what keepalive does: it sends, and waits for an answer.
        """
        network, loop = self._network, asyncio.get_running_loop()
        since: float | None = None
        while not self.broken:
            away = network.is_cut(self.source, self.target) or network.is_cut(self.target, self.source)
            since = (since if since is not None else loop.time()) if away else None
            left = None if since is None else since + silence - loop.time()
            if left is not None and left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await network.change()
