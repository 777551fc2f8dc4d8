"""Reads the verdicts of a node's Envoy on islands' gateways, from its checks and failed connects, as rows.

Envoy alone chooses the gateway of a connection. Plans use the rows so that an island without an answering gateway gets
no calls, and people read them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from math import ceil, log2
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from isthmus import logs
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
"""Seconds between reads of Envoy's verdicts."""
MEASURE_EVERY: Final = 5.0
"""Seconds between measurements of round trips, for which the kernel walks through all sockets of the node."""
FIRST_MEASURED: Final = 15.0
"""Seconds during which a gateway that fails its first checks is measured at every read: a distant one fails them until
its round trip is known, and its connections, from which that is measured, are short-lived."""
SHORTEST: Final = 1 / 16
"""Shortest round trip in seconds; shorter ones are rounded up to it."""

log = logs.get("gateways")


async def follow(db: Database, directory: Path) -> None:
    """Update the table from the Envoy of a directory until cancelled. It is left unchanged while no Envoy answers."""
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
    """True if a gateway began to fail its checks recently and its round trip is unknown."""
    checks = rows.all(GATEWAY_CHECKS)
    return any(not (row.healthy or row.round_trip) and now - row.since < FIRST_MEASURED for row in checks)


def _has_islands(now: Snapshot) -> bool:
    return now.count(ISLAND_LISTENERS) > 0 or now.count(GATEWAY_CHECKS) > 0


async def _hosts(directory: Path) -> list[Host] | None:
    """Return the gateways of the latest Envoy that answers; ``None`` if none does."""
    for admin in admins(directory):
        hosts = await admin.hosts(f"^{UNIT.strip()}")
        if hosts is not None:
            return hosts
    return None


def _round_trips(hosts: Iterable[Host]) -> dict[str, float]:
    """Measure the round trip to each gateway on Envoy's connections; its checks keep one open in this namespace."""
    endpoints = {host.address: endpoint(host.address, port=0) for host in hosts if host.cluster.startswith(UNIT)}
    round_trips = {port: sock_diag.tcp_round_trips(port) for port in {each.port for each in endpoints.values()}}
    return {address: round_trips[each.port].get(each.host, 0.0) for address, each in endpoints.items()}


def rounded(round_trip: float) -> float:
    """Round up to a power of two of SHORTEST; 0 stays 0."""
    return SHORTEST * 2 ** max(0, ceil(log2(round_trip / SHORTEST))) if round_trip else 0.0


def _after(previous: GatewayCheck | None, result: GatewayCheck) -> GatewayCheck:
    """Merge a new check result into a gateway's row.

    A longer round trip is accepted only if connects or checks fail: otherwise a machine was merely stalled.
    """
    if previous is None:
        return result
    measured, trip = previous.round_trip, result.round_trip
    if not trip or (measured and trip >= measured and result.healthy):
        result = replace(result, round_trip=measured)
    same = (previous.healthy, previous.reason) == (result.healthy, result.reason)
    return replace(result, since=previous.since) if same else result


def record(db: Database, hosts: Iterable[Host], *, now: float, round_trips: Mapping[str, float] | None = None) -> None:
    """Write the rows that differ, one for each gateway that Envoy has.

    ``round_trips``: seconds by address.
    """
    with db.write() as txn:
        rows = {}
        for host in hosts:
            if row := _check(host, txn.get(CLUSTERS, _island(host)), now):
                round_trip = rounded((round_trips or {}).get(host.address, 0.0))
                key = GATEWAY_CHECKS.key(row)
                rows[key] = _after(txn.get(GATEWAY_CHECKS, key), replace(row, round_trip=round_trip))
        for key in [key for row in txn.all(GATEWAY_CHECKS) if (key := GATEWAY_CHECKS.key(row)) not in rows]:
            txn.delete(GATEWAY_CHECKS, key)
        for key, row in rows.items():
            if row != txn.get(GATEWAY_CHECKS, key):
                txn.put(GATEWAY_CHECKS, row)
                log.debug(
                    "gateway checked",
                    cluster=row.cluster,
                    address=row.address,
                    healthy=row.healthy,
                    reason=row.reason,
                    round_trip=row.round_trip,
                )


def _island(host: Host) -> ClusterName:
    return ClusterName(host.cluster.removeprefix(UNIT))


def _check(host: Host, island: Cluster | None, now: float) -> GatewayCheck | None:
    """Return the row of a gateway; ``None`` if the host belongs to no island."""
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
