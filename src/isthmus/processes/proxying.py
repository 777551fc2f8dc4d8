"""Envoy in the processes: the agent's derived tables, discovery service and Envoy's bootstrap; the operator's status of
routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from isthmus import bounds, kube, logs, metrics, proxy
from isthmus.config import Config
from isthmus.gateway import checks, exports, islands, listeners, pods
from isthmus.gateway.listeners import NodeSettings
from isthmus.gateway.secrets import Identity, Secrets
from isthmus.loadbalancer import claims
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.model.sources import PROXY
from isthmus.processes.start import CannotStart
from isthmus.proxy import backend_tls_objects, refusals, route_objects
from isthmus.proxy.bootstrap import NO_RUNTIME
from isthmus.proxy.tracing import RUNTIME, Tracing
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Database, Derivation, Derived, Initializer, Reconciler, Snapshot

TABLES: Final = (tables.XDS_REFUSED, tables.XDS_SERVED, tables.ENVOY_CHECKS)
"""Tables that the discovery service and the prober write; the derived ones are declared where they are computed."""
SOURCES: Final = ("routes", "backend_tls")
REPORTED: Final = (tables.ROUTE_REFUSALS, tables.ROUTE_REFUSALS_STATUS)
"""An agent's reports of what its Envoy refused, for the operator."""
SETTLED: Final = 3.0
"""Seconds between a refusal, or its end, and the report: a listener that is tried again is refused again at once."""
UNWANTED_AFTER: Final = 10.0
"""Seconds without a listener after which Envoy is stopped: replacing a route must not stop it."""
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
    listening = proxy.Listening(section.listen, section.first_port, section.ports, section.health_port)
    calls = calling(config)
    tables_of_node = proxy.derived(
        ClusterName(config.cluster.name),
        config.node.name,
        listening,
        islands.xds(calls) if calls is not None else None,
        tracing=tracing(config, "node", config.node.name),
    )
    return tables_of_node if calls is None else [*tables_of_node, pods.pods_derived(calls), listeners.derived(calls)]


def status_sources(config: Config) -> tuple[str, ...]:
    """Tables that the API server fills for the status of routes: those of routes, and what nodes report."""
    return (*SOURCES, tables.ROUTE_REFUSALS.name) if config.proxy.directory else ()


def calling(config: Config) -> NodeSettings | None:
    """Return the settings of calls to other islands; ``None`` if this node makes none."""
    section, listening = config.gateway, config.proxy
    if not listening.directory or not section.identity:
        return None
    return NodeSettings(
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
        tracing=tracing(config, "node", config.node.name),
        accounts=config.identity.enabled,
    )


def tracing(config: Config, role: Literal["node", "gateway"], name: str) -> Tracing | None:
    """Return the traces of this process's Envoy; ``None`` if there are none. ``name``: its node or pod."""
    section = config.tracing
    if not section.collector:
        return None
    host, _, number = section.collector.rpartition(":")
    try:
        port = bounds.port(number)
    except bounds.OutOfBounds as error:
        raise CannotStart(f"tracing.collector = {section.collector}: {error}") from None
    cluster = ClusterName(config.cluster.name)
    return Tracing(host.strip("[]"), port, section.share, section.follow_callers, role, cluster, name)


def bootstrap_file(config: Config) -> proxy.BootstrapFile:
    """Return the file that requests this process's Envoy."""
    runtime = RUNTIME if config.tracing.collector else NO_RUNTIME
    return proxy.BootstrapFile(Path(config.proxy.directory), runtime=runtime)


def secrets(db: Database, config: Config, role: Literal["node", "gateway"]) -> Secrets:
    """The certificate of this process's Envoy, and the authorities that it trusts: those of members not distrusted."""
    folder, section = Path(config.gateway.identity), config.gateway
    return Secrets(
        db,
        Path(config.proxy.directory),
        apart=islands.trusted_apart
        if role == "node"
        else partial(exports.trusted_apart, policies=config.identity.enabled),
        identity=Identity(folder / f"{role}.crt", folder / f"{role}.key"),
        trust=Path(section.trust or config.clusterset.directory),
        domain=section.domain,
        distrusted=lambda: [row.cluster for row in db.snapshot().all(tables.PEER_POLICIES) if row.distrusted],
    )


def statuses(config: Config) -> list[Derivation]:
    """Return the operator's tables of routes; none without an Envoy, since a status claims that one follows them."""
    return [*route_objects.derived(), backend_tls_objects.derived()] if config.proxy.directory else []


class Calling(Struct, frozen=True):
    """Status of this node's calls to gateways of islands."""

    domain: str
    """Domain of the clusterset in SNIs and certificates."""
    certificate_ends: datetime | None
    problem: str
    """Reason why its certificate cannot be used; empty if it can."""
    members: tuple[ClusterName, ...]
    """Clusters whose gateways are accepted."""


def node_secrets(db: Database, config: Config) -> Secrets | None:
    """Return the secrets for calls to islands; ``None`` if this node makes none."""
    return secrets(db, config, "node") if calling(config) is not None else None


