"""The program that answers names, loaded over maps of its own, and packets to give it."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from datapath_worlds.bpf_testrun import TestRun
from datapath_worlds.bpf_world import done

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath.core import attach, libbpf
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.manifest import MAPS
from isthmus.datapath.names import NamesTarget
from isthmus.datapath.names.counters import questions
from isthmus.datapath.settings import ALIVE, settings
from isthmus.model.dns import Name

POD, POD6 = "10.7.0.9", "fd00:7::9"
CLUSTER_DNS, CLUSTER_DNS6 = "10.96.0.10", "fd00:96::10"
SERVER, SERVER6 = "169.254.7.1", "fd00:169:254:7::1"
ZONE = "clusterset.local"
SECTION = DnsSection(
    zone=ZONE, pod_rate=0, cluster_dns=(CLUSTER_DNS, CLUSTER_DNS6), listen=(f"{SERVER}:53", f"[{SERVER6}]:53")
)
UDP = 17
MACS = bytes.fromhex("02000000000a") + bytes.fromhex("02000000000b")


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@lru_cache(256)
def packed(address: str) -> bytes:
    """An address as packets have it."""
    return ip_address(address).packed


def pseudo(source: bytes, target: bytes, length: int) -> bytes:
    """The pseudo header of UDP."""
    tail = struct.pack(">IHBB", length, 0, 0, UDP) if len(source) == 16 else struct.pack(">BBH", 0, UDP, length)
    return source + target + tail


def packet(
    payload: bytes, *, source: str = POD, target: str = CLUSTER_DNS, ports: tuple[int, int] = (40000, 53), **more: Any
) -> bytes:
    """An Ethernet frame with a datagram. ``check``: "full" (default), "partial" (a device makes it), or a number."""
    length = 8 + len(payload)
    check: Any = more.get("check", "full")
    over = pseudo(packed(source), packed(target), length)
    udp = struct.pack(">HHHH", *ports, length, 0)
    if check == "full":
        check = checksum(over + udp + payload) or 0xFFFF
    elif check == "partial":
        check = checksum(over) ^ 0xFFFF
    udp = struct.pack(">HHHH", *ports, length, check)
    return MACS + header(source, target, length, **more) + udp + payload


def header(source: str, target: str, length: int, *, fragment: int = 0, options: bytes = b"", **_: Any) -> bytes:
    """The type of the frame, and the IP header."""
    if ":" in source:
        head = struct.pack(">IHBB", 6 << 28, length, UDP, 64)
        return b"\x86\xdd" + head + packed(source) + packed(target)
    words = 5 + len(options) // 4
    fields = [0x40 | words, 0, words * 4 + length, 7, fragment, 64, UDP, 0]
    addresses = packed(source) + packed(target)
    fields[7] = checksum(struct.pack(">BBHHHBBH", *fields) + addresses + options)
    return b"\x08\x00" + struct.pack(">BBHHHBBH", *fields) + addresses + options


def message(frame: bytes) -> bytes:
    """The DNS message of a frame, after a look at everything around it."""
    if frame[12:14] == b"\x08\x00":
        ip = frame[14:34]
        assert checksum(ip) == 0, "IPv4 header checksum"
        length, source, target = int.from_bytes(ip[2:4], "big") - 20, ip[12:16], ip[16:20]
        assert (ip[0], ip[9]) == (0x45, UDP)
        udp = frame[34:]
    else:
        ip = frame[14:54]
        length, source, target = int.from_bytes(ip[4:6], "big"), ip[8:24], ip[24:40]
        assert ip[6] == UDP
        udp = frame[54:]
    assert len(udp) == length == int.from_bytes(udp[4:6], "big"), "lengths of IP, UDP and the frame"
    over = pseudo(source, target, length)
    check = int.from_bytes(udp[6:8], "big")
    partial = check == checksum(over) ^ 0xFFFF
    assert partial or checksum(over + udp) == 0 or (check == 0 and len(source) == 4), "UDP checksum"
    return udp[8:]


class NamesWorld:
    """Programs and maps, not attached to anything; ``ingress`` and ``egress`` are run on packets."""

    def __init__(self, directory: Path, *, section: DnsSection = SECTION, lifetime: float = 600.0) -> None:
        self._object = libbpf.Object(attach.OBJECT)
        for name, pointer in self._object.maps().items():
            row = MAPS[name]
            if row.entries:
                self._object.resize(pointer, 16384)
        self._object.set_constants(attach.constants())
        self._object.load()
        descriptors = {name: self._object.map_fd(pointer) for name, pointer in self._object.maps().items()}
        directory.mkdir(exist_ok=True)
        for name in descriptors:
            (directory / name).touch()
        self.maps = KernelMaps(descriptors, pinned=directory)
        self.section = section
        self.lifetime = lifetime
        assert not self.maps.put("config", [(ID.pack(0), settings(DatapathSection(cgroup="/"), section))])
        self.ingress = TestRun(self._object.program_fd("from_pod"))
        self.egress = TestRun(self._object.program_fd("to_pod"))
        self.target = self.restarted()

    def program(self, name: str) -> int:
        """The descriptor of a program."""
        return self._object.program_fd(name)

    def restarted(self, **more: Any) -> NamesTarget:
        """The target of an agent that starts now."""
        return NamesTarget(self.maps, self.section, lifetime=self.lifetime, **more)

    def hold(self, rows: Sequence[Name], *, complete: bool = True) -> None:
        """Make the kernel hold these rows; with ``complete`` also that there are no others."""
        assert done(self.target.update(rows)) == {}
        if complete:
            done(self.target.prune(rows))

    def alive(self, seconds: float = 60.0, *, flags: int = 0) -> None:
        """The node's server renews its deadline."""
        entry = ALIVE.pack(time.monotonic_ns() + int(seconds * 1e9), 0, flags)
        assert not self.maps.put("alive", [(ID.pack(0), entry)])

    def questions(self) -> dict[tuple[str, str], int]:
        """What was counted, by kind and result."""
        return {(row["kind"], row["result"]): row["questions"] for row in questions(self.maps.fd("name_counters"))}

    def empty(self, names: Iterable[str] = ("names", "steered")) -> None:
        """Away with entries."""
        for name in names:
            self.maps.drop(name, [key for key, _ in self.maps.items(name)])

    def close(self) -> None:
        """Give everything back."""
        self._object.close()
        self.maps.close()


def root_only() -> bool:
    """Whether programs can be loaded here."""
    return os.geteuid() == 0
