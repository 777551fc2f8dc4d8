"""A lease: what is written under it goes when nobody keeps it alive."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio

from isthmus.etcd import wire
from isthmus.etcd.errors import LeaseGone
from isthmus.etcd.transport import Transport, reply
from isthmus.reflector import Transient


class Lease:
    """A granted lease. :meth:`keep` belongs into the owner's task group; without it the lease ends after ``ttl``."""

    def __init__(self, transport: Transport, *, lease: int, ttl: int) -> None:
        self._transport = transport
        self._until = time.monotonic() + ttl
        self.id = lease
        self.ttl = ttl

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {self.remaining:.0f} of {self.ttl} s>"

    @property
    def remaining(self) -> float:
        """Seconds for which it is sure to live, by our clock."""
        return self._until - time.monotonic()

    async def keep(self) -> None:
        """Keep it alive, a third of its time between renewals. Only ends by LeaseGone or cancellation."""
        wait = self.ttl / 3
        while True:
            await asyncio.sleep(wait)
            try:
                async with asyncio.timeout(self.remaining):  # a line that went silent must not outlast the lease
                    await self.renew()
                wait = self.ttl / 3
            except (Transient, TimeoutError) as why:
                if self.remaining <= 0:
                    raise LeaseGone(f"lease {self.id:x} could not be kept alive: {why or 'no answer'}") from None
                wait = min(self.ttl / 3, max(0.1, self.remaining / 10))

    async def renew(self) -> None:
        """Keep it alive once; LeaseGone where the server no longer has it."""
        sent = time.monotonic()
        stream, at = await self._transport.stream(wire.LEASE_KEEP_ALIVE)
        try:
            await stream.write(wire.KeepAliveRequest(id=self.id))
            await stream.done_writing()
            response: Any = await reply(stream)
        except grpc.aio.AioRpcError as error:
            raise self._transport.failed(error, at) from None
        finally:
            stream.cancel()
        if response is None:
            raise Transient(f"etcd {self._transport.endpoints[at]}: no answer to keep a lease alive")
        if response.ttl <= 0:
            raise LeaseGone(f"lease {self.id:x} has expired")
        self._until = sent + response.ttl

    async def revoke(self) -> None:
        """End it now; everything written under it is deleted."""
        await self._transport.call(wire.LEASE_REVOKE, wire.LeaseRevokeRequest(id=self.id))
