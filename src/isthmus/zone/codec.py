"""DNS messages as bytes, as far as the hot path needs them: a header, one question, maybe EDNS; answers made before.

A resource record here is in wire format with its owner as a pointer to the question (``c0 0c``), so that one blob per
(name, type) answers every question for it, in whatever letter case it was asked. What is unusual is none of this
module's business: :func:`parse` gives None and dnspython takes over (dns/unusual.py).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import dns.rdata
import dns.rdataclass
import dns.rdatatype

from isthmus import bounds
from isthmus.model.dns import Name

HEADER: Final = struct.Struct(">HHHHHH")
SRV: Final = struct.Struct(">HHH")
OPT: Final = struct.Struct(">BHHIH")

QR, AA, TC, RD, RA, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0010
OPCODE: Final = 0x7800
IN: Final = 1
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
A, NS, SOA, PTR, TXT, AAAA, SRV_TYPE, OPT_TYPE, IXFR, AXFR, ANY = 1, 2, 6, 12, 16, 28, 33, 41, 251, 252, 255
TYPES: Final[dict[str, int]] = {"A": A, "AAAA": AAAA, "SRV": SRV_TYPE, "PTR": PTR, "TXT": TXT}

_ONE_SIZE: Final = (A.to_bytes(2, "big"), AAAA.to_bytes(2, "big"))
OWNER: Final = 0xC00C
"""The pointer to the question's name, which stands at offset 12 of every message."""

PLAIN_SIZE: Final = 512
"""Largest UDP answer for a client without EDNS, in bytes."""
UDP_SIZE: Final = 1232
"""Largest UDP answer in bytes: no link fragments it (DNS flag day 2020)."""
TCP_SIZE: Final = 65535


class Unwritable(ValueError):  # noqa: N818 it is the name that is wrong
    """A name that cannot be written: an empty or too long label, or too long as a whole."""


class Query(NamedTuple):
    """A question as it stands in its packet: who asked what, and how large an answer may be."""

    id: int
    flags: int
    question: bytes
    """Name, type and class as sent: echoed with its letter case."""
    name: bytes
    """Lower case, wire format."""
    type: int
    cls: int
    size: int
    edns: bytes
    """The OPT record to answer with; empty where none was sent."""


class Answer(NamedTuple):
    """The answer to a question: a code, records, and the authority of a negative one."""

    rcode: int
    number: int = 0
    records: bytes = b""
    authority: bytes = b""
    authoritative: bool = True


def parse(packet: bytes, *, limit: int) -> Query | None:
    """An ordinary question, or None for anything else. ``limit``: the most the transport carries."""
    if len(packet) < 17:
        return None
    ident, flags, questions, answers, authorities, extra = HEADER.unpack_from(packet)
    if questions != 1 or answers or authorities or extra > 1 or flags & (QR | OPCODE | TC):
        return None
    end = name_end(packet, 12)
    if end < 0 or end + 4 > len(packet):
        return None
    type_, cls = struct.unpack_from(">HH", packet, end)
    question, name = packet[12 : end + 4], packet[12:end].lower()
    if not extra:
        if len(packet) != end + 4:
            return None
        size = limit if limit == TCP_SIZE else PLAIN_SIZE
        return Query(ident, flags, question, name, type_, cls, size, b"")
    return _with_edns(packet, end + 4, Query(ident, flags, question, name, type_, cls, limit, b""))


def _with_edns(packet: bytes, at: int, query: Query) -> Query | None:
    if len(packet) < at + OPT.size:
        return None
    owner, type_, size, ttl, length = OPT.unpack_from(packet, at)
    if owner or type_ != OPT_TYPE or len(packet) != at + OPT.size + length or ttl >> 16 & 0xFF:
        return None
    most = query.size if query.size == TCP_SIZE else min(query.size, max(PLAIN_SIZE, size))
    return query._replace(size=most, edns=opt(ttl & 0x8000))


def opt(flags: int = 0, *, extended: int = 0) -> bytes:
    """Our OPT record: what we take, the upper bits of the code, and the DO bit given back."""
    return OPT.pack(0, OPT_TYPE, UDP_SIZE, extended << 24 | flags, 0)


