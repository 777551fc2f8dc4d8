"""Interfaces, default routes and listening sockets as the kernel has them, by raw netlink: reads without a library.

A dump of a thousand interfaces is one call and takes milliseconds, so it is made where it is wanted, without a task.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

NEW_LINK, DEL_LINK, GET_LINK, NEW_ROUTE, GET_ROUTE = 16, 17, 18, 24, 26
ERROR, DONE = 2, 3
SOCK_DIAG_BY_FAMILY, NETLINK_SOCK_DIAG, TCP_ESTABLISHED, TCP_CLOSE, TCP_LISTEN = 20, 4, 1, 7, 10
"""linux/sock_diag.h, linux/netlink.h, net/tcp_states.h."""
INET_DIAG_INFO, SOURCE, DESTINATION = 2, 8, 24
"""Of linux/inet_diag.h: the attribute that is a ``struct tcp_info``; where ``struct inet_diag_msg`` has the local and
the remote address, of 16 bytes each."""
NOT_MEASURED: Final = 0xFFFFFFFF
"""tcpi_min_rtt of a connection that has none."""
REQUEST_ACK: Final = 0x5
REQUEST_DUMP: Final = 0x301
LINK_EVENTS: Final = 1
"""RTMGRP_LINK of linux/rtnetlink.h."""
UNICAST: Final = 1
LOOPBACK: Final = 1
ATTRIBUTE_TYPE: Final = 0x3FFF
HEADER: Final = struct.Struct("=IHHII")
LINK: Final = struct.Struct("=BxHiII")
ROUTE: Final = struct.Struct("=BBBBBBBBI")
HOP: Final = struct.Struct("=HBBi")
IFLA_IFNAME, IFLA_LINKINFO, IFLA_LINK_NETNSID, IFLA_INFO_KIND = 3, 18, 37, 1
RTA_OIF, RTA_MULTIPATH = 4, 9
RECEIVE: Final = 1 << 16


class Link(NamedTuple):
    """An interface. ``peer``: what this network namespace calls the one its other end is in; None: that is this one."""

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
    return [_link(body) for kind, body in _dump(GET_LINK, socket.AF_UNSPEC) if kind == NEW_LINK]


def default_route_interfaces() -> set[int]:
    """Interfaces, by index, that a default route of any family and table goes out by; never the loopback one."""
    found: set[int] = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, body in _dump(GET_ROUTE, family):
            _, size, *_, type_, _ = ROUTE.unpack_from(body)
            if kind == NEW_ROUTE and size == 0 and type_ == UNICAST:
                found.update(_interfaces(body))
    return found - {LOOPBACK}


def tcp_listeners() -> set[int]:
    """Inodes of the TCP sockets of this network namespace that listen (sock_diag(7)), as /proc/PID/fd shows them."""
    return {_inode(content) for content in _sockets(socket.IPPROTO_TCP, TCP_LISTEN)}


def udp_servers() -> set[int]:
    """Inodes of the UDP sockets of this network namespace that are bound to one address, and not connected."""
    return {
        _inode(content) for content in _sockets(socket.IPPROTO_UDP, TCP_CLOSE) if any(content[SOURCE : SOURCE + 16])
    }


def _sockets(protocol: int, state: int, *, port: int = 0, attribute: int = 0) -> Iterator[bytes]:
    """A ``struct inet_diag_msg`` for each socket of a protocol in a state, of those to a port and with an attribute if
    these are named."""
    more = 1 << (attribute - 1) if attribute else 0
    for family in (socket.AF_INET, socket.AF_INET6):
        body = struct.pack("=BBBxI", family, protocol, more, 1 << state) + struct.pack(">2xH44x", port)
        for _, content in _dumped(SOCK_DIAG_BY_FAMILY, body, protocol=NETLINK_SOCK_DIAG):
            yield content


def _inode(content: bytes) -> int:
    return int.from_bytes(content[68:72], sys.byteorder)


def tcp_round_trips(port: int) -> dict[str, float]:
    """By address: of this network namespace's TCP connections to a port the shortest round trip, s, that the kernel has
    measured of late (tcpi_min_rtt of struct tcp_info, linux/tcp.h; net.ipv4.tcp_min_rtt_wlen)."""
    found: dict[str, float] = {}
    for content in _sockets(socket.IPPROTO_TCP, TCP_ESTABLISHED, port=port, attribute=INET_DIAG_INFO):
        family = content[0]
        to = socket.inet_ntop(family, content[DESTINATION : DESTINATION + (4 if family == socket.AF_INET else 16)])
        info = dict(_attributes(content, 72)).get(INET_DIAG_INFO, b"")
        trip = int.from_bytes(info[148:152], sys.byteorder)
        if 0 < trip < NOT_MEASURED:
            found[to] = min(found.get(to, trip / 1e6), trip / 1e6)
    return found


def subscribe() -> socket.socket:
    """A socket that becomes readable as interfaces come, change and go."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    sock.bind((0, LINK_EVENTS))
    return sock


