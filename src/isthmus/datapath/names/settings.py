"""The entry that describes our zone to the kernel, and the name servers to which it reads questions."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from math import floor
from typing import Final

from msgspec import Struct

from isthmus.config import DnsSection
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.shapes import address, port
from isthmus.datapath.names.codecs import ASKED, AT_TC, COMPLETE, CONFIG, MAX_AUTHORITY, MAX_SUFFIX, ON, OWN, SERVER_KEY
from isthmus.model.hosts import endpoint
from isthmus.zone import Zone, codec

FOREVER: Final = 2**64 - 1
SO_NETNS_COOKIE: Final = 71
"""Since Linux 5.14."""


class State(Struct, frozen=True, kw_only=True):
    """The variable part of the entry: its deadline (CLOCK_MONOTONIC, ns), and flags for the kernel."""

    deadline: int
    host: int
    on: bool
    complete: bool


def config(zone: Zone, state: State, *, cluster_domain: str, rate: float = 0.0) -> bytes:
    """The entry. A ``state.host`` of 0 means an unknown node namespace: socket hooks then steer every caller.

    ``rate`` limits a pod's questions per second to the node's server; 0 disables the limit.
    """
    cluster = codec.wire_name(cluster_domain) if cluster_domain else b""
    expanded = b"\3svc" + zone.apex[:-1]
    authority = zone.authority()
    for field, name in (("zone", expanded), ("cluster_domain", cluster)):
        if len(name) > MAX_SUFFIX:
            raise DatapathError(f"dns.{field} is too long for the kernel ({len(name)} bytes): set dns.mode = redirect")
    if len(authority) > MAX_AUTHORITY:
        raise DatapathError("dns.zone is too long for the kernel: set dns.mode = redirect")
    flags = (ON if state.on else 0) | (COMPLETE if state.complete else 0) | (AT_TC if state.on and state.host else 0)
    return CONFIG.encode(
        deadline=state.deadline,
        host=state.host,
        flags=flags,
        authority_size=len(authority),
        zone_labels=_labels(zone.apex),
        zone_size=len(zone.apex),
        cluster_labels=_labels(cluster),
        cluster_size=len(cluster),
        expanded_size=len(expanded),
        reserved=0,
        interval=min(floor(1e9 / rate), 2**32 - 1) if rate else 0,
        zone=zone.apex,
        cluster=cluster,
        expanded=expanded,
        authority=authority,
    )


def servers(section: DnsSection) -> dict[bytes, int]:
    """Entries of ``dns_servers`` with each server's role. Raises DatapathError with the name of a wrong option."""
    asked = {"cluster_dns": section.cluster_dns, "resolvers": section.resolvers}
    roles = {key: ASKED for field, texts in asked.items() for key in _keys(field, texts)}
    return roles | dict.fromkeys(_keys("listen", section.listen), OWN)


def host_cookie() -> int:
    """Cookie of this process's network namespace, 0 if the kernel does not support it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        cookie: int = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8))[0]
        return cookie
    return 0


def _keys(field: str, texts: Iterable[str]) -> Iterable[bytes]:
    for text in texts:
        try:
            parsed = endpoint(text, port=53)
            yield SERVER_KEY.pack(address(parsed.host), port(parsed.port), 0)
        except (OSError, ValueError):
            raise DatapathError(f"dns.{field} = '{text}': want an address, or address:port") from None


def _labels(name: bytes) -> int:
    count = position = 0
    while position < len(name) and name[position]:
        position += name[position] + 1
        count += 1
    return count
