"""The mirror, one per cluster and optional: peers' records copied into the own etcd, where agents read them.

Any number may run: one mirrors; the others stand by without tables, and are ready to take over.
"""

from __future__ import annotations

import asyncio

from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Mirror
from isthmus.config import Config
from isthmus.processes import observing
from isthmus.processes.start import own_etcd, require, start
from isthmus.statedb import Database

PREFIX = "isthmus_mirror"


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("mirror", main, config)


async def main(config: Config) -> None:
    """Wire the parts and run them."""
    require(
        config,
        cluster__name=config.cluster.name,
        cluster__id=config.cluster.id,
        etcd__endpoints=config.etcd.endpoints,
        clusterset__directory=config.clusterset.directory,
    )

    async def serve(db: Database) -> None:
        """While this replica mirrors, its tables are served."""
        async with asyncio.TaskGroup() as tasks:
            observing.admin(
                tasks, config, db, lambda: MirrorStatus(cluster=config.cluster.name, outcome=mirror.outcome)
            )

    async with own_etcd(config.etcd) as session, asyncio.TaskGroup() as tasks:
        mirror = Mirror(session, cluster=config.cluster, section=config.clusterset, beside=serve)
        tasks.create_task(mirror.run(), name="mirror")
        observing.monitor(
            tasks,
            config,
            ready=lambda: not_ready(mirror),
            families=lambda: observing.families(PREFIX, mirror.db, leads="1 where this replica mirrors"),
        )


class MirrorStatus(ProcessStatus, frozen=True, kw_only=True):
    """The mirror's part of ``isthmus status``."""

    cluster: str
    outcome: str
    """What it does now, or why it does not, as a sentence."""


def not_ready(mirror: Mirror) -> str:
    """Why the mirror is not ready; nothing for one that stands by."""
    if mirror.db is None:
        return "" if mirror.standing_by else mirror.outcome
    snapshot = mirror.db.snapshot()
    return observing.waiting_for({source for table in mirror.db.tables.values() for source in snapshot.pending(table)})
