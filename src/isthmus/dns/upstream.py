"""Questions that are not ours, passed on to the cluster DNS as they came, and its replies passed back.

No message is taken apart for it: the id is exchanged, the question must come back as it went, and the client gets
the rest untouched. What is pending is bounded and ends by itself; who waited in vain gets SERVFAIL.

Several connected sockets share the load, each with a port that the kernel chose: a reply can be forged only by who
guesses address, port and id, and repeats the question.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from isthmus.dns import codec
from isthmus.dns.respond import failure

SOCKETS: Final = 8
BATCH: Final = 64
TICK: Final = 0.25

Address = tuple[Any, ...]
Send = Callable[[bytes, Address], None]


class Pending(NamedTuple):
    """A question under way: who asked, what, and until when an answer is worth something."""

    client: Address
    packet: bytes
    deadline: float


class Upstream:
    """The way to the cluster DNS. ``send`` takes replies to clients."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        send: Send,
        most: int = 4096,
        timeout: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._send = send
        self._most = most
        self._timeout = timeout
        self._clock = clock
        self._sockets: list[socket.socket] = []
        self._pending: dict[tuple[int, int], Pending] = {}
        self.forwarded = self.answered = self.timeouts = self.dropped = 0

    def __repr__(self) -> str:
        return f"<Upstream {self._address[0]}:{self._address[1]}, {len(self._pending)} pending>"

    def open(self) -> None:
        """Have the sockets ready."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        for position in range(SOCKETS):
            sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            self._sockets.append(sock)
            sock.connect(self._address)
            loop.add_reader(sock, self._drain, position)

    def close(self) -> None:
        """Let go of everything; who still waits gets nothing."""
        for sock in self._sockets:
            asyncio.get_running_loop().remove_reader(sock)
            sock.close()
        self._sockets.clear()
        self._pending.clear()

    def forward(self, packet: bytes, client: Address) -> None:
        """Pass a question on. Where too many are pending the oldest gives way."""
        if len(self._pending) >= self._most:
            self._fail(next(iter(self._pending)))
            self.dropped += 1
        key = self._free_key()
        self._pending[key] = Pending(client, packet, self._clock() + self._timeout)
        self.forwarded += 1
        # a refusal of an earlier packet is reported here too: this one ends by its deadline like any lost one
        with contextlib.suppress(OSError):
            self._sockets[key[0]].send(key[1].to_bytes(2, "big") + packet[2:])

    async def run(self) -> None:
        """End what was waited for in vain, for ever."""
        while True:
            await asyncio.sleep(TICK)
            self.expire()

    def expire(self) -> None:
        """Answer SERVFAIL to whoever waited too long; the order of asking is the order of ending."""
        now = self._clock()
        late = []
        for key, pending in self._pending.items():
            if pending.deadline > now:
                break
            late.append(key)
        for key in late:
            self._fail(key)
            self.timeouts += 1

    def stats(self) -> dict[str, int]:
        """Counts since the start, and what is pending now."""
        return {
            "forwarded": self.forwarded,
            "answered": self.answered,
            "timeouts": self.timeouts,
            "dropped": self.dropped,
            "pending": len(self._pending),
        }

    def _free_key(self) -> tuple[int, int]:
        while True:
            key = random.randrange(SOCKETS), random.randrange(65536)
            if key not in self._pending:
                return key

    def _fail(self, key: tuple[int, int]) -> None:
        pending = self._pending.pop(key)
        if reply := failure(pending.packet, limit=codec.UDP_SIZE):
            self._send(reply, pending.client)

    def _drain(self, position: int) -> None:
        for _ in range(BATCH):
            try:
                reply = self._sockets[position].recv(codec.TCP_SIZE)
            except BlockingIOError:
                return
            except OSError:  # the upstream's host refuses: what is pending ends by its deadline
                continue
            self._returned(position, reply)

    def _returned(self, position: int, reply: bytes) -> None:
        key = position, int.from_bytes(reply[:2], "big")
        pending = self._pending.get(key)
        if pending is None or not answers(reply, pending.packet):
            self.dropped += 1
            return
        del self._pending[key]
        self.answered += 1
        self._send(pending.packet[:2] + reply[2:], pending.client)


def answers(reply: bytes, packet: bytes) -> bool:
    """Whether a message is a reply to this packet: the same question, or none where the server could not read it."""
    if len(reply) < 12 or not reply[2] & 0x80:
        return False
    if reply[4:6] == b"\0\0":
        return bool(reply[3] & 0xF)
    end = codec.name_end(packet, 12) + 4
    return reply[4:6] == b"\0\1" and reply[12:end].lower() == packet[12:end].lower()
