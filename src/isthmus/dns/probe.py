"""Whether the cluster DNS knows our zone: then a question over TCP is answered there as well."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

from isthmus.dns import dialing
from isthmus.zone import codec

PATIENCE = 3.0
"""Seconds to wait for a reply."""


async def knows_zone(server: tuple[str, int], zone: str, *, patience: float = PATIENCE) -> bool | None:
    """Whether a server is authoritative for a zone, by its SOA; None where it does not answer."""
    query = dns.message.make_query(zone, dns.rdatatype.SOA)
    try:
        async with asyncio.timeout(patience):
            reply = await _ask(query, server)
    except (OSError, TimeoutError, dns.exception.DNSException):
        return None
    if reply.rcode() in (dns.rcode.SERVFAIL, dns.rcode.NOTIMP):
        return None
    apex = dns.name.from_text(zone)
    return reply.rcode() == dns.rcode.NOERROR and any(
        rrset.name == apex and rrset.rdtype == dns.rdatatype.SOA for rrset in (*reply.answer, *reply.authority)
    )


async def _ask(query: dns.message.Message, server: tuple[str, int]) -> dns.message.Message:
    """Return the reply to a question by UDP. What is no reply to it is passed over."""
    loop = asyncio.get_running_loop()
    with dialing.opened(server[0], socket.SOCK_DGRAM) as sock:
        await loop.sock_connect(sock, server)
        await loop.sock_sendall(sock, query.to_wire())
        while True:
            with contextlib.suppress(dns.exception.DNSException):
                reply = dns.message.from_wire(await loop.sock_recv(sock, codec.TCP_SIZE))
                if query.is_response(reply):
                    return reply
