"""The server of failover tests, in a pod: TCP and UDP, both families, one port. Standard library only.

A TCP caller gets a line with the server's cluster and pod, then its own bytes back; a UDP caller that line.
On SIGTERM it serves on until it is killed, as a server that drains does; new connects find it for as long. On SIGUSR1
it begins to flap: it closes its ports for 30 to 400 ms, opens them for as long, again and again, until SIGUSR2.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from typing import Any

PORT = 8080
CLUSTER, POD = (os.environ.get(name, "?") for name in ("CLUSTER_NAME", "POD_NAME"))
NAME = f"{CLUSTER}/{POD}"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        writer.write(f"{NAME}\n".encode())
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass  # the caller was killed or cut off
    finally:
        writer.close()


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.DatagramTransport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        self.transport.sendto(NAME.encode(), peer)


def listening(kind: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6, kind)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("::", PORT))
    return sock


class Ports:
    """Both ports, which flap on demand."""

    def __init__(self) -> None:
        self._flapping: asyncio.Task[None] | None = None
        self._rounds = 0

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(Datagrams, sock=listening(socket.SOCK_DGRAM))
        self._tcp = await asyncio.start_server(serve, sock=listening(socket.SOCK_STREAM), backlog=1024)

    def flap(self) -> None:
        if self._flapping is None:
            self._flapping = asyncio.create_task(self._flap())

    def settle(self) -> None:
        """Open from the end of this round on."""
        self._flapping = None

    async def _flap(self) -> None:
        pauses = random.Random(7)
        while self._flapping is asyncio.current_task():
            self._tcp.close()
            self._udp.close()
            await asyncio.sleep(pauses.uniform(0.03, 0.4))
            await self.open()
            self._rounds += 1
            print("flapped", self._rounds, flush=True)
            await asyncio.sleep(pauses.uniform(0.03, 0.4))
        print("settled", flush=True)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ports = Ports()
    await ports.open()
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.call_later(3.0, sys.exit))
    loop.add_signal_handler(signal.SIGUSR1, ports.flap)
    loop.add_signal_handler(signal.SIGUSR2, ports.settle)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
