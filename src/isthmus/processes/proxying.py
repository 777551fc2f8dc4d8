"""Envoy in the processes: the agent's derived tables, discovery service, and whether an Envoy is wanted; the operator's
status of routes.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from isthmus import kube, logs, proxy
from isthmus.config import Config
from isthmus.gateway import checks, exports, islands, pods
from isthmus.gateway.islands import NodeOf
from isthmus.gateway.secrets import Identity, Secrets
from isthmus.loadbalancer import claims
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.model.sources import PROXY
from isthmus.proxy import refusals, route_objects
from isthmus.statedb import Backoff, Database, Derivation, Derived, Initializer, Reconciler

TABLES: Final = (tables.XDS_REFUSED, tables.XDS_SERVED)
"""Tables that the discovery service writes; the derived ones are declared where they are computed."""
SOURCES: Final = ("routes", "grants")
REPORTED: Final = (tables.ROUTE_REFUSALS, tables.ROUTE_REFUSALS_STATUS)
"""Of an agent: what its Envoy refused, for the operator."""
SETTLED: Final = 3.0
"""Seconds between a refusal, or its end, and the report: a listener that is tried again is refused again at once."""
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
    of = calling(config)
    found = proxy.derived(
        ClusterName(config.cluster.name), config.node.name, listening, islands.xds(of) if of is not None else None
    )
    return found if of is None else [*found, pods.pods_derived(of), islands.listeners_derived(of)]


def status_sources(config: Config) -> tuple[str, ...]:
    """Tables that the API server fills for the status of routes: those of routes, and what nodes report."""
    return (*SOURCES, tables.ROUTE_REFUSALS.name) if config.proxy.directory else ()


def calling(config: Config) -> NodeOf | None:
    """How this node calls other islands; None: it does not."""
    section, listening = config.gateway, config.proxy
    if not listening.directory or not section.identity:
        return None
    return NodeOf(
        ClusterName(config.cluster.name),
        section.domain,
        Path(listening.directory),
        listening.listen,
        section.first_port,
        section.ports,
        section.connect_timeout,
        section.pod_ports,
        claims.networks("gateway.pod_addresses", section.pod_addresses),
        preconnect=section.preconnect,
    )


def secrets(db: Database, config: Config, role: Literal["node", "gateway"]) -> Secrets:
    """The certificate of this process's Envoy, and the authorities that it trusts: those of members not distrusted."""
    folder, section = Path(config.gateway.identity), config.gateway
    return Secrets(
        db,
        Path(config.proxy.directory),
        apart=islands.trusted_apart if role == "node" else exports.trusted_apart,
        identity=Identity(folder / f"{role}.crt", folder / f"{role}.key"),
        trust=Path(section.trust or config.clusterset.directory),
        domain=section.domain,
        distrusted=lambda: [row.cluster for row in db.snapshot().all(tables.PEER_POLICIES) if row.distrusted],
    )


def statuses(config: Config) -> list[Derivation]:
    """What the operator derives of routes; nothing where no Envoy follows them: a status would claim that one does."""
    return [route_objects.derived()] if config.proxy.directory else []


class Calling(Struct, frozen=True):
    """How this node calls gateways of islands."""

    domain: str
    """Of the clusterset, in SNIs and certificates."""
    certificate_ends: datetime | None
    problem: str
    """Why its certificate is of no use now; empty: it is."""
    members: tuple[ClusterName, ...]
    """Clusters whose gateways are accepted."""


def node_secrets(db: Database, config: Config) -> Secrets | None:
    """What this node calls islands with; None: it does not."""
    return secrets(db, config, "node") if calling(config) is not None else None


def calling_status(config: Config, found: Secrets | None) -> Calling | None:
    """The part of ``isthmus status`` of an agent; None where it calls no islands."""
    if found is None:
        return None
    return Calling(config.gateway.domain, found.identity.ends, found.identity.problem, found.members)


async def run(db: Database, config: Config, node: Secrets | None) -> None:
    """Serve the resources once they are complete, and have an Envoy while there is a listener.

    Some of them follow from what Envoy serves (calls into islands): that is not waited for, since it comes after.
    """
    served = db.initializer(tables.XDS_SERVED, PROXY)
    if node is not None:
        node.renew()  # before anything is served: the gateways of islands follow from its files
    wanted = proxy.Wanted(Path(config.proxy.directory))
    server = proxy.AdsServer(db, wanted.ads)
    try:
        async with asyncio.timeout(config.sync.timeout):
            await db.until(lambda now: now.pending(tables.XDS) <= {PROXY})
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.XDS)))
    async with asyncio.TaskGroup() as tasks:
        if node is not None:
            tasks.create_task(node.run(), name="secrets")
            tasks.create_task(checks.follow(db, Path(config.proxy.directory)), name="gateways")
        tasks.create_task(server.run(), name="ads")
        tasks.create_task(keep_wanted(db, wanted, config.node.name), name="wanted")
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


async def keep_wanted(db: Database, wanted: proxy.Wanted, node: str) -> None:
    """Have an Envoy while there is a listener, for ever."""
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


async def report(db: Database, client: kube.Client, node: str) -> None:
    """Report what this node's Envoy refuses of routes, for ever; an earlier report stays until that is known."""
    known = db.initializer(tables.ROUTE_REFUSALS, PROXY)
    target = refusals.ReportTarget(client, node)
    status, backoff = tables.ROUTE_REFUSALS_STATUS, Backoff(0.5, 60.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Reconciler(db, tables.ROUTE_REFUSALS, target, status=status, backoff=backoff).run())
        tasks.create_task(follow_refusals(db, node, known))


async def follow_refusals(db: Database, node: str, known: Initializer) -> None:
    """Keep the row of the report, complete once an Envoy that outlived the last agent had time to answer."""
    await db.until(lambda now: now.initialized(tables.XDS_SERVED))
    changes = db.changes(tables.XDS_REFUSED)
    while True:
        await asyncio.sleep(SETTLED)
        snapshot, _ = changes.next()
        row = refusals.compute(snapshot, node)
        before = snapshot.get(tables.ROUTE_REFUSALS, node)
        with db.write() as txn:
            if row is None and before is not None:
                txn.delete(tables.ROUTE_REFUSALS, node)
            elif row is not None and row != before:
                txn.put(tables.ROUTE_REFUSALS, row)
            known.complete(txn)
        del snapshot
        await changes.wait()
