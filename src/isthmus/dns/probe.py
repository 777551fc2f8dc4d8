"""Whether the cluster DNS knows our zone: then a question over TCP is answered there as well."""

from __future__ import annotations

import asyncio

import dns.asyncquery
import dns.exception
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

PATIENCE = 3.0
"""Seconds to wait for a reply."""


async def knows_zone(server: tuple[str, int], zone: str, *, patience: float = PATIENCE) -> bool | None:
    """Whether a server is authoritative for a zone, by its SOA; None where it does not answer."""
    query = dns.message.make_query(zone, dns.rdatatype.SOA)
    try:
        async with asyncio.timeout(patience):
            reply = await dns.asyncquery.udp(query, server[0], port=server[1])
    except (OSError, TimeoutError, dns.exception.DNSException):
        return None
    if reply.rcode() in (dns.rcode.SERVFAIL, dns.rcode.NOTIMP):
        return None
    apex = dns.name.from_text(zone)
    return reply.rcode() == dns.rcode.NOERROR and any(
        rrset.name == apex and rrset.rdtype == dns.rdatatype.SOA for rrset in (*reply.answer, *reply.authority)
    )
