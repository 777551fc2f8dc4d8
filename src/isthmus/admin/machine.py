"""Measurements of a process's machine that decide whether calls succeed: clock, descriptors, disks, conntrack, ports.

Read when a status is requested, from /proc and statvfs, and never judged here: cli/diagnosis/machines.py does. A value
that cannot be read is missing, since a container may hide it. Those of the network are of the network namespace that
the process runs in: of an agent, the node's.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.model.hosts import joined

CROWDED: Final = 0.8
"""Part of the range of local ports, taken by sockets to anywhere, from which sockets are counted by destination."""


class Disk(Struct, frozen=True):
    """Room of a file system for an ordinary user, at a directory that the process writes."""

    path: str
    size_bytes: int
    free_bytes: int
    free_files: int
    """Free inodes; -1 if the file system has no limit of them."""


class Table(Struct, frozen=True):
    """Entries of a table of the kernel, and their limit."""

    used: int
    limit: int


class Machine(Struct, frozen=True, kw_only=True):
    """Measurements of the machine of a process. ``None`` stands for a value that cannot be read."""

    time: float
    """Seconds since the epoch by its clock."""
    descriptors: Table | None = None
    """Open file descriptors of the process."""
    disks: tuple[Disk, ...] = ()
    conntrack: Table | None = None
    """Tracked connections of the network namespace."""
    local_ports: Table | None = None
    """Local ports taken by sockets to the busiest destination, of all that the kernel may choose."""
    port_destination: str = ""
    """The destination with most of them; empty while less than CROWDED of the ports are in use."""
    reverse_path_drops: int = 0
    """Packets dropped by rp_filter since the namespace began: their way back is not the one by which they came."""


def measure(directories: Iterable[str] = (), *, proc: Path = Path("/proc")) -> Machine:
    """Measure the machine of this process. ``directories``: those that it writes; missing ones are left out."""
    ports, destination = _ports(proc)
    return Machine(
        time=time.time(),
        descriptors=_descriptors(proc),
        disks=tuple(_disks(directories)),
        conntrack=_conntrack(proc / "sys/net/netfilter"),
        local_ports=ports,
        port_destination=destination,
        reverse_path_drops=_reverse_path_drops(proc / "thread-self/net/netstat"),
    )


def _descriptors(proc: Path) -> Table | None:
    try:
        opened = sum(1 for _ in (proc / "self/fd").iterdir())
    except OSError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Table(opened, limit) if limit != resource.RLIM_INFINITY else None


def _disks(directories: Iterable[str]) -> Iterator[Disk]:
    """Room of each file system once, under the first of its directories."""
    devices = set[int]()
    for path in filter(None, directories):
        with suppress(OSError):
            device, room = Path(path).stat().st_dev, os.statvfs(path)
            if device not in devices:
                devices.add(device)
                size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
                yield Disk(path, size, free, room.f_favail if room.f_files else -1)


def _conntrack(directory: Path) -> Table | None:
    used, limit = _number(directory / "nf_conntrack_count"), _number(directory / "nf_conntrack_max")
    return Table(used, limit) if used is not None and limit else None


def _ports(proc: Path) -> tuple[Table | None, str]:
    """Ports to the busiest destination, and it. Sockets are listed only where a crowd could be found at all."""
    words = _text(proc / "sys/net/ipv4/ip_local_port_range").split()
    if len(words) != 2 or not all(map(str.isdecimal, words)):
        return None, ""
    first, last = map(int, words)
    limit = last - first + 1
    if _sockets(proc / "thread-self/net") < CROWDED * limit:
        return Table(0, limit), ""
    counts = Counter[str]()
    for name in ("tcp", "tcp6"):
        for line in _text(proc / "thread-self/net" / name).splitlines()[1:]:
            _, local, remote, *_ = line.split(maxsplit=3)
            if first <= int(local.rpartition(":")[2], 16) <= last and not remote.endswith(":0000"):
                counts[remote] += 1
    [(destination, used)] = counts.most_common(1) or [("", 0)]
    return Table(used, limit), _endpoint(destination)


def _endpoint(text: str) -> str:
    """An endpoint of /proc/net/tcp or tcp6, whose address is words of 32 bits in the machine's order; or empty."""
    address, _, port = text.partition(":")
    if not port:
        return ""
    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
    packed = struct.pack(f"={len(words)}I", *words)
    return joined(socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16))


def _sockets(net: Path) -> int:
    """TCP sockets of the namespace, those in TIME_WAIT included: an upper bound of those to one destination."""
    total = 0
    for name in ("sockstat", "sockstat6"):
        for line in _text(net / name).splitlines():
            protocol, *words = line.split()
            if protocol in ("TCP:", "TCP6:"):
                fields = dict(zip(words[::2], words[1::2], strict=False))
                total += sum(int(fields.get(each, 0)) for each in ("inuse", "tw"))
    return total


def _reverse_path_drops(path: Path) -> int:
    """Counter IPReversePathFilter of TcpExt: a line of names, then one of values."""
    lines = [line.split() for line in _text(path).splitlines() if line.startswith("TcpExt:")]
    fields = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}
    return int(fields.get("IPReversePathFilter", 0))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
