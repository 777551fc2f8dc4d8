"""Reserved addresses, which no Service, no endpoint of a peer and no frontend may have.

Kubernetes refuses nearly the same addresses in EndpointSlices and load balancers' status (``ValidateNonSpecialIP`` of
its API validation: unspecified, loopback, link-local, link-local multicast). All of multicast and the broadcast address
are refused here as well. Link-local has the clouds' metadata service (169.254.169.254) and node-local name servers.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Literal

from isthmus import bounds
from isthmus.bounds import IPNetwork, OutOfBounds, packed_ipv4

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
"""First octets of the reserved IPv4 ranges."""


def usual(address: str) -> bool:  # hot:
    """True if this is a canonical IPv4 address outside of the reserved ranges: the fast path."""
    try:
        return packed_ipv4(address)[0] not in _FIRST_OCTETS
    except (OSError, ValueError):
        return False


def reserved(address: str) -> Reserved:  # hot:
    """Reason why an address is reserved, empty if it is not. An IPv4-mapped IPv6 address is judged as its IPv4 one.

    >>> reserved("169.254.169.254"), reserved("::ffff:127.0.0.1"), reserved("10.1.1.2")
    ('link-local', 'loopback', '')
    """
    return "" if usual(address) else _reserved(address)


@lru_cache(65_536)
def _reserved(address: str) -> Reserved:
    try:
        ip = bounds.ip(address.partition("%")[0])
    except OutOfBounds:
        return "not an address"
    return next((name for name, network in _RANGES if ip in network), "")


def permit_loopback() -> None:
    """Stop reserving 127.0.0.0/8 in this process, for a lab that has no other addresses."""
    _RANGES.remove(("loopback", IPv4Network("127.0.0.0/8")))
    _reserved.cache_clear()


def is_range(text: str) -> bool:
    """True for a range of addresses with a prefix length and no bits beyond it."""
    try:
        bounds.network(text)
    except OutOfBounds:
        return False
    return True


def range_of(address: str, ranges: tuple[str, ...]) -> str:
    """Return the first range that contains an address, as it was written; empty if none does.

    >>> range_of("10.1.2.3", ("10.2.0.0/16", "10.1.0.0/16")), range_of("fd00::1", ("10.1.0.0/16",))
    ('10.1.0.0/16', '')
    """
    return _range_of(address, ranges) if ranges else ""


@lru_cache(65_536)
def _range_of(address: str, ranges: tuple[str, ...]) -> str:
    parsed = bounds.ip(address)
    return next((text for text, network in zip(ranges, _networks(ranges), strict=True) if parsed in network), "")


def overlap(ranges: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the first range that overlaps one of the others, with that one; ``None`` if none does.

    >>> overlap(("10.2.0.0/16", "10.1.8.0/24"), ("fd00::/8", "10.1.0.0/16"))
    ('10.1.8.0/24', '10.1.0.0/16')
    """
    for text, network in zip(ranges, _networks(ranges), strict=True):
        for other, existing in zip(others, _networks(others), strict=True):
            if network.version == existing.version and network.overlaps(existing):
                return text, other
    return None


@lru_cache(1024)
def _networks(ranges: tuple[str, ...]) -> tuple[IPNetwork, ...]:
    return tuple(map(bounds.network, ranges))
