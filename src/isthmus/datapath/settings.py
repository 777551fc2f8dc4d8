"""The one entry with the address of DNS and the features in use; exempt processes; liveness deadlines."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath.core import manifest
from isthmus.datapath.core.attach import cgroup_id
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.manifest import Map, Names, Row, per_entry
from isthmus.datapath.core.shapes import CGROUP, ID, Shape, address, port
from isthmus.datapath.services.views import host_port
from isthmus.model.balancing import Target
from isthmus.model.hosts import Endpoint, endpoint
from isthmus.model.names import ClusterName

CLOCK_MONOTONIC_COARSE: Final = 6
CONFIG_EXEMPT: Final = 1
CONFIG_OBSERVE: Final = 2
CONFIG_RESCUE: Final = 4
CONFIG_MEASURED: Final = 8
SYN_TIMEOUT: Final = 0.2
"""Seconds until a SYN is sent again to a backend of a cluster of which no handshake was measured."""
AFFINITY_CLIENTS: Final = 16
"""A client may fill at most one of this many parts of ``affinity``, so that it cannot evict all other clients."""
POD_CGROUPS: Final = 3
QOS_CLASSES: Final = ("burstable", "besteffort")
"""QoS classes that have a cgroup between that of all pods and those of their pods; the third class has none."""
HZ: Final = round(1 / time.clock_getres(CLOCK_MONOTONIC_COARSE))
"""Jiffies in a second: the coarse clocks move with the tick."""
FAMILIES: Final = ("IPv4", "IPv6")
"""Families in the order of ``resolvers``."""

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
    reserved="I",
    pods=f"{8 * POD_CGROUPS}s",
    resolvers=f"{RESOLVER.size * len(FAMILIES)}s",
)
EXEMPT, EXEMPT_CALLS = ID.pack(1), ID.pack(2)
"""Values of ``exempt``: configured cgroups, and pods that are left alone, whose questions for names are answered."""
ALIVE = Shape("alive", deadline="Q", tied="I", flags="I")


def pod_cgroups(cgroup: Path) -> bytes:
    """Ids of the cgroup of all pods and of its QoS classes, below which the kernel finds a pod's cgroup.

    Raises DatapathError if one cannot be read.
    """
    ids = [cgroup_id(str(cgroup), field="cgroup")]
    _, names, _ = next(os.walk(cgroup), ("", [], []))
    classes = {name.removesuffix(".slice").rpartition("-")[2]: name for name in names}
    ids += [cgroup_id(str(cgroup / classes[name]), field="cgroup") for name in QOS_CLASSES if name in classes]
    return b"".join(map(CGROUP.pack, ids))


def settings(
    section: DatapathSection,
    dns: DnsSection,
    *,
    pods: bytes = b"",
    before: bytes = bytes(CONFIG.size),
    exempt: bool = False,
) -> bytes:
    """The value of ``config``. Raises DatapathError with the name of a wrong field.

    ``pods`` is the result of :func:`pod_cgroups`, ``before`` the current value. Maps keep their epoch for good; new
    maps, whose value is all zeros, get a random one. ``exempt``: the map of that name has entries.
    """
    flags = CONFIG_OBSERVE | (CONFIG_EXEMPT if exempt else 0)
    flags |= CONFIG_RESCUE if section.rescue == "auto" else 0
    queried = _by_family(dns.cluster_dns, "dns.cluster_dns")
    servers = _by_family(dns.listen, "dns.listen")
    for family, asked in queried.items():
        if family not in servers:
            raise DatapathError(f"dns.listen has no {family} address, which dns.cluster_dns has: {asked}")
    resolvers = b"".join(_resolver(queried.get(family), servers.get(family)) for family in FAMILIES)
    cells = max(1, section.max_entries // AFFINITY_CLIENTS)
    flags |= CONFIG_MEASURED if section.syn_timeout == "auto" else 0
    timeout = min(round((SYN_TIMEOUT if section.syn_timeout == "auto" else section.syn_timeout) * HZ), 0xFFFF)
    flows = 0 if section.flows == "off" else section.flows
    epoch = CONFIG.named(before)["epoch"] or random.randint(1, 0xFFFF_FFFF)
    return CONFIG.encode(
        layout=manifest.LAYOUT,
        flags=flags,
        affinity_cells=cells,
        syn_timeout=timeout,
        hz=HZ,
        flows=flows,
        epoch=epoch,
        reserved=0,
        pods=pods,
        resolvers=resolvers,
    )


def with_exempt(value: bytes, exempt: bool) -> bytes:
    """The value of ``config`` with the flag that ``exempt`` has entries."""
    layout, flags, *others = CONFIG.unpack(value)
    return CONFIG.pack(layout, flags | CONFIG_EXEMPT if exempt else flags & ~CONFIG_EXEMPT, *others)


def servers(dns: DnsSection) -> frozenset[Target]:
    """The addresses of the node's name server, by UDP."""
    listening = _by_family(dns.listen, "dns.listen").values()
    return frozenset(Target(each.host, each.port, "UDP", ClusterName("")) for each in listening)


def _by_family(texts: Iterable[str], field: str) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    for text in texts:
        try:
            parsed = endpoint(text, port=53)
            address(parsed.host)
        except (OSError, ValueError):
            raise DatapathError(f"{field} = '{text}': want an address, or address:port") from None
        if parsed.family in endpoints:
            raise DatapathError(f"{field} has two {parsed.family} addresses: {endpoints[parsed.family]} and {parsed}")
        endpoints[parsed.family] = parsed
    return endpoints


def _resolver(asked: Endpoint | None, server: Endpoint | None) -> bytes:
    if asked is None or server is None:
        return bytes(RESOLVER.size)
    hosts = (address(each.host) for each in (asked, server))
    return RESOLVER.pack(*hosts, *(port(each.port) for each in (asked, server)))


def _show_config(_: Names, __: bytes, value: bytes) -> Row:
    raw = CONFIG.named(value)
    packed, size = raw["resolvers"], RESOLVER.size
    every = [RESOLVER.named(packed[start : start + size]) for start in range(0, len(packed), size)]
    used = [each for each in every if any(each["dns_port"])]
    dns = ", ".join(host_port(each["dns"], each["dns_port"]) for each in used)
    server = ", ".join(host_port(each["server"], each["server_port"]) for each in used)
    return {"layout": raw["layout"], "dns": dns or "off", **({"server": server} if used else {})}


def _show_exempt(_: Names, key: bytes, value: bytes) -> Row:
    return {"cgroup": CGROUP.unpack(key)[0], "exempt": "calls" if value == EXEMPT_CALLS else "all"}


def _show_alive(_: Names, key: bytes, value: bytes) -> Row:
    return {"server": ("dns", "dns-second")[ID.unpack(key)[0]], "deadline": ALIVE.unpack(value)[0]}


MAPS: Final = (
    Map(name="exempt", key=CGROUP, writer="agent", show=per_entry(_show_exempt)),
    Map(name="config", value=CONFIG, parts=(RESOLVER,), writer="agent", show=per_entry(_show_config)),
    Map(name="alive", value=ALIVE, writer="dns", carried=True, show=per_entry(_show_alive)),
    Map(name="sockets", writer="dns", carried=True, opaque=True),
)
