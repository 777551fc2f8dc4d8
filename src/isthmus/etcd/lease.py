"""A lease: etcd deletes its keys when it is not renewed in time."""

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
    """A granted lease. Run :meth:`keep` in the owner's task group, else it expires after ``ttl`` seconds."""

    def __init__(self, transport: Transport, *, lease: int, ttl: int) -> None:
        self._transport = transport
        self._expires = time.monotonic() + ttl
        self.id = lease
        self.ttl = ttl

    def __repr__(self) -> str:
        return f"<Lease {self.id:x}, {self.remaining:.0f} of {self.ttl} s>"

    @property
    def remaining(self) -> float:
        """Seconds until it may expire, by our monotonic clock: counted from when the last renewal was sent."""
        return self._expires - time.monotonic()

    async def keep(self) -> None:
        """Renew it every third of its ttl. Ends only by LeaseGone or cancellation."""
        wait = self.ttl / 3
        while True:
            await asyncio.sleep(wait)
            try:
                async with asyncio.timeout(self.remaining):  # a connection that went silent must not outlast the lease
                    await self.renew()
                wait = self.ttl / 3
            except (Transient, TimeoutError) as error:
                if self.remaining <= 0:
                    raise LeaseGone(f"lease {self.id:x} could not be kept alive: {error or 'no answer'}") from None
                wait = min(self.ttl / 3, max(0.1, self.remaining / 10))

    async def renew(self) -> None:
        """Renew it once. Raises LeaseGone if it no longer exists."""
        sent = time.monotonic()
        stream, index = await self._transport.stream(wire.LEASE_KEEP_ALIVE)
        token = self._transport.token
        try:
            await stream.write(wire.KeepAliveRequest(id=self.id))
            await stream.done_writing()
            response: Any = await reply(stream)
        except grpc.aio.AioRpcError as error:
            raise self._transport.failed(error, index, token=token) from None
        finally:
            stream.cancel()
        if response is None:
            raise Transient(f"etcd {self._transport.endpoints[index]}: no answer to keep a lease alive")
        if response.ttl <= 0:
            raise LeaseGone(f"lease {self.id:x} has expired")
        self._expires = sent + response.ttl

    async def revoke(self) -> None:
        """Revoke it; the server deletes its keys."""
        await self._transport.call(wire.LEASE_REVOKE, wire.LeaseRevokeRequest(id=self.id))
