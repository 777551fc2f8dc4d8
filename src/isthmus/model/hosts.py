"""Addresses of either family with an optional port, in text form."""

from __future__ import annotations

from typing import NamedTuple

from isthmus import bounds
from isthmus.bounds import MAX_PORT, OutOfBounds
from isthmus.model.services import Family


class Endpoint(NamedTuple):
    """An address or host name, and a port."""

    host: str
    port: int

    @property
    def family(self) -> Family:
        """Family of the address."""
        return family(self.host)

    def __str__(self) -> str:
        return joined(*self)


def endpoint(text: str, *, port: int) -> Endpoint:
    """Parse ``10.96.0.10``, ``10.96.0.10:53``, ``fd00::10`` or ``[fd00::10]:53``. ``port``: the default.

    Raises ValueError for anything else.
    """
    ported = text.count(":") == 1 or text.startswith("[")
    host, _, number = text.rpartition(":") if ported and not text.endswith("]") else (text, "", str(port))
    try:
        return Endpoint(bounds.text(host.strip("[]"), least=1, most=253), bounds.count(number, most=MAX_PORT))
    except OutOfBounds:
        raise ValueError(f"{bounds.shown(text)}: want an address, or address:port") from None


def family(address: str) -> Family:
    """Return the family of an address in canonical text."""
    return "IPv6" if ":" in address else "IPv4"


def canonical(text: str) -> bool:
    """True if this is an address in canonical text."""
    try:
        return bounds.address(text) == text
    except OutOfBounds:
        return False


def joined(host: str, port: int | str) -> str:
    """Format ``10.1.1.2:80`` or ``[fd00::2]:80``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
