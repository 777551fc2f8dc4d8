"""Addresses and routes of each family: IPv4 by gateways without a subnet, IPv6 by link-local ones."""

from __future__ import annotations

from typing import Any, Final

from isthmus_lab.families import Scheme

LOOPBACK: Final = 1
SCOPE_HOST: Final = 254
SCOPE_LINK: Final = 253
NODAD: Final = 2
"""Flag of an address that is used at once, without duplicate address detection: it is unique by design."""
FOR_EVER: Final = 0xFFFFFFFF
NEXT_HOP: Final = "fe80::1"
"""IPv6: the nearer end of every cable and of every pod's. A neighbour answers only for addresses of the interface."""
HOST6: Final = (
    ("net/ipv6/conf/all/disable_ipv6", "0"),  # a machine's own default does not apply to these interfaces
    ("net/ipv6/conf/default/disable_ipv6", "0"),
)


async def add_address(netlink: Any, address: str, *, index: int, scheme: Scheme, local: bool = False) -> None:
    """Give an interface an address. A local one is never chosen as a source address."""
    more: dict[str, Any] = {"scope": SCOPE_HOST} if local else {}
    if scheme.family == "IPv6":
        more = {"flags": NODAD, **({"preferred": 0, "valid": FOR_EVER} if local else {})}
    await netlink.addr("add", index=index, address=address, prefixlen=scheme.length, **more)


async def add_neighbour(netlink: Any, address: str, *, index: int, scheme: Scheme) -> None:
    """Say that an address is at the other end of an interface, and be the next hop of that end."""
    if scheme.family == "IPv4":
        await netlink.route("add", dst=scheme.host(address), oif=index, scope=SCOPE_LINK)
        return
    await netlink.addr("add", index=index, address=NEXT_HOP, prefixlen=64, flags=NODAD)
    await netlink.route("add", family=scheme.socket, dst=scheme.host(address), oif=index)


async def add_default(netlink: Any, gateway: str, *, index: int, scheme: Scheme) -> None:
    """Send everything by an interface: IPv4 to a gateway beyond it, IPv6 to its other end."""
    if scheme.family == "IPv4":
        await netlink.route("add", dst=scheme.host(gateway), oif=index, scope=SCOPE_LINK)
        await netlink.route("add", dst="default", gateway=gateway, oif=index)
        return
    await netlink.route("add", family=scheme.socket, dst="::/0", gateway=NEXT_HOP, oif=index)
