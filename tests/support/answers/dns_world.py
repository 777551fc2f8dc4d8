"""A server on loopback with names to answer, and an upstream that stands for the cluster DNS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from isthmus.dns import Server
from isthmus.dns.server import bind_both
from isthmus.model.dns import Name
from isthmus.model.tables import FAULTS, NAMES, PODS
from isthmus.statedb import Database

ZONE = "clusterset.local"
ECHO = f"echo.demo.svc.{ZONE}"
ROWS = (
    Name(ECHO, "A", ("10.96.0.7",), "demo/echo"),
    Name(ECHO, "AAAA", ("fd00::7",), "demo/echo"),
    Name(f"_http._tcp.{ECHO}", "SRV", (f"0 100 80 {ECHO}.",), "demo/echo"),
    Name("7.0.96.10.in-addr.arpa", "PTR", (f"{ECHO}.",), "demo/echo"),
    Name(f"dns-version.{ZONE}", "TXT", ('"1.1.0"',), ttl=28800),
    Name(f"many.demo.svc.{ZONE}", "A", tuple(f"10.1.{n // 250}.{n % 250}" for n in range(600)), "demo/many"),
    Name(f"ns.dns.{ZONE}", "A", ("10.96.0.10",)),
    Name(f"a.c2.many.demo.svc.{ZONE}", "A", ("10.1.0.0",), "demo/many"),
)

Reply = Callable[[dns.message.Message], dns.message.Message | bytes | None]


def plain(query: dns.message.Message) -> dns.message.Message:
    """The cluster DNS's answers: one address for any name that ends in cluster.local, NXDOMAIN for the rest."""
    reply = dns.message.make_response(query)
    question = query.question[0]
    if question.name.to_text().lower().endswith("cluster.local."):
        reply.answer.append(dns.rrset.from_text(question.name, 30, "IN", "A", "10.96.0.1"))
    else:
        reply.set_rcode(dns.rcode.NXDOMAIN)
    return reply


class Upstream(asyncio.DatagramProtocol):
    """A name server of a test, over UDP and TCP on one port: ``reply`` gives the reply to a question."""

    def __init__(self) -> None:
        self.reply: Reply = plain
        self.asked: list[dns.message.Message] = []
        self.address = ("127.0.0.1", 0)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if (wire := self._wire(data)) is not None:
            self._transport.sendto(wire, addr)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        if (wire := self._wire(data)) is not None:
            writer.write(len(wire).to_bytes(2, "big") + wire)
            await writer.drain()
        writer.close()

    def _wire(self, data: bytes) -> bytes | None:
        self.asked.append(dns.message.from_wire(data))
        reply = self.reply(self.asked[-1])
        return reply.to_wire() if isinstance(reply, dns.message.Message) else reply


@asynccontextmanager
async def upstream_server() -> AsyncIterator[Upstream]:
    loop = asyncio.get_running_loop()
    upstream = Upstream()
    datagrams, connections = bind_both(("127.0.0.1", 0))
    upstream.address = datagrams.getsockname()
    transport, _ = await loop.create_datagram_endpoint(lambda: upstream, sock=datagrams)
    server = await asyncio.start_server(upstream.connected, sock=connections)
    try:
        yield upstream
    finally:
        transport.close()
        server.close()


class Setup:
    """A server, the database it reads and the upstream it passes questions to."""

    def __init__(self, upstream: Upstream, *, complete: bool = True, timeout: float = 30.0) -> None:
        self.upstream = upstream
        self.db = Database(NAMES, PODS, FAULTS)
        self.initializer = self.db.initializer(NAMES, "test")
        self.put(*ROWS)
        if complete:
            self.complete()
        self.server = Server(self.db, zone=ZONE, listen=[("127.0.0.1", 0)], upstream=upstream.address, timeout=timeout)

    def put(self, *rows: Name) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(NAMES, row)

    def complete(self) -> None:
        with self.db.write() as txn:
            self.initializer.complete(txn)

    async def ask(self, name: str, type_: str = "A", *, tcp: bool = False, **fields: Any) -> dns.message.Message:
        """The server's reply to a question."""
        query = dns.message.make_query(name, type_, **fields)
        host, port = self.server.address
        send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        return await send(query, host, port=port, timeout=30)

    async def taken_in(self) -> None:
        """Return when the server knows what the table holds."""
        while self.server.stats().names != self.db.snapshot().count(NAMES):  # noqa: ASYNC110
            await asyncio.sleep(0)


def texts(message: dns.message.Message) -> list[str]:
    """Record data of the answer section, as text."""
    return [item.to_text() for rrset in message.answer for item in rrset]


@asynccontextmanager
async def serving(*, complete: bool = True, timeout: float = 30.0) -> AsyncIterator[Setup]:
    """A server that listens and knows its names; with ``complete`` also that there are no others."""
    async with upstream_server() as upstream:
        setup = Setup(upstream, complete=complete, timeout=timeout)
        run, listening = asyncio.create_task(setup.server.run()), asyncio.create_task(setup.server.listening())
        try:
            await asyncio.wait({run, listening}, return_when=asyncio.FIRST_COMPLETED)
            if run.done():
                await run
            await setup.taken_in()
            yield setup
        finally:
            run.cancel()
            listening.cancel()
            await asyncio.gather(run, listening, return_exceptions=True)
