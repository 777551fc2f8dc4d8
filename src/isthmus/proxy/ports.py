"""Assigns the ports on which a node's Envoy listens for its pods: fairly shared, and kept while needed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from isthmus.fair import Shares, grant

Key = TypeVar("Key", bound=tuple[Hashable, ...])


class Range(NamedTuple):
    """A range of ports."""

    first: int
    size: int


def share_ports(
    keys: Iterable[Key],
    ports: Range,
    *,
    group: Callable[[Key], str],
    order: Callable[[Key], Any],
    current: Mapping[Key, int],
) -> dict[Key, int]:
    """Return the ports of the keys that get one. Keys keep their ports; free ports are shared by group (isthmus.fair).

    ``group`` returns the group of a key, ``order`` a sort key without ties within a group, ``current`` holds the ports
    of keys that have one.
    """
    requested = list(keys)
    granted = {key: current[key] for key in requested if key in current}
    if len(granted) < len(requested):
        shares = Shares(ports.size)
        for name, count in Counter(map(group, granted)).items():
            shares.hold((name,), count)
        new = grant(
            (key for key in requested if key not in granted), shares, holders=lambda key: ((group(key),),), order=order
        )
        granted |= assign_ports(new, ports, reserved=set(granted.values()))
    return granted


def assign_ports(keys: Iterable[Key], ports: Range, *, reserved: Collection[int] = ()) -> dict[Key, int]:
    """Return a port for each key, by a hash of the key, so that nearly all get the same one after a restart.

    Keys beyond the number of free ports get none.
    """
    used, assigned = set(reserved), dict[Key, int]()
    free = ports.size - sum(ports.first <= port < ports.first + ports.size for port in used)
    for key in islice(keys, free):
        digest = blake2b(":".join(map(str, key)).encode(), digest_size=4).digest()
        offset = int.from_bytes(digest, "big") % ports.size
        while ports.first + offset in used:
            offset = (offset + 1) % ports.size
        assigned[key] = ports.first + offset
        used.add(ports.first + offset)
    return assigned
