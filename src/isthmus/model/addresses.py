"""Reserved addresses: those that no Service, no endpoint of a peer and no frontend may have, whoever asks for them.

Kubernetes refuses the same of EndpointSlices and load balancers' status (``ValidateNonSpecialIP`` of its API
validation: unspecified, loopback, link-local, link-local multicast); multicast as a whole and the broadcast address are
refused here as well. Link-local holds the clouds' metadata service (169.254.169.254) and node-local name servers.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, inet_pton
from typing import Final, Literal

Reserved = Literal["", "unspecified", "loopback", "link-local", "multicast", "broadcast", "not an address"]

_RANGES: Final[list[tuple[Reserved, IPv4Network | IPv6Network]]] = [
    ("unspecified", IPv4Network("0.0.0.0/8")),  # "this network" (RFC 1122 §3.2.1.3); Linux connects 0.0.0.0 to loopback
    ("loopback", IPv4Network("127.0.0.0/8")),
    ("link-local", IPv4Network("169.254.0.0/16")),
    ("multicast", IPv4Network("224.0.0.0/4")),
    ("broadcast", IPv4Network("255.255.255.255/32")),
    ("unspecified", IPv6Network("::/128")),
    ("loopback", IPv6Network("::1/128")),
    ("link-local", IPv6Network("fe80::/10")),
    ("multicast", IPv6Network("ff00::/8")),
]


_FIRST_OCTETS: Final = frozenset(
    octet
    for _, each in _RANGES
    if isinstance(each, IPv4Network)
    for octet in range(each.network_address.packed[0], each.broadcast_address.packed[0] + 1)
)
"""How IPv4 addresses begin that may be reserved."""


def usual(address: str) -> bool:  # hot:
    """Whether this is a canonical IPv4 address that is not reserved: nearly all are, and it is quick to see."""
    try:
        return inet_pton(AF_INET, address)[0] not in _FIRST_OCTETS  # takes canonical IPv4 and nothing else
    except (OSError, ValueError):
        return False


def reserved(address: str) -> Reserved:  # hot:
    """Why an address is reserved; empty for one that is not. An IPv4-mapped IPv6 address is judged as its IPv4 one.

    >>> reserved("169.254.169.254"), reserved("::ffff:127.0.0.1"), reserved("10.1.1.2")
    ('link-local', 'loopback', '')
    """
    return "" if usual(address) else _reserved(address)


@lru_cache(65_536)
def _reserved(address: str) -> Reserved:
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return "not an address"
    plain = _unmapped(parsed)
    return next((name for name, network in _RANGES if plain in network), "")


def permit_loopback() -> None:
    """From now on 127.0.0.0/8 is not reserved in this process: of a lab that has no other addresses."""
    _RANGES.remove(("loopback", IPv4Network("127.0.0.0/8")))
    _reserved.cache_clear()


def is_range(text: str) -> bool:
    """Whether this is a range of addresses, with a prefix length and no bits beyond it."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return "/" in text


def range_of(address: str, ranges: tuple[str, ...]) -> str:
    """The first of some ranges that an address is in, as it was written; empty where it is in none.

    >>> range_of("10.1.2.3", ("10.2.0.0/16", "10.1.0.0/16")), range_of("fd00::1", ("10.1.0.0/16",))
    ('10.1.0.0/16', '')
    """
    return _range_of(address, ranges) if ranges else ""


@lru_cache(65_536)
def _range_of(address: str, ranges: tuple[str, ...]) -> str:
    parsed = _unmapped(ip_address(address))
    return next((text for text, network in zip(ranges, _networks(ranges), strict=True) if parsed in network), "")


@lru_cache(1024)
def _networks(ranges: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(each) for each in ranges)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
