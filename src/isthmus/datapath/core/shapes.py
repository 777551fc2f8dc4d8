"""Struct codecs. A ``Shape`` and a struct of bpf/maps.h have the same fields: ``check`` compares them through BTF."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Any, Final

from isthmus.datapath.core.btf import Layout
from isthmus.datapath.core.errors import DatapathError

V4 = bytes(10) + b"\xff\xff"


class Shape:
    """A struct of maps.h: its name there, and the format of each field in order. A plain number has no name."""

    def __init__(self, struct_name: str, /, **fields: str) -> None:
        self.name = struct_name
        self.fields = fields
        self._struct = struct.Struct("=" + "".join(fields.values()))
        self.size = self._struct.size
        self.pack = self._struct.pack
        self.unpack = self._struct.unpack
        self.unpack_from = self._struct.unpack_from

    def layout(self) -> Layout:
        """The layout that the compiler should have produced."""
        offsets, offset = [], 0
        for name, form in self.fields.items():
            offsets.append((name, offset))
            offset += struct.calcsize("=" + form)
        return Layout(offset, tuple(offsets))

    def named(self, raw: bytes) -> dict[str, Any]:
        """The fields by name."""
        return dict(zip(self.fields, self.unpack(raw), strict=True))

    def encode(self, **values: Any) -> bytes:
        """The bytes of fields given by name; ``pack`` takes them by position, which is faster."""
        assert values.keys() == self.fields.keys(), values.keys() ^ self.fields.keys()
        return self.pack(*map(values.__getitem__, self.fields))


ID: Final = Shape("", id="I")
CGROUP: Final = Shape("", cgroup="Q")
COOKIE: Final = Shape("", cookie="Q")


def check(shapes: Iterable[Shape], layouts: Mapping[str, Layout]) -> None:
    """Raise DatapathError if the object's structs differ: it was compiled from another maps.h."""
    for name, shape in sorted({shape.name: shape for shape in shapes if shape.name}.items()):
        if layouts.get(name) != shape.layout():
            raise DatapathError(
                f"struct {name} of the compiled datapath is not what this version expects; run make bpf"
            )


def address(text: str) -> bytes:
    """An address as 16 bytes, IPv4 as IPv4-mapped IPv6. Raises OSError if the text is no address."""
    return inet_pton(AF_INET6, text) if ":" in text else V4 + inet_pton(AF_INET, text)


def address_text(raw: bytes) -> str:
    """The address as text."""
    return inet_ntop(AF_INET, raw[12:]) if raw.startswith(V4) else inet_ntop(AF_INET6, raw)


def port(number: int) -> bytes:
    """A port in network order."""
    return number.to_bytes(2, "big")


def text(raw: bytes) -> str:
    """A zero-padded name."""
    return raw.rstrip(b"\0").decode(errors="replace")