def calling_status(config: Config, secrets: Secrets | None) -> Calling | None:
    """The part of ``isthmus status`` of an agent; None where it calls no islands."""
    if secrets is None:
        return None
    return Calling(config.gateway.domain, secrets.identity.ends, secrets.identity.problem, secrets.members)


class Serving:
    """Serves the resources of a node's Envoy once they are complete, and has an Envoy while there is a listener.

    Resources that depend on what Envoy already serves (calls into islands) are not waited for.
    """

    def __init__(self, db: Database, config: Config, node: Secrets | None) -> None:
        directory = Path(config.proxy.directory)
        self._db = db
        self._config = config
        self._node = node
        self._directory = directory
        self._served = db.initializer(tables.XDS_SERVED, PROXY)
        self._wanted = bootstrap_file(config)
        self._server = proxy.AdsServer(db, self._wanted.ads)

    def __repr__(self) -> str:
        return f"<Serving {self._server!r}>"

    async def run(self) -> None:
        """Serve, for ever."""
        db, config, node = self._db, self._config, self._node
        if node is not None:
            node.renew()  # before anything is served: the gateways of islands follow from its files
        try:
            async with asyncio.timeout(config.sync.timeout):
                await db.until(lambda now: now.pending(tables.XDS) <= {PROXY})
        except TimeoutError:
            log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.XDS)))
        async with Tasks() as tasks:
            if node is not None:
                tasks.start("secrets", node.run)
                tasks.start("gateways", partial(checks.follow, db, self._directory))
            tasks.start("ads", self._server.run)
            tasks.start("envoy probes", prober(db, config).run)
            tasks.start("wanted", partial(keep_wanted, db, self._wanted, config.node.name))
            tasks.start("reconnection", self._await_reconnection, ends=True)

    async def _await_reconnection(self) -> None:
        """Give an Envoy that outlived the last agent time to connect; then what is served is known."""
        try:
            async with asyncio.timeout(RECONNECT):
                await self._db.until(
                    lambda now: (
                        {row.name for row in now.by(tables.XDS, "type", "listener")}
                        <= {row.name for row in now.all(tables.XDS_SERVED)}
                    )
                )
        except TimeoutError:
            pass
        with self._db.write() as txn:
            self._served.complete(txn)


def prober(db: Database, config: Config) -> proxy.Prober:
    """The probes of the node's Envoy."""
    section = config.proxy
    return proxy.Prober(db, section.listen, section.health_port, workers=section.concurrency)


def families(prefix: str, snapshot: Snapshot) -> Iterator[Metric]:
    """The gauge of the node's Envoy: 1 while it answers. No metric while it is not probed."""
    for row in snapshot.all(tables.ENVOY_CHECKS):
        yield metrics.ENVOY_ANSWERS.value(prefix, row.healthy)


async def keep_wanted(db: Database, bootstrap: proxy.BootstrapFile, node: str) -> None:
    """Have an Envoy while there is a listener, for ever."""
    while True:
        if db.snapshot().by(tables.XDS, "type", "listener"):
            bootstrap.write(node)
            await db.until(lambda now: not now.by(tables.XDS, "type", "listener"))
        try:
            async with asyncio.timeout(UNWANTED_AFTER):
                await db.until(lambda now: bool(now.by(tables.XDS, "type", "listener")))
        except TimeoutError:
            bootstrap.remove()
            await db.until(lambda now: bool(now.by(tables.XDS, "type", "listener")))


class Reporting:
    """Reports what this node's Envoy refuses of routes; an earlier report stays until that is known."""

    def __init__(self, db: Database, client: kube.Client, node: str) -> None:
        self._db = db
        self._node = node
        self._known = db.initializer(tables.ROUTE_REFUSALS, PROXY)
        target = refusals.ReportTarget(client, node)
        status, backoff = tables.ROUTE_REFUSALS_STATUS, Backoff(0.5, 60.0)
        self._reconciler = Reconciler(db, tables.ROUTE_REFUSALS, target, status=status, backoff=backoff)

    def __repr__(self) -> str:
        return f"<Reporting by {self._reconciler!r}>"

    async def run(self) -> None:
        """Report, for ever."""
        async with Tasks() as tasks:
            tasks.start("write", self._reconciler.run)
            tasks.start("refusals", partial(follow_refusals, self._db, self._node, self._known))


async def follow_refusals(db: Database, node: str, initializer: Initializer) -> None:
    """Keep the row of the report, complete once an Envoy that outlived the last agent had time to answer."""
    await db.until(lambda now: now.initialized(tables.XDS_SERVED))
    changes = [db.changes(table) for table in (tables.XDS_REFUSED, tables.PROXY_LISTENERS, tables.ROUTE_PARTS)]
    while True:
        await asyncio.sleep(SETTLED)
        for each in changes:
            snapshot, _ = each.next()
        row = refusals.compute(snapshot, node)
        before = snapshot.get(tables.ROUTE_REFUSALS, node)
        with db.write() as txn:
            if row is None and before is not None:
                txn.delete(tables.ROUTE_REFUSALS, node)
            elif row is not None and row != before:
                txn.put(tables.ROUTE_REFUSALS, row)
            initializer.complete(txn)
        del snapshot
        await db.until(lambda now: any(each.ready for each in changes))
