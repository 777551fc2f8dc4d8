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
    """A struct of maps.h: its name there, and the format of each field in order. Without a name it is a number."""

    def __init__(self, struct_name: str, /, **fields: str) -> None:
        self.name = struct_name
        self.fields = fields
        self._struct = struct.Struct("=" + "".join(fields.values()))
        self.size = self._struct.size
        self.pack = self._struct.pack
        self.unpack = self._struct.unpack
        self.unpack_from = self._struct.unpack_from

    def layout(self) -> Layout:
        """What the compiler should have made of it."""
        offsets, at = [], 0
        for name, form in self.fields.items():
            offsets.append((name, at))
            at += struct.calcsize("=" + form)
        return Layout(at, tuple(offsets))

    def named(self, raw: bytes) -> dict[str, Any]:
        """The fields by name."""
        return dict(zip(self.fields, self.unpack(raw), strict=True))


ID: Final = Shape("", id="I")
CGROUP: Final = Shape("", cgroup="Q")
COOKIE: Final = Shape("", cookie="Q")


def check(shapes: Iterable[Shape], found: Mapping[str, Layout]) -> None:
    """Refuse an object whose structs are not these: it was compiled from another maps.h."""
    for name, shape in sorted({shape.name: shape for shape in shapes if shape.name}.items()):
        if found.get(name) != shape.layout():
            raise DatapathError(
                f"struct {name} of the compiled datapath is not what this version expects; run make bpf"
            )


def address(text: str) -> bytes:
    """An address in the one key space of both families; OSError for what is none."""
    return inet_pton(AF_INET6, text) if ":" in text else V4 + inet_pton(AF_INET, text)


def address_text(raw: bytes) -> str:
    """The address as people write it."""
    return inet_ntop(AF_INET, raw[12:]) if raw.startswith(V4) else inet_ntop(AF_INET6, raw)


def port(number: int) -> bytes:
    """A port in network order."""
    return number.to_bytes(2, "big")


def text(raw: bytes) -> str:
    """A zero-padded name."""
    return raw.rstrip(b"\0").decode(errors="replace")
