"""Two processes on one address: the kernel spreads questions over both, and gives all to the one that is left.

A process that joins takes its share of questions at once, so it joins with names, or where nobody else answers.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from isthmus import bounds

SOCKETS: Final = {4: Path("/proc/net/udp"), 6: Path("/proc/net/udp6")}


def is_served(listen: Iterable[tuple[str, int]]) -> bool:
    """Whether a socket of this network namespace has one of these addresses over UDP."""
    return any(_row(host, port) in _rows(SOCKETS[bounds.ip(host).version]) for host, port in listen)


def _rows(path: Path) -> set[str]:
    try:
        return {line.split()[1] for line in path.read_text().splitlines()[1:]}
    except FileNotFoundError:  # a kernel without IPv6
        return set()


def _row(host: str, port: int) -> str:
    """An address as the kernel prints it: words of the address in the machine's byte order."""
    packed = bounds.packed(host)
    words = struct.unpack(f"{'<' if sys.byteorder == 'little' else '>'}{len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