def name_end(packet: bytes, at: int) -> int:
    """Return the end of the name at an offset; -1 if it is incomplete, compressed or too long."""
    start, size = at, len(packet)
    while at < size and at - start < 255:
        length = packet[at]
        if length == 0:
            return at + 1
        if length > 63:
            return -1
        at += length + 1
    return -1


def build(query: Query, answer: Answer, *, truncate: bool = False) -> bytes:
    """The reply. Records that do not fit are left out.

    ``truncate``: and the reply is marked as truncated, so that the client asks again over TCP. That is right only where
    TCP reaches us too: a client that follows the mark to another server takes that one's NXDOMAIN for an answer.
    """
    flags = QR | RA | (query.flags & (OPCODE | RD | CD)) | (answer.rcode & 0xF) | (AA if answer.authoritative else 0)
    count, records = answer.number, answer.records
    room = query.size - 12 - len(query.question) - len(query.edns) - len(answer.authority)
    if len(records) > room:
        count, records = fit(records, room)
        flags |= TC if truncate or query.size == TCP_SIZE else 0
    head = HEADER.pack(query.id, flags, 1, count, 1 if answer.authority else 0, 1 if query.edns else 0)
    return b"".join((head, query.question, records, answer.authority, query.edns))


def fit(records: bytes, room: int) -> tuple[int, bytes]:
    """Return the number of whole records that fit, and their bytes."""
    at = count = 0
    while at + 12 <= len(records):
        after = at + 12 + int.from_bytes(records[at + 10 : at + 12], "big")
        if after > room:
            break
        at, count = after, count + 1
    return count, records[:at]


def wire_name(name: str) -> bytes:
    """An absolute name, with or without its last dot, in wire format and lower case."""
    stripped = name.rstrip(".").lower()
    labels = stripped.encode("ascii", "replace").split(b".") if stripped else []
    if any(not 0 < len(label) < 64 for label in labels):
        raise Unwritable(f"'{name}' has an empty or too long label")
    wire = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    if len(wire) > 255:
        raise Unwritable(f"'{name}' is too long")
    return wire


def name_text(wire: bytes) -> str:
    """A name in wire format as text, without its last dot; what stands behind its root is left out."""
    labels, at = [], 0
    while at < len(wire) and wire[at]:
        labels.append(wire[at + 1 : at + 1 + wire[at]].decode(errors="replace"))
        at += wire[at] + 1
    return ".".join(labels)


def records(row: Name) -> tuple[int, bytes]:
    """The answers of a row: how many, and as one blob."""
    type_ = TYPES[row.type]
    wire = [record(type_, row.ttl, rdata(row.type, answer)) for answer in row.answers]
    return len(wire), b"".join(wire)


def record(type_: int, ttl: int, data: bytes, *, owner: bytes = OWNER.to_bytes(2, "big")) -> bytes:
    """One resource record."""
    return owner + struct.pack(">HHIH", type_, IN, ttl, len(data)) + data


def rdata(type_: str, text: str) -> bytes:
    """Record data from its presentation format."""
    if type_ in ("A", "AAAA"):
        return bounds.packed(text)
    if type_ == "PTR":
        return wire_name(text)
    if type_ == "SRV":
        *numbers, target = text.split()
        return SRV.pack(*(bounds.count(each, most=0xFFFF) for each in numbers)) + wire_name(target)
    data = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(type_), text)
    return data.to_wire() or b""


def rotate(count: int, records: bytes, turn: int) -> bytes:
    """Rotate records, so that another one is first."""
    if count < 2:
        return records
    if records[2:4] in _ONE_SIZE:  # hot: addresses
        at = turn % count * (len(records) // count)
    else:
        at = 0
        for _ in range(turn % count):
            at += 12 + int.from_bytes(records[at + 10 : at + 12], "big")
    return records[at:] + records[:at]


def soa(zone: bytes, *, server: bytes, ttl: int) -> bytes:
    """Record data of a zone's SOA; the last field is the lifetime of a negative answer in seconds.

    The serial is constant: it serves zone transfers only, which are refused, and so every server and the kernel give
    the same bytes.
    """
    return server + b"\nhostmaster" + zone + struct.pack(">IIIII", 1, 7200, 1800, 86400, ttl)
