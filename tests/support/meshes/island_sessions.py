"""Clients of UDP that go on sending, as pods behind the kernel do, and how long each went without an answer."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from time import monotonic
from typing import Any, Final, Literal

from meshes.island_load import LoadedIslands

from isthmus.model.balancing import Target

EVERY: Final = 0.25
"""Seconds between two datagrams of a client."""
Kind = Literal["connected", "unconnected", "new port"]
"""``connected``: a socket that sends to where the plan had its first datagram go. ``unconnected``: it keeps its backend
while that is in the plan, as the kernel has it. ``new port``: another socket once it has an answer."""


class Session(asyncio.DatagramProtocol):
    """A client, and when answers came."""

    def __init__(self, world: LoadedIslands, name: str, kind: Kind) -> None:
        self.kind = kind
        self._world, self._name = world, name
        self._to: Target | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._answered = False
        self.answers: list[tuple[float, str]] = []
        """When each came, by the loop's clock in s, and of which pod."""
        self.sent: list[float] = []
        self.latest = 0.0
        """The longest time by which a datagram was sent too late: what this process, or the machine, stood still."""

    async def run(self, begin: float, end: float) -> None:
        """Send from one moment to another."""
        for number in count():
            due = begin + number * EVERY
            if due >= end:
                break
            await asyncio.sleep(max(0.0, due - monotonic()))
            self.latest = max(self.latest, monotonic() - due)
            await self._send()
        self._close()

    async def _send(self) -> None:
        if self._answered and self.kind == "new port":
            self._close()
        if self._to is None or (self.kind == "unconnected" and self._to not in self._world.targets(self._name)):
            self._to = self._world.target(self._name)
        if self._to is None:
            return
        at = self._to.address, self._to.port
        if self._transport is None:
            self._transport = await self._socket(at)
        self.sent.append(monotonic())
        self._transport.sendto(b"x", at if self.kind == "unconnected" else None)

    async def _socket(self, at: tuple[str, int]) -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        if self.kind == "unconnected":
            local = "::" if ":" in at[0] else "0.0.0.0"
            transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(local, 0))
        else:
            transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=at)
        return transport

    def _close(self) -> None:
        self._answered, self._to = False, None
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._answered = True
        self.answers.append((monotonic(), data.partition(b" ")[0].decode()))

    def error_received(self, exc: Exception) -> None:
        pass

    def gap(self, since: float, until: float) -> float:
        """The longest time without an answer between two moments, s."""
        sent = max((at for at in self.sent if at < until), default=since)
        times = [since, *(at for at, _ in self.answers if since < at < until)]
        return max([sent - times[-1], *(after - before for before, after in pairwise(times))])


class Sessions:
    """Many clients of an import at once."""

    def __init__(self, world: LoadedIslands, name: str, kinds: dict[Kind, int]) -> None:
        """``kinds``: how many of each."""
        self.all = [Session(world, name, kind) for kind, number in kinds.items() for _ in range(number)]
        self.end = 0.0

    async def run(self, seconds: float) -> None:
        """The clients begin one after the other within the time between two datagrams."""
        begin = monotonic()
        self.end = begin + seconds
        spread = [begin + EVERY * number / len(self.all) for number in range(len(self.all))]
        await asyncio.gather(*(each.run(at, self.end) for each, at in zip(self.all, spread, strict=True)))

    @property
    def latest(self) -> float:
        return max(each.latest for each in self.all)

    def slowest(self, since: float) -> float:
        """The longest time that a client went without an answer since a moment, s."""
        return max(each.gap(since, self.end) for each in self.all)

    def pods(self, since: float, until: float, *kinds: Kind) -> set[str]:
        """Those that answered between two moments, clients of some kinds or any."""
        chosen = [each for each in self.all if not kinds or each.kind in kinds]
        return {pod for each in chosen for at, pod in each.answers if since < at < until}
