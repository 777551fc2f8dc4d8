"""What a node's Envoy finds of the gateways of islands, as rows: its checks, and connects that failed.

Envoy decides alone which gateway a connection goes to. The rows are for the plans, so that an island without a gateway
that answers has no part of the calls, and for people.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from math import ceil, log2
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from isthmus.gateway.alternatives import UNIT
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import endpoint
from isthmus.model.islands import GatewayCheck
from isthmus.model.names import ClusterName
from isthmus.model.tables import CLUSTERS, GATEWAY_CHECKS, ISLAND_LISTENERS
from isthmus.netlink import sock_diag
from isthmus.proxy.process import Host, admins
from isthmus.statedb import Database, Snapshot

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at Envoy's verdicts."""
MEASURE_EVERY: Final = 5.0
"""Seconds between two looks at round trips: for one the kernel walks through all sockets of the node."""
FIRST_MEASURED: Final = 15.0
"""Seconds in which a gateway that fails its first checks is looked at each time: a far one fails them until its round
trip is known, and its connections, which have that, are there for moments only."""
SHORTEST: Final = 1 / 16
"""Seconds of the shortest round trip that differs from none: shorter ones count as this."""


async def follow(db: Database, directory: Path) -> None:
    """Keep the table as the Envoy of a directory has it, for ever; while none answers, as it was."""
    measured, round_trips = -MEASURE_EVERY, dict[str, float]()
    while True:
        await db.until(_has_islands)
        hosts = await _hosts(directory)
        if hosts is not None:
            if time.monotonic() - measured >= MEASURE_EVERY or unmeasured(db.snapshot(), now=time.time()):
                measured, round_trips = time.monotonic(), _round_trips(hosts)
            record(db, hosts, now=time.time(), round_trips=round_trips)
        await asyncio.sleep(LOOK_EVERY)


def unmeasured(rows: Snapshot, *, now: float) -> bool:
    """Whether a gateway has failed its checks for a short time, and its round trip is not known."""
    checks = rows.all(GATEWAY_CHECKS)
    return any(not (row.healthy or row.round_trip) and now - row.since < FIRST_MEASURED for row in checks)


def _has_islands(now: Snapshot) -> bool:
    return now.count(ISLAND_LISTENERS) > 0 or now.count(GATEWAY_CHECKS) > 0


async def _hosts(directory: Path) -> list[Host] | None:
    """Of the Envoy that started last, and answers."""
    for admin in admins(directory):
        found = await admin.hosts(f"^{UNIT.strip()}")
        if found is not None:
            return found
    return None


def _round_trips(hosts: Iterable[Host]) -> dict[str, float]:
    """By gateway, as Envoy's connections to it have it: its check holds one, in this network namespace."""
    at = {host.address: endpoint(host.address, port=0) for host in hosts if host.cluster.startswith(UNIT)}
    found = {port: sock_diag.tcp_round_trips(port) for port in {each.port for each in at.values()}}
    return {address: found[each.port].get(each.host, 0.0) for address, each in at.items()}


def rounded(round_trip: float) -> float:
    """Up to a power of two of the shortest; 0 stays."""
    return SHORTEST * 2 ** max(0, ceil(log2(round_trip / SHORTEST))) if round_trip else 0.0


def _after(before: GatewayCheck | None, found: GatewayCheck) -> GatewayCheck:
    """What is known of a gateway with what was found of it now.

    A round trip that looks longer is one only where connects or checks fail by it: else a machine stood still.
    """
    if before is None:
        return found
    known, trip = before.round_trip, found.round_trip
    if not trip or (known and trip >= known and found.healthy):
        found = replace(found, round_trip=known)
    same = (before.healthy, before.reason) == (found.healthy, found.reason)
    return replace(found, since=before.since) if same else found


def record(db: Database, hosts: Iterable[Host], *, now: float, round_trips: Mapping[str, float] | None = None) -> None:
    """Write what differs from the table: one row for each gateway that Envoy knows.

    ``round_trips``: in s, by address.
    """
    with db.write() as txn:
        wanted = {}
        for host in hosts:
            if row := _check(host, txn.get(CLUSTERS, _island(host)), now):
                found = rounded((round_trips or {}).get(host.address, 0.0))
                key = GATEWAY_CHECKS.key(row)
                wanted[key] = _after(txn.get(GATEWAY_CHECKS, key), replace(row, round_trip=found))
        for key in [key for row in txn.all(GATEWAY_CHECKS) if (key := GATEWAY_CHECKS.key(row)) not in wanted]:
            txn.delete(GATEWAY_CHECKS, key)
        for key, row in wanted.items():
            if row != txn.get(GATEWAY_CHECKS, key):
                txn.put(GATEWAY_CHECKS, row)


def _island(host: Host) -> ClusterName:
    return ClusterName(host.cluster.removeprefix(UNIT))


def _check(host: Host, island: Cluster | None, now: float) -> GatewayCheck | None:
    """None for what is of no island."""
    if island is None or not host.cluster.startswith(UNIT):
        return None
    reason = ""
    if host.health.pending_active_hc:
        reason = "its first check is not done"
    elif host.health.failed_active_health_check:
        reason = "its checks fail"
    elif host.health.failed_outlier_check:
        reason = "connects to it fail"
    return GatewayCheck(cluster=island.name, address=host.address, healthy=not reason, reason=reason, since=now)
