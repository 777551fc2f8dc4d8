"""The agent, one per node: rows from the API server and from peers become plans, and plans become map entries.

Its parts meet in tables. Nothing is removed from the maps at its start: where an earlier agent left entries, the first
round waits until the first list of every source is complete, or for ``sync.timeout`` where one does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct
from prometheus_client.metrics_core import Metric

from isthmus import dns, health, kube, loadbalancer, logs
from isthmus.admin.feed import Feed
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Follower, PeerStats
from isthmus.config import Config
from isthmus.datapath import Callers, CallersFirst, Datapath, DatapathError, PodLinks, PodLinksStats
from isthmus.datapath.datapath import DatapathStats
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.datapath.flows.reader import FlowReader, FlowStats
from isthmus.datapath.metrics import calls, records, traffic
from isthmus.datapath.metrics import ejections as ejection_counts
from isthmus.kube.events import Recorder
from isthmus.loadbalancer import claims
from isthmus.loadbalancer.selection import Place
from isthmus.model import tables
from isthmus.model.flows import Flow
from isthmus.model.hosts import endpoint
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import is_peer
from isthmus.processes import draining, ejections, observing, proxying, rescuing
from isthmus.processes.draining import DrainClock
from isthmus.processes.start import CannotStart, identified, require, start, tables_of
from isthmus.reflector import State
from isthmus.sources import kubernetes
from isthmus.sources.files import Files
from isthmus.statedb import (
    Backoff,
    Database,
    Derivations,
    DerivationsStats,
    Reconciler,
    ReconcilerStats,
    Snapshot,
    Table,
)

log = logs.get("agent")

PREFIX = "isthmus_agent"
KUBERNETES = (
    "services", "endpoint_sets", "imports", "namespaces", "nodes", "pods", "local_redirects", "peer_policies",
    "policies", "drains",
)  # fmt: skip

PLANS_PER_ROUND: Final = 256
"""Plans written to the maps before other tasks have their turn: some ms."""
CALLERS_INTERVAL = 2.0
"""Seconds between looks for new pods; a call before that is spread by a hash of this node's own."""

PEERS_PATIENCE: Final = 10.0
"""Seconds after the start for which names wait for every peer: several tries to reach an etcd."""

KINDS: tuple[RecordKind, ...] = ("services",)

FLOWS_OFF: Final = "flows are not recorded here: set datapath.flows = 16 (one call of 16; 1: every one) for the agent"

PROGRAMMING: Final = (tables.NAMES, tables.PODS, tables.PLANS_STATUS, tables.NAMES_STATUS, tables.FAILURES)
"""Tables that :class:`Programming` reads and writes, beside the plans and what they are derived from."""


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("agent", main, config)


async def main(config: Config) -> None:
    """Read the cluster's identity from the API server, then work."""
    require(config, node__name=config.node.name, admin__socket=config.admin.socket)
    async with await kube.connect(config.kubernetes) as client:
        await work(await identified(config, client), client)


