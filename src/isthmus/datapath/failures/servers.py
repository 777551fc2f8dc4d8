"""Sockets connected to the node's name server are destroyed when that is gone: their resolvers ask again, elsewhere.

Only UDP, and only sockets that hooks steered, or that called the server by its own address: a question that is answered
or steered where packets enter the node leaves its socket connected to the cluster DNS.
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
"""Seconds between looks at the deadlines."""


class GoneServer:
    """One per datapath; ``run()`` is a task of the process. ``addresses``: of the node's server, one of each family."""

    def __init__(self, maps: Maps, sockets: GoneSockets, addresses: Set[Target]) -> None:
        self._maps = maps
        self._sockets = sockets
        self._addresses = addresses
        self._was_alive = self._is_alive()

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            await asyncio.to_thread(self.look)

    def look(self) -> int:
        """Destroy sockets if the last process of the server has gone since the last look; how many there were."""
        before, self._was_alive = self._was_alive, self._is_alive()
        return self._sockets.destroy(self._addresses) if before and not self._was_alive else 0

    def _is_alive(self) -> bool:
        now = time.monotonic_ns()
        return any(ALIVE.named(value)["deadline"] > now for _, value in self._maps.items("alive"))
