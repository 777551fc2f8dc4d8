"""Interfaces, as they are and as they change, and where default routes go out (linux/rtnetlink.h)."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from isthmus.netlink import wire

NEW_LINK, DEL_LINK, GET_LINK, NEW_ROUTE, GET_ROUTE = 16, 17, 18, 24, 26
GET_NSID: Final = 90
NETNSA_NSID, NETNSA_PID = 1, 2
NOT_ASSIGNED: Final = -1
"""NETNSA_NSID_NOT_ASSIGNED of linux/net_namespace.h."""
LINK_EVENTS: Final = 1
"""RTMGRP_LINK."""
UNICAST: Final = 1
LOOPBACK: Final = 1
LINK: Final = struct.Struct("=BxHiII")
ROUTE: Final = struct.Struct("=BBBBBBBBI")
HOP: Final = struct.Struct("=HBBi")
IFLA_IFNAME, IFLA_LINKINFO, IFLA_LINK_NETNSID, IFLA_INFO_KIND = 3, 18, 37, 1
RTA_OIF, RTA_MULTIPATH = 4, 9


class Link(NamedTuple):
    """An interface. ``peer`` is the id of its other end's network namespace, ``None`` if that is this namespace."""

    ifindex: int
    name: str
    kind: str
    peer: int | None


class LinkChange(NamedTuple):
    """An interface came or changed; or went, with ``gone``."""

    link: Link
    gone: bool


def links() -> list[Link]:
    """Every interface of this network namespace."""
    return [_link(body) for kind, body in _dump(GET_LINK, socket.AF_UNSPEC, LINK) if kind == NEW_LINK]


def default_route_interfaces() -> set[int]:
    """Return the indexes of interfaces with a default route of any family and table, without the loopback interface."""
    indexes: set[int] = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, body in _dump(GET_ROUTE, family, ROUTE):
            _, size, *_, type_, _ = ROUTE.unpack_from(body)
            if kind == NEW_ROUTE and size == 0 and type_ == UNICAST:
                indexes.update(_interfaces(body))
    return indexes - {LOOPBACK}


def namespace_id(pid: int) -> int | None:
    """This network namespace's id for that of a process, ``None`` if it has none: no interface here leads there."""
    body = bytes(4) + wire.attribute(NETNSA_PID, struct.pack("=I", pid))
    answer = wire.reply(socket.NETLINK_ROUTE, GET_NSID, body)
    raw = dict(wire.attributes(answer, 4)).get(NETNSA_NSID, b"")
    number = int.from_bytes(raw[:4], sys.byteorder, signed=True) if raw else NOT_ASSIGNED
    return None if number == NOT_ASSIGNED else number


def subscribe() -> socket.socket:
    """A socket that becomes readable as interfaces come, change and go."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind((0, LINK_EVENTS))
    return sock


def changes(sock: socket.socket) -> list[LinkChange]:
    """Read the changes from a subscribed socket. Raises OSError (ENOBUFS) on overflow: list all interfaces again."""
    changes: list[LinkChange] = []
    while True:
        try:
            data = sock.recv(wire.RECEIVE)
        except BlockingIOError:
            return changes
        changes += [
            LinkChange(_link(body), kind == DEL_LINK)
            for kind, body in wire.messages(data)
            if kind in (NEW_LINK, DEL_LINK)
        ]


def _dump(kind: int, family: int, head: struct.Struct) -> Iterator[tuple[int, bytes]]:
    return wire.dump(socket.NETLINK_ROUTE, kind, bytes([family]) + bytes(head.size - 1))


def _link(body: bytes) -> Link:
    _, _, index, _, _ = LINK.unpack_from(body)
    attributes = dict(wire.attributes(body, LINK.size))
    kind = wire.nested(attributes.get(IFLA_LINKINFO, b""), IFLA_INFO_KIND)
    raw = attributes.get(IFLA_LINK_NETNSID)
    peer = None if raw is None else int.from_bytes(raw[:4], sys.byteorder, signed=True)
    return Link(index, _text(attributes.get(IFLA_IFNAME, b"")), _text(kind), peer)


def _interfaces(body: bytes) -> Iterator[int]:
    for kind, data in wire.attributes(body, ROUTE.size):
        if kind == RTA_OIF:
            yield int.from_bytes(data[:4], sys.byteorder)
        elif kind == RTA_MULTIPATH:
            offset = 0
            while offset + HOP.size <= len(data):
                length, _, _, index = HOP.unpack_from(data, offset)
                yield index
                offset += max(length, HOP.size)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")
