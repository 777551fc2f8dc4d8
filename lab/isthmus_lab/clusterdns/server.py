"""The server: UDP and TCP on one address of each family, names from the API server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import cast

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.kube.objects.discovery import ENDPOINT_SLICE, EndpointSlice
from isthmus.reflector import Reflector
from isthmus_lab.clusterdns.answers import answer
from isthmus_lab.clusterdns.zone import Zone, zone
from isthmus_lab.object_cache import ObjectCache

IDLE = 10.0

Answer = Callable[[bytes, bool], bytes | None]


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, respond: Answer) -> None:
        self._respond = respond
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # which 3.11's own is not by class

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if (reply := self._respond(data, True)) is not None:
            self._transport.sendto(reply, addr)


async def run(section: KubernetesSection, *, hosts: Iterable[str], port: int, domain: str) -> None:
    """Serve, for ever. Answers wait until the first lists are complete, so that no name is denied by mistake."""
    changed = asyncio.Event()
    services: ObjectCache[Service] = ObjectCache(changed)
    slices: ObjectCache[EndpointSlice] = ObjectCache(changed)
    names: Zone = {}

    def respond(wire: bytes, udp: bool) -> bytes | None:
        return answer(wire, names, domain=domain, udp=udp) if names else None

    async with await kube.connect(section) as client, asyncio.TaskGroup() as group:
        group.create_task(Reflector(client.store(SERVICE), services, name="services").run())
        group.create_task(Reflector(client.store(ENDPOINT_SLICE), slices, name="endpointslices").run())
        loop = asyncio.get_running_loop()
        for host in hosts:
            await loop.create_datagram_endpoint(lambda: _Udp(respond), local_addr=(host, port))
            await asyncio.start_server(lambda r, w: _tcp(r, w, respond), host, port)
        while True:
            await changed.wait()
            changed.clear()
            if services.complete and slices.complete:
                names = zone(services.items.values(), slices.items.values(), domain=domain)


async def _tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: Answer) -> None:
    try:
        async with asyncio.timeout(IDLE):
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                if (reply := respond(await reader.readexactly(length), False)) is None:
                    return
                writer.write(struct.pack("!H", len(reply)) + reply)
                await writer.drain()
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        pass  # the client has what it wanted, or is gone
    finally:
        writer.close()
