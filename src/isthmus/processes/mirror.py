"""The mirror, one per cluster and optional: peers' records copied into the own etcd, where agents read them.

Any number may run: one mirrors, the others stand by without tables, and are ready, namely to take over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from isthmus.admin import Server, metrics
from isthmus.admin.monitor import Monitor
from isthmus.clusterset.mirror import Mirror
from isthmus.config import Config
from isthmus.processes.start import own_etcd, require, start
from isthmus.statedb import Database

PREFIX = "isthmus_mirror"


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("mirror", main, config)


async def main(config: Config) -> None:
    """Wire the parts and keep them going."""
    require(
        config,
        cluster__name=config.cluster.name,
        cluster__id=config.cluster.id,
        etcd__endpoints=config.etcd.endpoints,
        clusterset__directory=config.clusterset.directory,
    )

    async def serve(db: Database) -> None:
        """While it is our turn there is something to be seen."""
        if config.admin.socket:
            await Server(db, config.admin.socket, status=lambda: status(mirror), timeout=config.sync.timeout).run()

    async with own_etcd(config.etcd) as session, asyncio.TaskGroup() as tasks:
        mirror = Mirror(session, cluster=config.cluster, section=config.clusterset, beside=serve)
        tasks.create_task(mirror.run(), name="mirror")
        if config.monitor.listen:
            monitor = Monitor(config.monitor.listen, ready=lambda: not_ready(mirror), families=lambda: families(mirror))
            tasks.create_task(monitor.run(), name="monitor")


def not_ready(mirror: Mirror) -> str:
    """Why the mirror is not ready; nothing for one that stands by."""
    if mirror.db is None:
        return "" if mirror.standing_by else mirror.outcome
    snapshot = mirror.db.snapshot()
    pending = sorted({source for table in mirror.db.tables.values() for source in snapshot.pending(table)})
    return f"waiting for {', '.join(pending)}" if pending else ""


def families(mirror: Mirror) -> Iterable[Metric]:
    """Metrics, as of now."""
    leader = GaugeMetricFamily(f"{PREFIX}_leader", "1 where this replica mirrors")
    leader.add_metric([], mirror.db is not None)
    if mirror.db is None:
        return [leader]
    return [leader, *metrics.tables(mirror.db, PREFIX), *metrics.clusters(mirror.db.snapshot(), PREFIX)]


def status(mirror: Mirror) -> dict[str, Any]:
    """What the process has and has not got, for `isthmus status`."""
    return {"mirror": repr(mirror)}
