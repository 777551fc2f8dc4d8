"""``python dns_compare.py SERVER[:PORT]…`` < [[NAME, TYPE], …]: what each server answers to each question, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype


def main(*servers: str) -> None:
    """Ask every server every question."""
    questions = json.load(sys.stdin)
    print(json.dumps([[asked(server, *question) for server in servers] for question in questions]))


def asked(server: str, name: str, type_: str) -> dict[str, Any]:
    """Code, records with their TTL in order, types of the authority section, whether it is authoritative."""
    host, _, port = server.partition(":")
    query = dns.message.make_query(name, type_, use_edns=0)
    reply = dns.query.udp(query, host, port=int(port or 53), timeout=10)
    records = sorted(
        [str(rrset.name).lower(), rrset.ttl, dns.rdatatype.to_text(rrset.rdtype), str(item).lower()]
        for rrset in reply.answer
        for item in rrset
    )
    return {
        "code": dns.rcode.to_text(reply.rcode()),
        "records": records,
        "authority": sorted(dns.rdatatype.to_text(rrset.rdtype) for rrset in reply.authority),
        "authoritative": bool(reply.flags & dns.flags.AA),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
