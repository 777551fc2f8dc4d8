"""Messages and attributes of netlink (linux/netlink.h), and the two ways to ask: for a dump, and for something done."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final

HEADER: Final = struct.Struct("=IHHII")
"""Length with this header, type, flags, sequence, port."""
ATTRIBUTE: Final = struct.Struct("=HH")
"""Length with this header, type."""
ATTRIBUTE_TYPE: Final = 0x3FFF
"""Mask of the attribute type, without the bits for nesting and byte order."""
ERROR, DONE = 2, 3
REQUEST: Final = 0x1
REQUEST_ACK: Final = 0x5
REQUEST_DUMP: Final = 0x301
RECEIVE: Final = 1 << 18


def dump(protocol: int, kind: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each message of a dump; OSError with the kernel's errno where there is none."""
    with _open(protocol) as sock:
        sock.send(_message(kind, REQUEST_DUMP, body))
        while True:
            for got, content in messages(sock.recv(RECEIVE)):
                if got == DONE:
                    return
                if got == ERROR:
                    _raise(content)
                yield got, content


def request(protocol: int, kind: int, flags: int, body: bytes) -> None:
    """Have something done; OSError with the kernel's errno where it is not.

    For requests whose whole answer is one message of type ERROR, with errno 0 where it is done (NLM_F_ACK).
    """
    with _open(protocol) as sock:
        sock.send(_message(kind, REQUEST_ACK | flags, body))
        for got, content in messages(sock.recv(RECEIVE)):
            if got == ERROR:
                _raise(content)


def reply(protocol: int, kind: int, body: bytes) -> bytes:
    """The content of the one message that answers a question; OSError with the kernel's errno where there is none."""
    with _open(protocol) as sock:
        sock.send(_message(kind, REQUEST, body))
        [(got, content)] = messages(sock.recv(RECEIVE))
        if got == ERROR:
            _raise(content)
        return content


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each message of what was received."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, offset)
        if length < HEADER.size:
            return
        yield kind, data[offset + HEADER.size : offset + length]
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute, from an offset on."""
    while offset + ATTRIBUTE.size <= len(data):
        length, kind = ATTRIBUTE.unpack_from(data, offset)
        if length < ATTRIBUTE.size:
            return
        yield kind & ATTRIBUTE_TYPE, data[offset + ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def nested(data: bytes, *path: int) -> bytes:
    """The value of the first attribute on a path through nested ones; empty where there is none."""
    for kind in path:
        data = next((value for each, value in attributes(data) if each == kind), b"")
    return data


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _open(protocol: int) -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body


def _raise(content: bytes) -> None:
    if code := -int.from_bytes(content[:4], sys.byteorder, signed=True):
        raise OSError(code, os.strerror(code))
