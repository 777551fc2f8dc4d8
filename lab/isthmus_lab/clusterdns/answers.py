"""One question → one answer, as bytes. Pure."""

from __future__ import annotations

import random
from typing import Final

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from isthmus_lab.clusterdns.zone import Zone

TTL: Final = 5
PLAIN_UDP: Final = 512


def answer(wire: bytes, zone: Zone, *, domain: str, udp: bool) -> bytes | None:
    """Response to a query; None if the message is not a query."""
    try:
        question = dns.message.from_wire(wire, ignore_trailing=True)
    except dns.exception.DNSException:
        return None
    if question.flags & dns.flags.QR:
        return None
    response = dns.message.make_response(question, recursion_available=True)
    if question.opcode() != dns.opcode.QUERY or len(question.question) != 1:
        response.set_rcode(dns.rcode.NOTIMP)
    else:
        _fill(response, zone, domain)
    most = max(question.payload, PLAIN_UDP) if udp else 65535
    try:
        return response.to_wire(max_size=most)
    except dns.exception.TooBig:
        cut = dns.message.make_response(question, recursion_available=True)
        cut.flags |= dns.flags.TC
        return cut.to_wire()


def _fill(response: dns.message.Message, zone: Zone, domain: str) -> None:
    asked = response.question[0]
    name = asked.name.to_text(omit_final_dot=True).lower()
    record_type = dns.rdatatype.to_text(asked.rdtype)
    response.flags |= dns.flags.AA
    records = zone.get(name)
    if records is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif "CNAME" in records and record_type != "CNAME":
        _add(response, asked.name, "CNAME", records["CNAME"])
        for target in records["CNAME"]:
            inner = zone.get(target.rstrip(".").lower(), {})
            if record_type in inner:
                _add(response, dns.name.from_text(target), record_type, inner[record_type])
    elif record_type in records:
        _add(response, asked.name, record_type, random.sample(records[record_type], len(records[record_type])))
        if record_type == "SRV":
            _targets(response, records["SRV"], zone)
    if not response.answer:
        _authority(response, name, domain)


def _targets(response: dns.message.Message, services: list[str], zone: Zone) -> None:
    for target in sorted({data.split()[3] for data in services}):
        for kind in ("A", "AAAA"):
            if data := zone.get(target.rstrip("."), {}).get(kind):
                response.additional.append(_rrset(dns.name.from_text(target), kind, data))


def _authority(response: dns.message.Message, name: str, domain: str) -> None:
    """The SOA of a negative answer: of names outside the domain, the root that this closed world has."""
    apex = f"{domain}." if name == domain or name.endswith(f".{domain}") else "."
    start = "ns.dns." + ("" if apex == "." else apex)
    data = [f"{start} hostmaster.{'' if apex == '.' else apex} 1 7200 1800 86400 {TTL}"]
    response.authority.append(_rrset(dns.name.from_text(apex), "SOA", data))


def _add(response: dns.message.Message, name: dns.name.Name, kind: str, data: list[str]) -> None:
    response.answer.append(_rrset(name, kind, data))


def _rrset(name: dns.name.Name, kind: str, data: list[str]) -> dns.rrset.RRset:
    return dns.rrset.from_text_list(name, TTL, dns.rdataclass.IN, dns.rdatatype.from_text(kind), data)
