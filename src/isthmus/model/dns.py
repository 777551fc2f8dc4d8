"""Derived rows: the names the clusterset answers for."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RecordType = Literal["A", "AAAA", "SRV", "PTR", "TXT"]


class Name(Struct, frozen=True, gc=False):
    """A DNS name and what it answers. ``name`` is lower case, absolute, without the last dot."""

    name: str
    type: RecordType
    answers: tuple[str, ...]
    """Record data in presentation format, sorted: '10.96.0.7', '0 50 80 echo.demo.svc.clusterset.local.'"""
    service: str = ""
    ttl: int = 5