def changes(sock: socket.socket) -> list[LinkChange]:
    """What a subscribed socket holds. OSError (ENOBUFS) where it overflowed: list all interfaces again."""
    found: list[LinkChange] = []
    while True:
        try:
            data = sock.recv(RECEIVE)
        except BlockingIOError:
            return found
        found += [
            LinkChange(_link(body), kind == DEL_LINK) for kind, body in _messages(data) if kind in (NEW_LINK, DEL_LINK)
        ]


def request(kind: int, flags: int, body: bytes) -> None:
    """Have something done; OSError with the kernel's errno where it is not."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_ACK | flags, 1, 0) + body)
        for got, content in _messages(sock.recv(RECEIVE)):
            if got == ERROR:
                _raise(content)


def attribute(kind: int, data: bytes) -> bytes:
    """One attribute, padded."""
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _raise(content: bytes) -> None:
    if code := -int.from_bytes(content[:4], sys.byteorder, signed=True):
        raise OSError(code, os.strerror(code))


def _dump(kind: int, family: int) -> Iterator[tuple[int, bytes]]:
    return _dumped(kind, bytes([family]) + bytes(15 if kind == GET_LINK else 11))


def _dumped(kind: int, body: bytes, *, protocol: int = socket.NETLINK_ROUTE) -> Iterator[tuple[int, bytes]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.bind((0, 0))
        sock.send(HEADER.pack(HEADER.size + len(body), kind, REQUEST_DUMP, 1, 0) + body)
        while True:
            for got, content in _messages(sock.recv(RECEIVE)):
                if got == DONE:
                    return
                if got == ERROR:
                    _raise(content)
                yield got, content


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size:
            return
        yield kind, data[at + HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & ATTRIBUTE_TYPE, data[at + 4 : at + length]
        at += (length + 3) & ~3


def _link(body: bytes) -> Link:
    _, _, index, _, _ = LINK.unpack_from(body)
    found = dict(_attributes(body, LINK.size))
    info = dict(_attributes(found.get(IFLA_LINKINFO, b"")))
    raw = found.get(IFLA_LINK_NETNSID)
    peer = None if raw is None else int.from_bytes(raw[:4], sys.byteorder, signed=True)
    return Link(index, _text(found.get(IFLA_IFNAME)), _text(info.get(IFLA_INFO_KIND)), peer)


def _interfaces(body: bytes) -> Iterator[int]:
    for kind, data in _attributes(body, ROUTE.size):
        if kind == RTA_OIF:
            yield int.from_bytes(data[:4], sys.byteorder)
        elif kind == RTA_MULTIPATH:
            at = 0
            while at + HOP.size <= len(data):
                length, _, _, index = HOP.unpack_from(data, at)
                yield index
                at += max(length, HOP.size)


def _text(data: bytes | None) -> str:
    return data.rstrip(b"\0").decode(errors="replace") if data else ""
