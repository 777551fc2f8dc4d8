"""The supervisor's side of the zygote: a program is ordered, and is a child of ours from then on."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from isthmus_lab import spawn
from isthmus_lab.supervisor import sources
from isthmus_lab.supervisor.zygote import LARGEST, Answer, Order


class Zygote:
    """One per lab. Where it is gone, or has imported other code than is on disk now, programs are started the slow way:
    `lab kill` and `lab start` run what the checkout has today.
    """

    def __init__(
        self, orders: socket.socket, *, loaded: sources.Stamp, roots: Collection[Path] = sources.ROOTS
    ) -> None:
        orders.setblocking(False)
        self._orders = orders
        self._turn = asyncio.Lock()
        self._loaded = loaded
        self._roots = roots
        self.alive = True

    @property
    def usable(self) -> bool:
        """True if a program that it starts is the same as one started by ``python -m``."""
        return self.alive and sources.stamp(self._roots) == self._loaded

    async def start(self, order: Order) -> spawn.Process:
        """Start a program; OSError where that cannot be."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            try:
                socket.send_fds(self._orders, [msgspec.json.encode(order)], list(order.inherit))
                raw = await loop.sock_recv(self._orders, LARGEST)
            except ConnectionError:
                raw = b""
        if not raw:
            self.alive = False
            raise OSError(0, "the zygote has ended")
        answer = msgspec.json.decode(raw, type=Answer)
        if answer.error:
            raise OSError(0, answer.error)
        return spawn.claim(answer.pid)


def order(
    command: tuple[str, ...],
    *,
    environment: Mapping[str, str],
    place: spawn.Isolation,
    output: Path,
    inherit: list[int],
) -> Order | None:
    """The order for a command of the form ``python -m MODULE …``; None for any other."""
    if command[:2] != (sys.executable, "-m"):
        return None
    return Order(
        module=command[2],
        arguments=command[3:],
        environment=dict(environment),
        cgroup=os.fspath(place.cgroup),
        namespace=os.fspath(place.namespace or ""),
        output=os.fspath(output),
        inherit=tuple(inherit),
    )
