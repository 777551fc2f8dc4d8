"""Questions that are not ordinary, by dnspython: other opcodes and classes, ANY, transfers, EDNS versions, garbage."""

from __future__ import annotations

from typing import Final

import dns.exception
import dns.message
import dns.name
import dns.rdatatype

from isthmus.zone import Zone, codec
from isthmus.zone.codec import Answer, Query

FORWARD: Final = b""
"""The result for a packet that is not ours: it is forwarded."""

TRANSFERS: Final = (codec.IXFR, codec.AXFR)


def respond(packet: bytes, zone: Zone, *, limit: int) -> bytes | None:
    """The reply to any packet: bytes, FORWARD, or None where none is owed (a reply, or less than a header)."""
    if len(packet) < 12:
        return None
    ident, flags, questions, *_ = codec.HEADER.unpack_from(packet)
    if flags & codec.QR:
        return None
    end = codec.name_end(packet, 12)
    if not questions or end < 0 or end + 4 > len(packet):
        return _refuse(ident, flags, codec.FORMERR)
    name = packet[12:end].lower()
    if not zone.ours(name, int.from_bytes(packet[end : end + 2], "big")):
        return FORWARD
    message = _read(packet)
    if flags & codec.OPCODE:
        return _refuse(ident, flags, codec.NOTIMP, _opt(message))
    if message is None or questions != 1 or flags & codec.TC:
        return _refuse(ident, flags, codec.FORMERR, _opt(message))
    query = _query(packet, message, limit)
    if message.edns > 0:
        badvers = codec.opt(message.ednsflags & 0x8000, extended=codec.BADVERS >> 4)
        return codec.build(query._replace(edns=badvers), Answer(codec.BADVERS, authoritative=False))
    return codec.build(query, answer(query, zone))


def failure(packet: bytes, *, limit: int) -> bytes | None:
    """SERVFAIL to a question that could not be passed on; None where it cannot be read or is a reply."""
    if len(packet) < 12 or packet[2] & 0x82:
        return None
    message = _read(packet)
    if message is None or len(message.question) != 1 or codec.name_end(packet, 12) < 0:
        return None
    return codec.build(_query(packet, message, limit), Answer(codec.SERVFAIL, authoritative=False))


def _read(packet: bytes) -> dns.message.Message | None:
    try:
        return dns.message.from_wire(packet, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError):
        return None


def _query(packet: bytes, message: dns.message.Message, limit: int) -> Query:
    """The one question of a readable message, whose name is not compressed."""
    ident, flags, *_ = codec.HEADER.unpack_from(packet)
    end = codec.name_end(packet, 12)
    type_, cls = message.question[0].rdtype.value, message.question[0].rdclass.value
    return Query(
        ident, flags, packet[12 : end + 4], packet[12:end].lower(), type_, cls, _size(message, limit), _opt(message)
    )


def _opt(message: dns.message.Message | None) -> bytes:
    """The OPT record to answer with: an answer has one where the question had (RFC 6891 §7)."""
    return codec.opt(message.ednsflags & 0x8000) if message is not None and message.edns >= 0 else b""


def answer(query: Query, zone: Zone) -> Answer:
    """The answer to a well-formed question of ours, whatever its type and class."""
    if query.cls != codec.IN or query.type in TRANSFERS:
        return Answer(codec.REFUSED, authoritative=False)
    if query.type == codec.ANY and (types := zone.types(query.name)):
        return zone.answer(query._replace(type=types[0]))  # one set of records is enough (RFC 8482 §4.1)
    return zone.answer(query)


def _size(message: dns.message.Message, limit: int) -> int:
    if limit == codec.TCP_SIZE:
        return limit
    return min(limit, max(codec.PLAIN_SIZE, message.payload)) if message.edns >= 0 else codec.PLAIN_SIZE


def _refuse(ident: int, flags: int, rcode: int, opt: bytes = b"") -> bytes:
    """A reply without a question, for packets whose question cannot be trusted."""
    reply_flags = codec.QR | codec.RA | (flags & (codec.OPCODE | codec.RD)) | rcode
    return codec.HEADER.pack(ident, reply_flags, 0, 0, 0, 1 if opt else 0) + opt
