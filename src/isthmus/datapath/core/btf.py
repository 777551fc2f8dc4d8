"""BTF: the structs of the compiled object, as the compiler laid them out. Only what checking codecs needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

_HEADER = struct.Struct("=HBBIIIII")
_TYPE = struct.Struct("=III")
_MEMBER = struct.Struct("=III")
_MAGIC = 0xEB9F
_STRUCT = 4
_TRAILING = {1: 4, 3: 12, 14: 4, 17: 4}
"""Bytes after the type by kind, where that is fixed: INT, ARRAY, VAR, DECL_TAG."""
_PER_MEMBER = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes after the type for each of its members: STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC, ENUM64."""


class Layout(Struct, frozen=True):
    """A struct's size and the offsets of its fields, in bytes and in order."""

    size: int
    fields: tuple[tuple[str, int], ...]


def layouts(raw: bytes) -> dict[str, Layout]:
    """Every named struct of a BTF blob."""
    strings = _strings(raw)
    found: dict[str, Layout] = {}
    for kind, name, size, members in _types(raw):
        if kind == _STRUCT and name:
            fields = (_MEMBER.unpack_from(members, at) for at in range(0, len(members), _MEMBER.size))
            found[_text(strings, name)] = Layout(size, tuple((_text(strings, n), bits // 8) for n, _, bits in fields))
    return found


def _strings(raw: bytes) -> bytes:
    magic, _, _, header, _, _, offset, size = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError("not BTF of this machine's byte order")
    return raw[header + offset : header + offset + size]


def _types(raw: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, offset of the name, size, what follows) of each type."""
    _, _, _, header, offset, size, _, _ = _HEADER.unpack_from(raw)
    at, end = header + offset, header + offset + size
    while at < end:
        name, info, type_size = _TYPE.unpack_from(raw, at)
        at += _TYPE.size
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        length = _TRAILING.get(kind, 0) + _PER_MEMBER.get(kind, 0) * members
        yield kind, name, type_size, raw[at : at + length]
        at += length


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()
