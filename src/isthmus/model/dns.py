"""Derived rows: DNS names of the clusterset."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RecordType = Literal["A", "AAAA", "SRV", "PTR", "TXT"]


class Name(Struct, frozen=True, gc=False):
    """A DNS name and its answers. ``name`` is lower case and absolute, without the trailing dot."""

    name: str
    type: RecordType
    answers: tuple[str, ...]
    """Record data in presentation format, sorted: '10.96.0.7', '0 50 80 echo.demo.svc.clusterset.local.'

    If it is empty, the name exists without records of this type."""
    service: str = ""
    ttl: int = 5
