"""The deadline that the node's DNS server renews: what the kernel steers questions by. For the dns process alone."""

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
        """Whether questions over TCP are steered too, from the next renewal on."""

    @classmethod
    async def open(cls, pin: str, *, instance: str = "only") -> Alive:
        """The maps an agent pinned or will pin; returns when they are there. ``instance``: as in ``dns.instance``."""
        while True:
            where = attach.pinned(pin)
            if (where / "alive").exists() and (where / "sockets").exists():
                descriptors = (libbpf.open_pinned(where / name) for name in ("alive", "sockets"))
                return cls(*descriptors, server=SERVERS[instance])
            await asyncio.sleep(_LOOK_EVERY)

    def tie(self, server: socket.socket) -> bool:
        """From the next renewal on, also end at once when this UDP socket is closed, be it by SIGKILL.

        False: this kernel does not take such sockets; the deadline stands alone.
        """
        try:
            libbpf.update(self._sockets, self._server, ID.pack(server.fileno()))
        except libbpf.BpfError:
            return False
        self._tied = True
        return True

    def renew(self, seconds: float) -> None:
        """Alive for this long from now, by the clock the kernel reads."""
        self._write(time.monotonic_ns() + int(seconds * 1e9))

    def withdraw(self) -> None:
        """Not alive any more: questions go where they were going, from the next one on."""
        self._write(0)

    def close(self) -> None:
        """Leave the deadline as it is."""
        os.close(self._alive)
        os.close(self._sockets)

    def _write(self, deadline: int) -> None:
        libbpf.update(self._alive, self._server, ALIVE.pack(deadline, self._tied, TCP if self.takes_tcp else 0))
