"""What listens for this node's pods: packets that arrive on an uplink are dropped before anything reads them.

A link-local address on ``lo`` is reachable for any neighbour of the node that adds a route to it. A filter on the
sockets (of the name server, of Envoy) compares the interface on which a packet arrived; a listener's filter sees the
SYN, so connections are dropped too. Classic BPF, which needs no privilege for UDP; Linux 6.18 wants CAP_NET_ADMIN for
TCP sockets.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from isthmus.netlink import rtnetlink

REFRESH: Final = 5.0
"""Seconds between two looks at the routes."""
AUTO: Final = "auto"
SO_ATTACH_FILTER: Final = 26
INSTRUCTION: Final = struct.Struct("=HBBI")
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
INTERFACE_INDEX: Final = 0xFFFFF000 + 8
"""SKF_AD_OFF + SKF_AD_IFINDEX of linux/filter.h: loads the index of the interface that the packet arrived on."""
WHOLE_PACKET: Final = 0xFFFFFFFF


def indexes(names: Sequence[str]) -> frozenset[int]:
    """The interfaces of these names that there are; ``auto``: those with a default route, of any family and table."""
    devices = {link.ifindex for link in rtnetlink.links() if link.name in names}
    return frozenset(devices | (rtnetlink.default_route_interfaces() if AUTO in names else set()))


def drop_from(sock: socket.socket, interfaces: Iterable[int]) -> None:
    """Have the kernel drop what arrives for this socket on these interfaces, in the place of an earlier choice."""
    program = b"".join(_instructions(sorted(interfaces)))
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // INSTRUCTION.size, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)


async def keep(sockets: Sequence[socket.socket], names: Sequence[str], *, refresh: float = REFRESH) -> None:
    """Keep the filters as the routes are, for ever."""
    applied: frozenset[int] | None = None
    while True:
        devices = indexes(names)
        if devices != applied:
            for sock in sockets:
                drop_from(sock, devices)
            applied = devices
        await asyncio.sleep(refresh)


def _instructions(interfaces: Sequence[int]) -> Iterator[bytes]:
    """Load the interface; each comparison jumps over what is left and the first return, to the drop at the end."""
    yield INSTRUCTION.pack(LOAD_WORD, 0, 0, INTERFACE_INDEX)
    for left, index in zip(range(len(interfaces), 0, -1), interfaces, strict=True):
        yield INSTRUCTION.pack(JUMP_IF_EQUAL, left, 0, index)
    yield INSTRUCTION.pack(RETURN, 0, 0, WHOLE_PACKET)
    yield INSTRUCTION.pack(RETURN, 0, 0, 0)
