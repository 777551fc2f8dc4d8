"""The one entry with the address of DNS and the features in use; exempt processes; liveness deadlines."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Final

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath.core import manifest
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.manifest import Map, Names, Row, each
from isthmus.datapath.core.shapes import CGROUP, ID, Shape, address, port
from isthmus.datapath.services.views import host_port
from isthmus.model.balancing import Target
from isthmus.model.hosts import Endpoint, endpoint
from isthmus.model.names import ClusterName

CLOCK_MONOTONIC_COARSE: Final = 6
CONFIG_EXEMPT: Final = 1
CONFIG_OBSERVE: Final = 2
CONFIG_RESCUE: Final = 4
AFFINITY_CLIENTS: Final = 16
"""No client has more than one entry in this many of ``affinity``: it cannot push out those of all others."""
HZ: Final = round(1 / time.clock_getres(CLOCK_MONOTONIC_COARSE))
"""Jiffies in a second: the coarse clocks move with the tick."""
FAMILIES: Final = ("IPv4", "IPv6")
"""As ``resolvers`` has them."""

RESOLVER = Shape("resolver", dns="16s", server="16s", dns_port="2s", server_port="2s")
CONFIG = Shape(
    "config",
    layout="I",
    flags="I",
    affinity_cells="I",
    syn_timeout="I",
    hz="I",
    flows="I",
    epoch="I",
    resolvers=f"{RESOLVER.size * len(FAMILIES)}s",
)
ALIVE = Shape("alive", deadline="Q", tied="I", flags="I")


def settings(section: DatapathSection, dns: DnsSection, *, before: bytes = bytes(CONFIG.size)) -> bytes:
    """The value of ``config``; DatapathError names the field that is wrong.

    ``before``: the value that is there. Maps keep their epoch for good; new ones, whose value is zeroes, get another.
    """
    flags = CONFIG_OBSERVE | (CONFIG_EXEMPT if section.exempt else 0)
    flags |= CONFIG_RESCUE if section.rescue == "auto" else 0
    known = _by_family(dns.cluster_dns, "dns.cluster_dns")
    servers = _by_family(dns.listen, "dns.listen")
    for family, asked in known.items():
        if family not in servers:
            raise DatapathError(f"dns.listen has no {family} address, which dns.cluster_dns has: {asked}")
    resolvers = b"".join(_resolver(known.get(family), servers.get(family)) for family in FAMILIES)
    cells = max(1, section.max_entries // AFFINITY_CLIENTS)
    timeout = min(round(section.syn_timeout * HZ), 0xFFFF)
    flows = 0 if section.flows == "off" else section.flows
    epoch = CONFIG.named(before)["epoch"] or random.randint(1, 0xFFFF_FFFF)
    return CONFIG.pack(manifest.LAYOUT, flags, cells, timeout, HZ, flows, epoch, resolvers)


def servers(dns: DnsSection) -> frozenset[Target]:
    """The addresses of the node's name server, by UDP."""
    listening = _by_family(dns.listen, "dns.listen").values()
    return frozenset(Target(each.host, each.port, "UDP", ClusterName("")) for each in listening)


def _by_family(texts: Iterable[str], field: str) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for text in texts:
        try:
            parsed = endpoint(text, port=53)
            address(parsed.host)
        except (OSError, ValueError):
            raise DatapathError(f"{field} = '{text}': want an address, or address:port") from None
        if parsed.family in found:
            raise DatapathError(f"{field} has two {parsed.family} addresses: {found[parsed.family]} and {parsed}")
        found[parsed.family] = parsed
    return found


def _resolver(asked: Endpoint | None, server: Endpoint | None) -> bytes:
    if asked is None or server is None:
        return bytes(RESOLVER.size)
    hosts = (address(each.host) for each in (asked, server))
    return RESOLVER.pack(*hosts, *(port(each.port) for each in (asked, server)))


def _show_config(_: Names, __: bytes, value: bytes) -> Row:
    raw = CONFIG.named(value)
    packed, size = raw["resolvers"], RESOLVER.size
    every = [RESOLVER.named(packed[at : at + size]) for at in range(0, len(packed), size)]
    used = [each for each in every if any(each["dns_port"])]
    dns = ", ".join(host_port(each["dns"], each["dns_port"]) for each in used)
    server = ", ".join(host_port(each["server"], each["server_port"]) for each in used)
    return {"layout": raw["layout"], "dns": dns or "off", **({"server": server} if used else {})}


def _show_exempt(_: Names, key: bytes, __: bytes) -> Row:
    return {"cgroup": CGROUP.unpack(key)[0]}


def _show_alive(_: Names, key: bytes, value: bytes) -> Row:
    return {"server": ("dns", "dns-second")[ID.unpack(key)[0]], "deadline": ALIVE.unpack(value)[0]}


MAPS: Final = (
    Map(name="exempt", key=CGROUP, writer="agent", show=each(_show_exempt)),
    Map(name="config", value=CONFIG, parts=(RESOLVER,), writer="agent", show=each(_show_config)),
    Map(name="alive", value=ALIVE, writer="dns", carried=True, show=each(_show_alive)),
    Map(name="sockets", writer="dns", carried=True, opaque=True),
)
