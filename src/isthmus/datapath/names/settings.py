"""The entry that describes our zone to the kernel, and the name servers whose questions it reads."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
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
    """What of the entry changes: how long it holds (CLOCK_MONOTONIC, ns), and what the kernel may conclude from it."""

    deadline: int
    host: int
    on: bool
    complete: bool


def config(zone: Zone, state: State, *, cluster_domain: str, rate: float = 0.0) -> bytes:
    """The entry. ``state.host`` 0: the node's own namespace is unknown, so socket hooks steer every caller.

    ``rate``: questions a second of a pod to the node's server; 0: any number.
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
    return CONFIG.pack(
        state.deadline,
        state.host,
        flags,
        len(authority),
        _labels(zone.apex),
        len(zone.apex),
        _labels(cluster),
        len(cluster),
        len(expanded),
        0,
        min(int(1e9 / rate), 2**32 - 1) if rate else 0,
        zone.apex,
        cluster,
        expanded,
        authority,
    )


def servers(section: DnsSection) -> dict[bytes, int]:
    """Entries of ``dns_servers``, with what each server is; DatapathError names the field that is wrong."""
    asked = {"cluster_dns": section.cluster_dns, "resolvers": section.resolvers}
    found = {key: ASKED for field, texts in asked.items() for key in _keys(field, texts)}
    return found | dict.fromkeys(_keys("listen", section.listen), OWN)


def host_cookie() -> int:
    """The cookie of this process's network namespace; 0 where the kernel does not give it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        (cookie,) = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8))
        return int(cookie)
    return 0


def _keys(field: str, texts: Iterable[str]) -> Iterable[bytes]:
    for text in texts:
        try:
            parsed = endpoint(text, port=53)
            yield SERVER_KEY.pack(address(parsed.host), port(parsed.port), 0)
        except (OSError, ValueError):
            raise DatapathError(f"dns.{field} = '{text}': want an address, or address:port") from None


def _labels(name: bytes) -> int:
    count = at = 0
    while at < len(name) and name[at]:
        at += name[at] + 1
        count += 1
    return count
