"""DNS over TCP: each message behind its length. Rare, so plain coroutines; bounded in connections and in time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from isthmus.dns import dialing
from isthmus.dns.respond import FORWARD, failure, refusal, respond
from isthmus.fair import Shares
from isthmus.zone import Zone, codec

CONNECTIONS: Final = 256
"""Open at once, in fair shares for namespaces."""
SHARE: Final = 32
"""Of the connections, the most for one caller."""
IDLE: Final = 10.0
RELAY: Final = 5.0


class StreamStats(Struct, frozen=True):
    """The connections there are, and counts since the start."""

    open: int
    questions: int
    relayed: int
    refused: int


class Stream:
    """The TCP side of the server. A question that is not ours goes to the upstream over a connection of its own."""

    def __init__(
        self,
        zone: Zone,
        *,
        upstream: tuple[str, int],
        namespace_of: Callable[[str], str] = lambda address: "",
        failed: Callable[[Exception], None],
        idle: float = IDLE,
        relay: float = RELAY,
    ) -> None:
        self._zone = zone
        self._namespace_of = namespace_of
        self._failed = failed
        """Called with what answering a question raised."""
        self._upstream = upstream
        self._idle = idle
        self._relay = relay
        self._writers: set[asyncio.StreamWriter] = set()
        self._callers: Counter[str] = Counter()
        self._shares = Shares(CONNECTIONS)
        self.questions = self.relayed = self.refused = 0

    def __repr__(self) -> str:
        return f"<Stream {self.open} connections>"

    @property
    def open(self) -> int:
        """Connections there are."""
        return len(self._writers)

    def stats(self) -> StreamStats:
        """Now."""
        return StreamStats(self.open, self.questions, self.relayed, self.refused)

    def close(self) -> None:
        """End every connection at once."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client ends it, sends nothing for a while, or has too many."""
        caller = writer.get_extra_info("peername", ("",))[0]
        holder = (self._namespace_of(caller),)
        if not self._shares.headroom(holder) or self._callers[caller] >= SHARE:
            self.refused += 1
            writer.close()
            return
        self._writers.add(writer)
        self._callers[caller] += 1
        self._shares.hold(holder)
        try:
            while (packet := await self._next(reader)) is not None:
                self.questions += 1
                reply = await self._reply(packet)
                if reply is None:
                    return
                writer.write(len(reply).to_bytes(2, "big") + reply)
                async with asyncio.timeout(self._idle):
                    await writer.drain()
        except (OSError, TimeoutError):
            pass  # the client went away
        finally:
            self._writers.discard(writer)
            self._shares.hold(holder, -1)
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            writer.close()

    async def _next(self, reader: asyncio.StreamReader) -> bytes | None:
        try:
            async with asyncio.timeout(self._idle):
                return await _message(reader)
        except (TimeoutError, asyncio.IncompleteReadError):
            return None

    async def _reply(self, packet: bytes) -> bytes | None:
        try:
            reply = respond(packet, self._zone, limit=codec.TCP_SIZE)
        except MemoryError:
            raise
        except Exception as error:
            self._failed(error)
            return refusal(packet, limit=codec.TCP_SIZE)
        if reply != FORWARD:
            return reply
        self.relayed += 1
        try:
            async with asyncio.timeout(self._relay):
                return await self._ask(packet)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return failure(packet, limit=codec.TCP_SIZE)

    async def _ask(self, packet: bytes) -> bytes:
        sock = dialing.opened(self._upstream[0], socket.SOCK_STREAM)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self._upstream)
            reader, writer = await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
        try:
            writer.write(len(packet).to_bytes(2, "big") + packet)
            return await _message(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _message(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(2), "big")
    return await reader.readexactly(length)
