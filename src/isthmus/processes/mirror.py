"""The mirror, one per cluster and optional: peers' records copied into the own etcd, where agents read them.

Any number may run: one mirrors; the others stand by without tables, and are ready to take over. Where the cluster has
several etcds, each gets copies from a mirror of its own, and the tables of the first that is at work are shown.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from isthmus import kube
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Mirror
from isthmus.config import Config
from isthmus.processes.certificates import OwnCertificates
from isthmus.processes.observing import Shown, View
from isthmus.processes.peer_secret import follow_peers
from isthmus.processes.start import own_etcds, require, start, supervised
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

    async with own_etcds(config.etcd) as etcds, AsyncExitStack() as clients, supervised() as tasks:
        shown = Shown(tasks, config, PREFIX, leader=True)
        if config.clusterset.secret:
            client = await clients.enter_async_context(await kube.connect(config.kubernetes))
            await follow_peers(config, client, tasks, shown)
        certificates = OwnCertificates(config)

        def view(**more: Any) -> View:
            return View(
                status=lambda: MirrorStatus(
                    standing_by=outcome() if all(each.standing_by for each in mirrors.values()) else "",
                    cluster=config.cluster.name,
                    outcome=outcome(),
                ),
                problems=lambda: [*problems(), *certificates.problems()],
                imminent=certificates.imminent,
                warnings=lambda: [*warnings(), *certificates.warnings()],
                families=lambda: certificates.families(PREFIX),
                list_timeout=config.sync.timeout,
                **more,
            )

        def outcome() -> str:
            return "; ".join(dict.fromkeys(each.outcome for each in mirrors.values()))

        def failing() -> dict[str, str]:
            return {name: each.problem for name, each in mirrors.items() if each.problem}

        def problems() -> list[str]:
            return [*failing().values()] if len(failing()) == len(mirrors) else []

        def warnings() -> list[str]:
            if problems():
                return []
            return [f"etcd {name} gets no copies, others do: {why}" for name, why in failing().items()]

        def show(*_: Database) -> None:
            """Show the tables of the first mirror that is at work."""
            if (db := next((each.db for each in mirrors.values() if each.db is not None), None)) is None:
                shown.hide()
            else:
                shown.show(view(db=db, awaited=partial(awaited, db)))

        mirrors = {
            name: Mirror(
                session,
                cluster=config.cluster,
                section=config.clusterset,
                began=show,
                ended=show,
                identities=config.identity.enabled,
            )
            for name, session in etcds.items()
        }
        shown.idle(view())
        for name, mirror in mirrors.items():
            tasks.start(f"mirror of {name}", mirror.run)
        tasks.start("certificates", certificates.run)


class MirrorStatus(ProcessStatus, frozen=True, kw_only=True):
    """The mirror's part of ``isthmus status``."""

    cluster: str
    outcome: str
    """Its current activity, or the reason why it has none, as a sentence."""


def awaited(db: Database) -> set[str]:
    """The sources that some table waits for."""
    snapshot = db.snapshot()
    return {source for table in db.tables.values() for source in snapshot.pending(table)}
