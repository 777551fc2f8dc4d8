"""Where something listens, as people write it: an address of either family, with or without a port."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from isthmus.model.services import Family


class Endpoint(NamedTuple):
    """An address, or a name, and a port."""

    host: str
    port: int

    @property
    def family(self) -> Family:
        """That of an address."""
        return family(self.host)

    def __str__(self) -> str:
        return joined(*self)


def endpoint(text: str, *, port: int) -> Endpoint:
    """``10.96.0.10``, ``10.96.0.10:53``, ``fd00::10``, ``[fd00::10]:53``; ValueError for anything else."""
    ported = text.count(":") == 1 or text.startswith("[")
    host, _, number = text.rpartition(":") if ported and not text.endswith("]") else (text, "", str(port))
    if not host.strip("[]") or not number.isdigit() or int(number) > 65535:
        raise ValueError(f"'{text}': want an address, or address:port")
    return Endpoint(host.strip("[]"), int(number))


def family(address: str) -> Family:
    """The address family of canonical text."""
    return "IPv6" if ":" in address else "IPv4"


def canonical(text: str) -> bool:
    """Whether this is an address in its canonical text."""
    try:
        return str(ipaddress.ip_address(text)) == text
    except ValueError:
        return False


def joined(host: str, port: int | str) -> str:
    """``10.1.1.2:80``, ``[fd00::2]:80``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
