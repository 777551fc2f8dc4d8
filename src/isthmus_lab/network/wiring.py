"""How addresses and routes are made in each family: IPv4 by gateways without a subnet, IPv6 by link-local ones."""

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


async def add_address(there: Any, address: str, *, index: int, scheme: Scheme, local: bool = False) -> None:
    """Give an interface an address. A local one is never chosen as the source of what goes out."""
    more: dict[str, Any] = {"scope": SCOPE_HOST} if local else {}
    if scheme.family == "IPv6":
        more = {"flags": NODAD, **({"preferred": 0, "valid": FOR_EVER} if local else {})}
    await there.addr("add", index=index, address=address, prefixlen=scheme.length, **more)


async def add_neighbour(there: Any, address: str, *, index: int, scheme: Scheme) -> None:
    """Say that an address is at the other end of an interface, and be the next hop of that end."""
    if scheme.family == "IPv4":
        await there.route("add", dst=scheme.host(address), oif=index, scope=SCOPE_LINK)
        return
    await there.addr("add", index=index, address=NEXT_HOP, prefixlen=64, flags=NODAD)
    await there.route("add", family=scheme.socket, dst=scheme.host(address), oif=index)


async def add_default(there: Any, gateway: str, *, index: int, scheme: Scheme) -> None:
    """Send everything by an interface: IPv4 to a gateway beyond it, IPv6 to its other end."""
    if scheme.family == "IPv4":
        await there.route("add", dst=scheme.host(gateway), oif=index, scope=SCOPE_LINK)
        await there.route("add", dst="default", gateway=gateway, oif=index)
        return
    await there.route("add", family=scheme.socket, dst="::/0", gateway=NEXT_HOP, oif=index)
