"""Questions outside our zone: forwarded to the cluster DNS as they came, its replies returned to the callers.

The message is not decoded: its id is replaced, the question of the reply must equal the one sent, the rest passes
unchanged. Every question has a socket of its own with a fresh port; port and id come from the system's secure random
source, so that forging a reply means guessing about 30 bits within the lifetime of the question (RFC 5452 §9).

Pending questions are bounded in total and for each caller: a caller that exceeds its share loses its own oldest
question. When all room is taken the namespace with most pending questions loses one. A question without a reply ends
with SERVFAIL.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct

from isthmus.dns import dialing
from isthmus.dns.respond import failure
from isthmus.zone import codec

PENDING: Final = 1024
"""Questions pending at once, each with a file descriptor."""
SHARE: Final = 128
"""Of these, the most for one caller; at 3 s without any reply that is still 40 questions a second."""
TICK: Final = 0.25
"""Seconds between two looks for overdue questions."""
ATTEMPTS: Final = 8
"""Random ports tried before the kernel chooses one."""
PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

Address = tuple[Any, ...]
Send = Callable[[bytes, Address], None]


class Pending(NamedTuple):
    """A forwarded question: its caller and where the reply goes, how it was asked upstream, and its deadline."""

    namespace: str
    caller: str
    client: Address
    packet: bytes
    sock: socket.socket
    id: bytes
    deadline: float


class UpstreamStats(Struct, frozen=True):
    """Counts of questions since the start, and those pending now."""

    forwarded: int
    answered: int
    timeouts: int
    dropped: int
    pending: int


class Upstream:
    """The cluster DNS. ``send`` returns replies to clients; ``most`` and ``share`` bound what is pending."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        send: Send,
        most: int = PENDING,
        share: int = SHARE,
        timeout: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._send = send
        self._most = most
        self._share = share
        self._timeout = timeout
        self._clock = clock
        self._ports = port_range()
        # both in the order of arrival: the first entry is the oldest question, of all and of one caller
        self._pending: dict[int, Pending] = {}
        self._by_caller: dict[str, dict[str, dict[int, None]]] = {}
        """Pending questions by namespace and caller."""
        self._by_namespace: Counter[str] = Counter()
        self._count = 0
        self.forwarded = self.answered = self.timeouts = self.dropped = 0

    def __repr__(self) -> str:
        return f"<Upstream {self._address[0]}:{self._address[1]}, {len(self._pending)} pending>"

    def close(self) -> None:
        """End every pending question without a reply."""
        for number in list(self._pending):
            self._end(number)

    def forward(self, packet: bytes, client: Address, *, caller: str, namespace: str = "") -> None:
        """Forward a question. ``caller`` is charged for it: with too many pending its own oldest one ends."""
        if len(self._by_caller.get(namespace, {}).get(caller, ())) >= self._share:
            self._drop(namespace, caller)
        elif len(self._pending) >= self._most:
            largest = max(self._by_caller, key=self._by_namespace.__getitem__)
            callers = self._by_caller[largest]
            self._drop(largest, max(callers, key=lambda each: len(callers[each])))
        self._count += 1
        number, ident = self._count, secrets.token_bytes(2)
        try:
            sock = self._open()
        except OSError:  # no descriptor or no route: the same as no reply, but known at once
            self.dropped += 1
            self._refuse(packet, client)
            return
        self._pending[number] = Pending(namespace, caller, client, packet, sock, ident, self._clock() + self._timeout)
        self._by_caller.setdefault(namespace, {}).setdefault(caller, {})[number] = None
        self._by_namespace[namespace] += 1
        asyncio.get_running_loop().add_reader(sock, self._receive, number)
        self.forwarded += 1
        with contextlib.suppress(OSError):  # lost like any packet: the question ends at its deadline
            sock.send(ident + packet[2:])

    async def run(self) -> None:
        """End overdue questions, for ever."""
        while True:
            await asyncio.sleep(TICK)
            self.expire()

    def expire(self) -> None:
        """Answer overdue questions with SERVFAIL. One time limit for all: the first to arrive ends first."""
        now = self._clock()
        late = []
        for number, pending in self._pending.items():
            if pending.deadline > now:
                break
            late.append(number)
        for number in late:
            self._fail(number)
            self.timeouts += 1

    def stats(self) -> UpstreamStats:
        """Now."""
        return UpstreamStats(self.forwarded, self.answered, self.timeouts, self.dropped, len(self._pending))

    def _open(self) -> socket.socket:
        sock = dialing.opened(self._address[0], socket.SOCK_DGRAM)
        try:
            low, high = self._ports
            for _ in range(ATTEMPTS):
                with contextlib.suppress(OSError):  # in use, or reserved
                    sock.bind(("", low + secrets.randbelow(high - low + 1)))
                    break
            sock.connect(self._address)
        except OSError:
            sock.close()
            raise
        return sock

    def _drop(self, namespace: str, caller: str) -> None:
        self.dropped += 1
        self._fail(next(iter(self._by_caller[namespace][caller])))

    def _fail(self, number: int) -> None:
        pending = self._end(number)
        self._refuse(pending.packet, pending.client)

    def _refuse(self, packet: bytes, client: Address) -> None:
        if reply := failure(packet, limit=codec.UDP_SIZE):
            self._send(reply, client)

    def _end(self, number: int) -> Pending:
        pending = self._pending.pop(number)
        callers = self._by_caller[pending.namespace]
        numbers = callers[pending.caller]
        del numbers[number]
        self._by_namespace[pending.namespace] -= 1
        if not numbers:
            del callers[pending.caller]
        if not callers:
            del self._by_caller[pending.namespace], self._by_namespace[pending.namespace]
        asyncio.get_running_loop().remove_reader(pending.sock)
        pending.sock.close()
        return pending

    def _receive(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return
        try:
            reply = pending.sock.recv(codec.TCP_SIZE)
        except OSError:  # the upstream's host refuses: the question ends at its deadline, a retry may come through
            return
        if reply[:2] != pending.id or not answers(reply, pending.packet):
            self.dropped += 1
            return
        self._end(number)
        self.answered += 1
        self._send(pending.packet[:2] + reply[2:], pending.client)


def port_range() -> tuple[int, int]:
    """The kernel's range of ephemeral ports, both ends included."""
    low, high = PORT_RANGE.read_text().split()
    return int(low), int(high)


def answers(reply: bytes, packet: bytes) -> bool:
    """Whether a message is a reply to this packet: the same question, or none where the server could not read it."""
    if len(reply) < 12 or not reply[2] & 0x80:
        return False
    if reply[4:6] == b"\0\0":
        return bool(reply[3] & 0xF)
    end = codec.name_end(packet, 12) + 4
    return reply[4:6] == b"\0\1" and reply[12:end].lower() == packet[12:end].lower()
