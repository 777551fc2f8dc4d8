"""The deadline that the node's DNS server renews: what the kernel steers questions by. For the dns process alone."""

from __future__ import annotations

import asyncio
import os
import time

from isthmus.datapath import attach, codecs, libbpf

DNS = 0
_LOOK_EVERY = 0.1


class Alive:
    """The entry of one server in the pinned map ``alive``."""

    def __init__(self, descriptor: int, *, server: int = DNS) -> None:
        self._fd = descriptor
        self._server = codecs.ID.pack(server)

    @classmethod
    async def open(cls, pin: str) -> Alive:
        """The map an agent pinned or will pin; returns when it is there."""
        path = attach.directory(pin) / "alive"
        while True:
            try:
                return cls(libbpf.open_pinned(path))
            except FileNotFoundError:
                await asyncio.sleep(_LOOK_EVERY)

    def renew(self, seconds: float) -> None:
        """Alive for this long from now, by the clock the kernel reads."""
        self._write(time.monotonic_ns() + int(seconds * 1e9))

    def withdraw(self) -> None:
        """Not alive any more: questions go where they were going, from the next one on."""
        self._write(0)

    def close(self) -> None:
        """Leave the deadline as it is."""
        os.close(self._fd)

    def _write(self, deadline: int) -> None:
        libbpf.update(self._fd, self._server, codecs.ALIVE.pack(deadline))
