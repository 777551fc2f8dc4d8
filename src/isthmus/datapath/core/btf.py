"""Reads the struct layouts of the compiled object from its BTF, as far as checking the codecs needs."""

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
"""Bytes after a type of the kinds INT, ARRAY, VAR and DECL_TAG."""
_PER_MEMBER = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}
"""Bytes per member after a type of the kinds STRUCT, UNION, ENUM, FUNC_PROTO, DATASEC and ENUM64."""


class Layout(Struct, frozen=True):
    """A struct's size and the offsets of its fields, in bytes and in order."""

    size: int
    fields: tuple[tuple[str, int], ...]


def layouts(raw: bytes) -> dict[str, Layout]:
    """Every named struct of a BTF blob."""
    strings = _strings(raw)
    structs: dict[str, Layout] = {}
    for kind, name, size, members in _types(raw):
        if kind == _STRUCT and name:
            fields = (_MEMBER.unpack_from(members, start) for start in range(0, len(members), _MEMBER.size))
            structs[_text(strings, name)] = Layout(size, tuple((_text(strings, n), bits // 8) for n, _, bits in fields))
    return structs


def _strings(raw: bytes) -> bytes:
    magic, _, _, header, _, _, offset, size = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise ValueError("not BTF of this machine's byte order")
    return raw[header + offset : header + offset + size]


def _types(raw: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, offset of the name, size, members) of each type."""
    _, _, _, header, offset, size, _, _ = _HEADER.unpack_from(raw)
    position, end = header + offset, header + offset + size
    while position < end:
        name, info, type_size = _TYPE.unpack_from(raw, position)
        position += _TYPE.size
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        length = _TRAILING.get(kind, 0) + _PER_MEMBER.get(kind, 0) * members
        yield kind, name, type_size, raw[position : position + length]
        position += length


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()
