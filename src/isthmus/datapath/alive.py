"""The deadline until which the kernel steers questions to the node's DNS server. Only the dns process renews it."""

from __future__ import annotations

import asyncio
import os
import socket
import time

from isthmus.datapath.core import attach, libbpf
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.settings import ALIVE

SERVERS = {"only": 0, "first": 0, "second": 1}
"""enum alive_server, by ``dns.instance``."""
TCP = 1
_LOOK_EVERY = 0.1


class Alive:
    """The entry of one server in the pinned maps ``alive`` and ``sockets``."""

    def __init__(self, alive: int, sockets: int, *, server: int = 0) -> None:
        self._alive = alive
        self._sockets = sockets
        self._server = ID.pack(server)
        self._tied = False
        self.takes_tcp = False
        """True to steer questions over TCP too, from the next renewal on."""

    @classmethod
    async def open(cls, pin: str, *, instance: str = "only") -> Alive:
        """Wait until an agent has pinned the maps, and open them. ``instance`` is ``dns.instance``."""
        while True:
            where = attach.pinned(pin)
            if (where / "alive").exists() and (where / "sockets").exists():
                descriptors = (libbpf.open_pinned(where / name) for name in ("alive", "sockets"))
                return cls(*descriptors, server=SERVERS[instance])
            await asyncio.sleep(_LOOK_EVERY)

    def tie(self, server: socket.socket) -> bool:
        """End steering as soon as this UDP socket is closed, even by SIGKILL; in effect from the next renewal on.

        Returns False if this kernel does not support it; then only the deadline ends steering.
        """
        try:
            libbpf.update(self._sockets, self._server, ID.pack(server.fileno()))
        except libbpf.BpfError:
            return False
        self._tied = True
        return True

    def renew(self, seconds: float) -> None:
        """Move the deadline to this many seconds from now, by the clock that the kernel reads."""
        self._write(time.monotonic_ns() + round(seconds * 1e9))

    def withdraw(self) -> None:
        """End the deadline now: from the next question on, none is steered."""
        self._write(0)

    def close(self) -> None:
        """Close the maps; the deadline stays as it is."""
        os.close(self._alive)
        os.close(self._sockets)

    def _write(self, deadline: int) -> None:
        libbpf.update(self._alive, self._server, ALIVE.pack(deadline, self._tied, TCP if self.takes_tcp else 0))
