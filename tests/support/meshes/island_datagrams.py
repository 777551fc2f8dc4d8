"""Datagrams between islands: pods that answer them, and clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Final

from isthmus.model.hosts import Endpoint as Address
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Port

UDP: Final = (Port("", 80, "UDP"),)
"""The port of what is exported here."""


class DatagramPod(asyncio.DatagramProtocol):
    """Answers each datagram with its name and what it got; ``answer``: or with this."""

    def __init__(self, name: str, *, answer: bytes = b"") -> None:
        self.name = name.encode()
        self.answer = answer
        self.seen: list[bytes] = []
        self.at = Address("", 0)

    async def start(self, stack: AsyncExitStack, *, host: str = "127.0.0.1", port: int = 0) -> DatagramPod:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        self.at = Address(*self._transport.get_extra_info("sockname")[:2])
        stack.callback(self._transport.close)
        return self

    def stop(self) -> None:
        """As a pod that is gone: its port answers no more."""
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.seen.append(data)
        self._transport.sendto(self.answer or self.name + b" " + data, addr)


class Client(asyncio.DatagramProtocol):
    """A socket of a pod, which has one port as long as it is open."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[bytes] = asyncio.Queue()
        self._transport: asyncio.DatagramTransport

    @classmethod
    async def to(cls, at: tuple[str, int]) -> Client:
        self = cls()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, remote_addr=at)
        return self

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.got.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        pass

    def send(self, data: bytes) -> None:
        self._transport.sendto(data)

    async def ask(self, data: bytes, *, within: float = 20.0, again: float = 20.0) -> bytes:
        """What comes for a datagram, which is sent again after so many seconds; empty: nothing came."""
        try:
            async with asyncio.timeout(within):
                while True:
                    self.send(data)
                    try:
                        async with asyncio.timeout(again):
                            return await self.got.get()
                    except TimeoutError:
                        if again >= within:
                            raise
        except TimeoutError:
            return b""

    def close(self) -> None:
        self._transport.close()


async def ask(at: tuple[str, int], data: bytes, *, within: float = 20.0, again: float = 20.0) -> bytes:
    """A call from a port of its own."""
    client = await Client.to(at)
    try:
        return await client.ask(data, within=within, again=again)
    finally:
        client.close()


def endpoint_set(name: str, cluster: ClusterName, *pods: DatagramPod) -> EndpointSet:
    """The pods, as their cluster's gateway sees them."""
    each = tuple(Endpoint(pod.at.host, (Port("", pod.at.port, "UDP"),)) for pod in pods)
    return EndpointSet(service=ServiceName(name), cluster=cluster, source="kubernetes", part="slice", endpoints=each)


def tunnel(path: str, data: bytes, *, method: str = "CONNECT", protocol: str = "connect-udp", **more: str) -> bytes:
    """What a caller writes to a gateway for one datagram: HTTP/2 (RFC 9113) with a request of RFC 9298."""
    fields = {":method": method, ":authority": "anything"}
    if method != "CONNECT" or protocol:
        fields |= {":scheme": "https", ":path": path}
    if protocol:
        fields |= {":protocol": protocol, "capsule-protocol": "?1"}
    head = b"".join(b"\0" + _text(name) + _text(value) for name, value in (fields | more).items())
    capsule = bytes([0, len(data) + 1, 0]) + data  # type DATAGRAM, its length below 64, context 0 (RFC 9297)
    begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, b"", stream=0)
    return begin + _frame(1, head, flags=4) + _frame(0, capsule)


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, body: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