async def work(config: Config, client: kube.Client) -> None:
    """Wire the parts and run them."""
    cluster = ClusterName(config.cluster.name)
    patience = dns.PeersPatience()
    derived = [
        *loadbalancer.derived(cluster, config.node.name, services=config.datapath.services, rules=claims.rules(config)),
        *proxying.derived(config),
        dns.derived(config.dns.zone, servers=servers(config), more=more_names(config), awaits=patience),
    ]
    db = Database(
        *tables_of(
            derived,
            tables.CLUSTERS,
            tables.PEER_POLICIES,
            tables.DRAINS,
            *PROGRAMMING,
            *proxying.TABLES,
            *proxying.REPORTED,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        reflectors = kubernetes.reflectors(
            db,
            client,
            tables=(*KUBERNETES, *proxying.sources(config)),
            cluster=cluster,
            node=config.node.name,
            namespace=config.kubernetes.namespace,
        )
        follower = Follower(db, cluster=config.cluster, section=config.clusterset, kinds=KINDS)
        drain_clock = DrainClock(db, cluster, cordoned=config.drains.cordoned_nodes)
        derivations = Derivations(db, *derived)
        flows: Feed[Flow] = Feed(off=flows_off(config))
        programming = Programming(db, config, flows)
        node = proxying.node_secrets(db, config)
        prober = health.Prober(db, config.health, node=config.node.name)
        for reflector in reflectors:
            tasks.create_task(reflector.run(), name=reflector.name)
        if config.sources.files:
            tasks.create_task(Files(db, Path(config.sources.files)).run(), name="files")
        tasks.create_task(follower.run(), name="follower")
        recorder = Recorder(client, component="isthmus-agent", instance=config.node.name)
        tasks.create_task(recorder.run(), name="events")
        tasks.create_task(ejections.record(db, recorder), name="ejections")
        tasks.create_task(drain_clock.run(), name="drains")
        tasks.create_task(derivations.run(), name="derivations")
        tasks.create_task(forgo_peers(db, derivations, patience), name="peers' names")
        if config.health.rate:
            tasks.create_task(prober.run(), name="health")
        if config.proxy.directory:
            tasks.create_task(proxying.run(db, config, node), name="proxy")
            tasks.create_task(proxying.report(db, client, config.node.name), name="refused routes")
        if config.datapath.cgroup:
            tasks.create_task(programming.run(), name="datapath")
        observing.monitor(
            tasks,
            config,
            ready=lambda: observing.waiting_for(db.snapshot().pending(tables.PLANS)) or programming.problem(),
            families=lambda: [*observing.families(PREFIX, db), *programming.families()],
        )
        observing.admin(
            tasks,
            config,
            db,
            lambda: AgentStatus(
                problems=(
                    *filter(None, [programming.problem(), node.identity.problem if node is not None else ""]),
                    *observing.away(reflectors),
                ),
                unhooked=programming.problem(),
                place=Place(cluster, config.node.name),
                services=config.datapath.services,
                drains=draining.sentences(db.snapshot()),
                reflectors=observing.states(reflectors),
                derivations=derivations.stats(),
                peers=follower.stats(),
                health=prober.stats(),
                calling=proxying.calling_status(config, node),
                datapath=programming.stats(),
                translated=config.datapath.substitute or None,
            ),
            feeds={"flows": flows},
        )


def flows_off(config: Config) -> str:
    """Why flows are not recorded here; empty: they are."""
    if config.datapath.substitute:
        return f"flows are not recorded here: calls are translated {config.datapath.substitute}"
    return "" if config.datapath.cgroup and config.datapath.flows != "off" else FLOWS_OFF


def more_names(config: Config) -> dns.More:
    """The names that are there by option; CannotStart where the cluster's domain is needed and not configured."""
    domain = config.dns.cluster_domain.strip(".").lower()
    if config.dns.native_names and not domain:
        raise CannotStart("dns.native_names: wants dns.cluster_domain, in which those names are")
    return dns.More(clusters=config.dns.cluster_names, native=domain if config.dns.native_names else "")


def servers(config: Config) -> tuple[str, ...]:
    """Addresses of the cluster DNS: what pods ask, and so the address of our zone's name server."""
    try:
        return tuple(endpoint(each, port=53).host for each in config.dns.cluster_dns)
    except ValueError as why:
        raise CannotStart(f"dns.cluster_dns = {why}") from None


class NamesStatus(Struct, frozen=True):
    """How names are answered for the node's pods."""

    mode: str
    entries: ReconcilerStats
    interfaces: PodLinksStats
    questions: list[dict[str, Any]]
    """Questions of pods by kind, result and who answers."""


class DatapathStatus(Struct, frozen=True):
    """How plans get into the kernel's maps."""

    hooks: DatapathStats
    plans: ReconcilerStats
    names: NamesStatus
    callers: str
    """Why calls cannot be attributed to a pod; empty: they can."""
    flows: FlowStats | None
    """None where flows are not recorded."""
    rescue: str
    """Where connects to a dead backend are moved to another one, and where they cannot be."""


class AgentStatus(ProcessStatus, frozen=True, kw_only=True):
    """The agent's part of ``isthmus status``; ``datapath`` is None where no cgroup is configured, or not open yet."""

    place: Place
    services: str
    """Which Services are answered: 'multicluster' or 'all'."""
    drains: tuple[str, ...]
    """What takes no new call now, a sentence each."""
    reflectors: dict[str, State]
    derivations: DerivationsStats
    peers: dict[ClusterName, PeerStats]
    health: health.ProberStats
    calling: proxying.Calling | None
    """How gateways of islands are called; None where they are not."""
    datapath: DatapathStatus | None
    translated: str | None
    """What translates calls in place of the kernel; None where nothing is configured to."""
    unhooked: str
    """Why calls are not translated on this node, which is to translate them; empty: they are."""


class Parts(NamedTuple):
    """What programs the kernel, once it runs."""

    datapath: Datapath
    plans: Reconciler[Any, Any]
    names: Reconciler[Any, Any]
    interfaces: PodLinks
    callers: Callers
    failures: FailureWatch
    flows: FlowReader | None


class Programming:
    """The datapath and what programs it, from :meth:`run` to its end; before, there is nothing to report."""

    def __init__(self, db: Database, config: Config, flows: Feed[Flow] | None = None) -> None:
        self._db = db
        self._config = config
        self._feed = flows or Feed(off=FLOWS_OFF)
        self._parts: Parts | None = None

    def stats(self) -> DatapathStatus | None:
        """None before the datapath is open and the plans of an earlier process are taken over."""
        if self._parts is None:
            return None
        parts = self._parts
        names = NamesStatus(
            self._config.dns.mode, parts.names.stats(), parts.interfaces.stats(), parts.datapath.questions()
        )
        flows = parts.flows.stats() if parts.flows else None
        rescue = rescuing.sentence(
            self._config.datapath.rescue, names.interfaces, self._db.snapshot(), node=self._config.node.name
        )
        return DatapathStatus(
            parts.datapath.stats(), parts.plans.stats(), names, parts.callers.condition, flows, rescue
        )

    def families(self) -> list[Metric]:
        """Metrics of calls; none before there are any."""
        if self._parts is None:
            return []
        failures, own = self._parts.failures, self._config.cluster.name
        recorded = self._parts.flows.stats() if self._parts.flows else None
        return [
            calls(self._parts.datapath.counters(), PREFIX, cluster=own),
            traffic(self._parts.datapath.traffic(), PREFIX, cluster=own),
            *([records(recorded.records, recorded.lost, PREFIX)] if recorded else []),
            ejection_counts(failures.counts, PREFIX),
            *ejections.families(PREFIX, self._db.snapshot(), moved=failures.moved),
        ]

    def problem(self) -> str:
        """Why calls are not translated on this node; empty on one without a configured cgroup, which is a choice."""
        if not self._config.datapath.cgroup:
            return ""
        if self._parts is None:
            return "plans are not programmed yet: the maps of an earlier agent wait for the first complete lists"
        hooks = self._parts.datapath.stats()
        return "" if hooks.attached else f"calls are not translated: {hooks.detail}"

    async def run(self) -> None:
        """Program the plans into the kernel's maps, for ever."""
        db, config = self._db, self._config
        try:
            datapath = Datapath.open(config.datapath, config.dns)
        except DatapathError as why:
            raise CannotStart(str(why)) from None
        try:
            target, known = datapath.target(beside=db.growth), datapath.callers()
            if datapath.waiting:
                await complete(db, config.sync.timeout, tables.BACKENDS)
            elif datapath.restored:
                await complete(db, config.sync.timeout)
            plans = Reconciler(
                db,
                tables.PLANS,
                CallersFirst(target, known),
                status=tables.PLANS_STATUS,
                backoff=Backoff(0.2, 30.0),
                together=attrgetter("key.service"),
                max_round=PLANS_PER_ROUND,
            )
            interfaces, failures = datapath.pod_links(), datapath.failures(db)
            if datapath.waiting:
                outcome = await plans.step()
                datapath.take_over()
                failures.step()  # opens the gates over connections that were carried over, which our programs then see
                interfaces.look()
                log.info("took over from another layout of the maps", plans=outcome)
            datapath.repair()
            answers = datapath.names(config.dns, lifetime=config.clusterset.cache_lifetime)
            names = Reconciler(db, tables.NAMES, answers, status=tables.NAMES_STATUS, backoff=Backoff(0.2, 30.0))
            flows = datapath.flows(db, self._feed.add, known, node=config.node.name)
            self._parts = Parts(datapath, plans, names, interfaces, known, failures, flows)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(datapath.keep(), name="hooks")
                tasks.create_task(plans.run(), name="plans")
                tasks.create_task(target.sweep(), name="sweep")
                tasks.create_task(interfaces.keep(), name="pod links")
                if config.dns.mode == "kernel":
                    tasks.create_task(names.run(), name="names")
                    tasks.create_task(answers.keep(), name="names deadline")
                tasks.create_task(callers(db, known), name="callers")
                tasks.create_task(failures.run(), name="failures")
                if flows is not None:
                    tasks.create_task(flows.run(), name="flows")
                gone = datapath.gone_sockets(db, tcp=config.datapath.destroy_tcp)
                tasks.create_task(gone.run(), name="gone sockets")
                tasks.create_task(datapath.gone_server(gone, config.dns).run(), name="gone name server")
                tasks.create_task(datapath.drained_sockets(db).run(), name="drained sockets")
        finally:
            if self._parts is not None:
                self._parts.interfaces.close()
            datapath.close()


async def forgo_peers(db: Database, derivations: Derivations, patience: dns.PeersPatience) -> None:
    """Let the names be complete once every peer was read, or without those that cannot be."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PEERS_PATIENCE):
            await db.until(lambda snapshot: not any(map(is_peer, snapshot.pending(tables.BACKENDS))))
    patience.over = True
    derivations.await_anew()


async def callers(db: Database, known: Callers) -> None:
    """Keep the map of calling pods, while some plan depends on the caller."""
    while True:
        await db.until(_depends_on_callers)
        while _depends_on_callers(db.snapshot()):
            known.renew({address for pod in db.snapshot().all(tables.PODS) for address in pod.addresses})
            await asyncio.sleep(CALLERS_INTERVAL)
        known.renew(())


def _depends_on_callers(now: Snapshot) -> bool:
    return bool(now.by(tables.PLANS, "callers", True))


async def complete(db: Database, timeout: float, table: Table[Any, Any] = tables.PLANS) -> None:
    """Wait until every source of a table is complete, for ``timeout`` seconds at most."""
    try:
        async with asyncio.timeout(timeout):
            await db.until(lambda snapshot: snapshot.initialized(table, tables.PLANS))
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.ENDPOINT_SETS)))
