"""SYNs as bytes, the option that proves a caller, and SipHash-2-4 in Python, written by its paper and not by our C."""

from __future__ import annotations

import socket
import struct
from typing import Final

MASK: Final = (1 << 64) - 1
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
KIND, EXPERIMENT = 253, 0x1577
PLAIN = bytes.fromhex("020405b40402080a0000000100000000") + b"\1\3\3\7"
"""The 20 bytes of options of an ordinary SYN: MSS, SACK, timestamps, window scale."""


def siphash(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 of a message, 8 bytes as the paper writes them."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x: int, bits: int) -> int:
        return (x << bits | x >> 64 - bits) & MASK

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & MASK, (v[2] + v[3]) & MASK
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & MASK, (v[0] + v[3]) & MASK
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    whole = len(message) // 8 * 8
    last = (message[whole:] + bytes(7))[:7] + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", message[:whole] + last):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])


def binary(address: str) -> bytes:
    """An address in network order."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def mapped(address: str) -> bytes:
    """An address as 16 bytes, IPv4 under ::ffff:."""
    raw = binary(address)
    return raw if len(raw) == 16 else bytes(10) + b"\xff\xff" + raw


def option(
    key: bytes, number: int, identity: int, source: str, sport: int, target: str, dport: int, sequence: int
) -> bytes:
    """The option that a node writes."""
    who = struct.pack("!I", number << 24 | identity)
    covered = mapped(source) + mapped(target) + struct.pack("!HHI", sport, dport, sequence) + who + bytes(4)
    return struct.pack("!BBH", KIND, 16, EXPERIMENT) + who + siphash(key, covered)


def checksum(data: bytes) -> int:
    """The Internet's checksum."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def segment(
    source: str,
    sport: int,
    target: str,
    dport: int,
    sequence: int,
    *,
    options: bytes = PLAIN,
    flags: int = SYN,
    payload: bytes = b"",
) -> bytes:
    """A TCP segment with its checksum; options are a multiple of 4 bytes."""
    offset = (20 + len(options)) // 4 << 4
    head = struct.pack("!HHIIBBHHH", sport, dport, sequence, 0, offset, flags, 64_240, 0, 0) + options + payload
    pseudo = binary(source) + binary(target) + struct.pack("!II", len(head), 6)
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


def packet(
    source: str,
    target: str,
    body: bytes,
    *,
    protocol: int = 6,
    options: bytes = b"",
    fragment: int = 0,
) -> bytes:
    """An IP packet. ``options`` are those of IPv4, or extension headers of IPv6, whose first is ``protocol``."""
    if ":" in source:
        return (
            struct.pack("!IHBB", 6 << 28, len(options + body), protocol, 64)
            + binary(source)
            + binary(target)
            + options
            + body
        )
    size = 20 + len(options)
    head = struct.pack("!BBHHHBBH", 0x40 | size // 4, 0, size + len(body), 1, fragment, 64, protocol, 0)
    head += binary(source) + binary(target) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def frame(raw: bytes) -> bytes:
    """An Ethernet frame of an IP packet."""
    return bytes.fromhex("020000000001020000000002") + (b"\x86\xdd" if raw[0] >> 4 == 6 else b"\x08\x00") + raw
