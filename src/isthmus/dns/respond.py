"""One packet in, one verdict out: the reply, FORWARD, or nothing. Pure, so it can be fed anything at all."""

from __future__ import annotations

from typing import Final

from isthmus.dns import unusual
from isthmus.dns.unusual import FORWARD
from isthmus.zone import Zone, codec
from isthmus.zone.codec import Answer

__all__ = ["FORWARD", "failure", "refusal", "respond"]

ORDINARY: Final = 128
"""Types from here on ask about names, not for records of them (RFC 6895 §3.1)."""


DENIED: Final = Answer(codec.NXDOMAIN, authoritative=False)
"""To a name of ours with a search domain behind it; whose zone that is, is not ours to show."""


def respond(packet: bytes, zone: Zone, *, limit: int, truncate: bool = False) -> bytes | None:
    """What to do with a packet from a client. ``limit``: the most its transport carries; ``truncate``: as for build."""
    query = codec.parse(packet, limit=limit)  # hot:
    if query is None:
        return unusual.respond(packet, zone, limit=limit)
    ordinary = query.cls == codec.IN and query.type < ORDINARY
    if not zone.ours(query.name, query.type):
        return codec.build(query, DENIED) if ordinary and zone.is_expansion(query.name) else FORWARD
    if ordinary:
        return codec.build(query, zone.answer(query), truncate=truncate)
    return codec.build(query, unusual.answer(query, zone), truncate=truncate)


def refusal(packet: bytes, *, limit: int) -> bytes | None:
    """SERVFAIL to a question whose answer raised; ``None`` if reading the question is what raises."""
    try:
        return failure(packet, limit=limit)
    except MemoryError:
        raise
    except Exception:
        return None


def failure(packet: bytes, *, limit: int) -> bytes | None:
    """SERVFAIL to a question that could not be passed on; None where it cannot even be read."""
    query = codec.parse(packet, limit=limit)
    if query is None:
        return unusual.failure(packet, limit=limit)
    return codec.build(query, Answer(codec.SERVFAIL, authoritative=False))
