"""Ports that a node's Envoy listens on for its pods, one for each port of a Service. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, TypeVar

Key = TypeVar("Key", bound=tuple[Any, ...])


def assign_ports(wanted: Iterable[Key], first: int, count: int) -> dict[Key, int]:
    """A port for each key, of ``count`` from ``first``: by a hash of the key, so that it is the same after a restart.

    Where two come to one port, the later in order takes the next free; beyond the range there is none.
    """
    taken: dict[int, Key] = {}
    for key in sorted(wanted)[:count]:
        digest = blake2b(":".join(map(str, key)).encode(), digest_size=4).digest()
        offset = int.from_bytes(digest, "big") % count
        while first + offset in taken:
            offset = (offset + 1) % count
        taken[first + offset] = key
    return {key: number for number, key in taken.items()}
