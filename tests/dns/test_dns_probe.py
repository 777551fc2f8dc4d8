"""Whether the cluster DNS is asked for our zone over TCP depends on whether it is authoritative for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.message
import dns.rcode
import dns.rrset
import pytest

from isthmus.dns.probe import knows_zone

ZONE = "clusterset.local."
SOA = "ns.clusterset.local. hostmaster.clusterset.local. 1 7200 1800 86400 5"


class Server(asyncio.DatagramProtocol):
    """Answers every question by the same records and code."""

    def __init__(self, code: dns.rcode.Rcode, answer: tuple[str, ...], authority: tuple[str, ...]) -> None:
        self.code, self.answer, self.authority = code, answer, authority

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = dns.message.make_response(dns.message.from_wire(data))
        reply.set_rcode(self.code)
        reply.answer = [dns.rrset.from_text(name, 5, "IN", "SOA", SOA) for name in self.answer]
        reply.authority = [dns.rrset.from_text(name, 5, "IN", "SOA", SOA) for name in self.authority]
        self.transport.sendto(reply.to_wire(), addr)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[tuple[str, int]]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("code", "answer", "authority", "known"),
    [
        pytest.param(dns.rcode.NOERROR, (ZONE,), (), True, id="its SOA"),
        pytest.param(dns.rcode.NOERROR, (), (ZONE,), True, id="its SOA in the authority section"),
        pytest.param(dns.rcode.NOERROR, (), (".",), False, id="another zone's SOA"),
        pytest.param(dns.rcode.NOERROR, (), (), False, id="nothing"),
        pytest.param(dns.rcode.NXDOMAIN, (), (ZONE,), False, id="no such name"),
        pytest.param(dns.rcode.SERVFAIL, (), (), None, id="a failure"),
        pytest.param(dns.rcode.NOTIMP, (), (), None, id="not implemented"),
    ],
)
async def test_a_server_knows_a_zone_whose_soa_it_gives(
    code: dns.rcode.Rcode, answer: tuple[str, ...], authority: tuple[str, ...], known: bool | None
) -> None:
    async with serving(Server(code, answer, authority)) as at:
        assert await knows_zone(at, ZONE, patience=20.0) is known


async def test_a_server_that_does_not_answer_is_not_judged() -> None:
    async with serving(Server(dns.rcode.NOERROR, (), ())) as at:
        pass
    assert await knows_zone(at, ZONE, patience=0.2) is None
