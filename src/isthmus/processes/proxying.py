"""Envoy in the processes: the agent's derived tables, discovery service, and whether an Envoy is wanted; the operator's
status of routes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from isthmus import logs, proxy
from isthmus.config import Config
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.proxy import route_objects
from isthmus.statedb import Database, Derivation, Derived

TABLES: Final = (tables.XDS_REFUSED, tables.XDS_SERVED)
"""Tables that the discovery service writes; the derived ones are declared where they are computed."""
SOURCES: Final = ("routes", "grants")
UNWANTED_AFTER: Final = 10.0
"""Seconds without a listener after which no Envoy is wanted: a route that is replaced must not end it."""
RECONNECT: Final = 3.0
"""Seconds in which an Envoy that outlived the last agent connects again; its plans are left as they are until then."""

log = logs.get("proxy")


def sources(config: Config) -> tuple[str, ...]:
    """Tables that the API server fills for routes; none on a node without Envoy."""
    return SOURCES if config.proxy.directory else ()


def derived(config: Config) -> list[Derived[Any]]:
    """The derived tables; none on a node without Envoy, where routes do nothing."""
    section = config.proxy
    if not section.directory:
        return []
    listening = proxy.Listening(section.listen, section.first_port, section.ports)
    return proxy.derived(ClusterName(config.cluster.name), config.node.name, listening)


def statuses(config: Config) -> list[Derivation]:
    """What the operator derives of routes; nothing where no Envoy follows them: a status would claim that one does."""
    return [route_objects.derived()] if config.proxy.directory else []


async def run(db: Database, config: Config) -> None:
    """Serve the resources once they are complete, and have an Envoy while there is a listener."""
    served = db.initializer(tables.XDS_SERVED, "envoy")
    wanted = proxy.Wanted(Path(config.proxy.directory))
    server = proxy.AdsServer(db, wanted.ads)
    try:
        async with asyncio.timeout(config.sync.timeout):
            await db.until(lambda now: now.initialized(tables.XDS))
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.XDS)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run(), name="ads")
        tasks.create_task(_want(db, wanted, config.node.name), name="wanted")
        try:
            async with asyncio.timeout(RECONNECT):
                await db.until(
                    lambda now: (
                        {row.name for row in now.by(tables.XDS, "type", "listener")}
                        <= {row.name for row in now.all(tables.XDS_SERVED)}
                    )
                )
        except TimeoutError:
            pass
        with db.write() as txn:
            served.complete(txn)


async def _want(db: Database, wanted: proxy.Wanted, node: str) -> None:
    while True:
        if db.snapshot().by(tables.XDS, "type", "listener"):
            wanted.write(node)
            await db.until(lambda now: not now.by(tables.XDS, "type", "listener"))
        try:
            async with asyncio.timeout(UNWANTED_AFTER):
                await db.until(lambda now: bool(now.by(tables.XDS, "type", "listener")))
        except TimeoutError:
            wanted.remove()
            await db.until(lambda now: bool(now.by(tables.XDS, "type", "listener")))
