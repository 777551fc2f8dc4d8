"""A zone's names as entries of the map ``names``. Pure: the same zone gives the same bytes.

An entry covers every record type: it has the addresses that fit, and flags for records that only the server has.
"""

from __future__ import annotations

from isthmus.datapath.names.codecs import (
    BIG_A,
    BIG_AAAA,
    MAX_KEY,
    MAX_RECORDS,
    NAME,
    NAME_KEY,
    NATIVE,
    OTHERS,
    PTR_ALONE,
    name_hash,
)
from isthmus.zone import Zone, codec

Entry = tuple[bytes, bytes]


def key(name: bytes) -> bytes | None:
    """The key of a name in wire format, or ``None`` if the name is too long."""
    return NAME_KEY.pack(name) if len(name) <= MAX_KEY else None


def value(zone: Zone, name: bytes) -> bytes | None:
    """The entry of a name, or ``None`` if the zone has no such name."""
    if not zone.exists(name):
        return None
    if not zone.below(name) and not zone.is_native(name):
        return NAME.pack(name_hash(name), PTR_ALONE, 0, 0, b"", b"")
    flags = NATIVE if zone.is_native(name) else 0
    (a, records), (aaaa, more) = zone.records(name, codec.A), zone.records(name, codec.AAAA)
    if len(records) > MAX_RECORDS:
        flags, a, records = flags | BIG_A, 0, b""
    if len(records) + len(more) > MAX_RECORDS:
        flags, aaaa, more = flags | BIG_AAAA, 0, b""
    if name == zone.apex or set(zone.types(name)) - {codec.A, codec.AAAA}:
        flags |= OTHERS
    return NAME.pack(name_hash(name), flags, a, aaaa, b"", records + more)
