"""Destroys sockets that are connected to the node's name server when that ends: resolvers then ask another server.

This concerns only UDP sockets that hooks steered, or that called the server by its own address: a question that is
answered or steered on the pod's interface leaves its socket connected to the cluster DNS.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Set
from typing import Final

from isthmus.datapath.core.maps import Maps
from isthmus.datapath.failures.sockets import GoneSockets
from isthmus.datapath.settings import ALIVE
from isthmus.model.balancing import Target

LOOK: Final = 0.5
"""Seconds between checks of the deadlines."""


class GoneServer:
    """Destroys sockets of the node's server, given by its ``addresses``, one per family; ``run()`` is a task."""

    def __init__(self, maps: Maps, sockets: GoneSockets, addresses: Set[Target]) -> None:
        self._maps = maps
        self._sockets = sockets
        self._addresses = addresses
        self._was_alive = self._is_alive()

    async def run(self) -> None:
        """Check the deadlines, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            await asyncio.to_thread(self.look)

    def look(self) -> int:
        """Destroy sockets if the server's last process has ended since the last check. Returns their number."""
        before, self._was_alive = self._was_alive, self._is_alive()
        return self._sockets.disconnect(self._addresses) if before and not self._was_alive else 0

    def _is_alive(self) -> bool:
        now = time.monotonic_ns()
        return any(ALIVE.named(value)["deadline"] > now for _, value in self._maps.items("alive"))
