"""Sockets of a network namespace by sock_diag (linux/inet_diag.h): list those that are connected, and destroy one.

A destroyed TCP socket gives ECONNABORTED, a UDP socket likewise, and both wake whoever polls them. Functions act on the
namespace of the calling thread.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from isthmus.datapath.core import shapes

NETLINK_SOCK_DIAG: Final = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
ERROR, DONE = 2, 3
REQUEST_ACK, REQUEST_DUMP = 0x5, 0x301
HEADER: Final = struct.Struct("=IHHII")
REQUEST: Final = struct.Struct("=BBBxI48s")
"""Family, protocol, extensions, states, id."""
ID: Final = struct.Struct("=2s2s16s16sI8s")
"""Ports, addresses, interface, cookie."""
COOKIE: Final = struct.Struct("=Q")
"""Two words there, the lower one first."""
MESSAGE: Final = struct.Struct("=BBBB48s")
ATTRIBUTE: Final = struct.Struct("=HH")
"""Length with this header, type."""
NESTED: Final = 1 << 15
REQ_STORAGES, REQ_MAP = 2, 1
"""INET_DIAG_REQ_SK_BPF_STORAGES, in it SK_DIAG_BPF_STORAGE_REQ_MAP_FD (kernel 5.6)."""
STORAGES, STORAGE, STORAGE_VALUE = 20, 1, 3
"""INET_DIAG_SK_BPF_STORAGES, in it SK_DIAG_BPF_STORAGE, in it SK_DIAG_BPF_STORAGE_MAP_VALUE."""
FIXED: Final = 72
"""Bytes of struct inet_diag_msg, before the attributes."""
STATES: Final = {socket.IPPROTO_TCP: 0b1011_0011_0110, socket.IPPROTO_UDP: 0b10}
"""Bits of connected sockets: all but listening ones, and those that have ended. UDP: with a peer."""
RECEIVE: Final = 1 << 18


class Socket(NamedTuple):
    """A connected socket. Addresses are in the one key space, ports in network order."""

    family: int
    protocol: int
    id: bytes
    """What the kernel knows it by, cookie included: another with its addresses is another."""
    local: bytes
    local_port: bytes
    remote: bytes
    remote_port: bytes
    storage: bytes = b""
    """What the socket has in the storage that was asked for; empty: nothing."""

    @property
    def cookie(self) -> int:
        """The number that no other socket of this machine has had."""
        (cookie,) = COOKIE.unpack_from(self.id, ID.size - COOKIE.size)
        return int(cookie)


def connected(protocol: int, *, storage: int | None = None) -> list[Socket]:
    """Every connected socket of a protocol, both families. ``storage``: descriptor of a map of socket storage."""
    return [found for family in (socket.AF_INET, socket.AF_INET6) for found in _connected(family, protocol, storage)]


def destroy(found: Socket) -> bool:
    """End a socket; False where it has gone already. OSError where this kernel has no CONFIG_INET_DIAG_DESTROY."""
    request = REQUEST.pack(found.family, found.protocol, 0, 0, found.id)
    with _open() as sock:
        sock.send(HEADER.pack(HEADER.size + len(request), SOCK_DESTROY, REQUEST_ACK, 0, 0) + request)
        (code,) = struct.unpack_from("=i", sock.recv(RECEIVE), HEADER.size)
    if code not in (0, -errno.ENOENT):
        raise OSError(-code, os.strerror(-code))
    return bool(code == 0)


def _connected(family: int, protocol: int, storage: int | None) -> Iterator[Socket]:
    request = REQUEST.pack(family, protocol, 0, STATES[protocol], bytes(48))
    if storage is not None:
        request += _attribute(REQ_STORAGES | NESTED, _attribute(REQ_MAP, struct.pack("=I", storage)))
    with _open() as sock:
        sock.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 0, 0) + request)
        while True:
            data, at = sock.recv(RECEIVE), 0
            while at < len(data):
                length, kind, *_ = HEADER.unpack_from(data, at)
                if kind in (DONE, ERROR):
                    return
                yield _socket(protocol, data[at + HEADER.size : at + length])
                at += (length + 3) & ~3


def _open() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)


def _socket(protocol: int, message: bytes) -> Socket:
    family, *_, key = MESSAGE.unpack_from(message)
    local_port, remote_port, local, remote, _, _ = ID.unpack(key)
    if family == socket.AF_INET:
        local, remote = (shapes.V4 + address[:4] for address in (local, remote))
    stored = _nested(message[FIXED:], STORAGES, STORAGE, STORAGE_VALUE)
    return Socket(family, protocol, key, local, local_port, remote, remote_port, stored)


def _attribute(kind: int, value: bytes) -> bytes:
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value


def _nested(attributes: bytes, *path: int) -> bytes:
    """The value of the first attribute on a path through nested ones; empty where there is none."""
    for kind in path:
        attributes = next((value for each, value in _attributes(attributes) if each == kind), b"")
    return attributes


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, at)
        if length < ATTRIBUTE.size:
            return
        yield kind & ~NESTED, data[at + ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
