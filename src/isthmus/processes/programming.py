"""Programs the kernel of a node: opens the datapath, writes plans and names into its maps, and follows what it reports.

Nothing is removed from the maps at the start. Where an earlier agent left entries, the first round waits until the
first list of every source is complete, or for ``sync.timeout`` where one does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from prometheus_client.metrics_core import Metric

from isthmus import logs, metrics
from isthmus.admin.feed import Feed
from isthmus.config import Config
from isthmus.datapath import (
    Callers,
    CallersFirst,
    Datapath,
    DatapathError,
    IgnoredPods,
    PodLinks,
    PodLinksStats,
    identities,
)
from isthmus.datapath.datapath import DatapathStats
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.datapath.flows.reader import FlowReader, FlowStats
from isthmus.datapath.metrics import call_counts, calls, pod_links, records, traffic
from isthmus.datapath.metrics import ejections as ejection_counts
from isthmus.datapath.metrics import questions as name_questions
from isthmus.datapath.services import placement
from isthmus.model import tables
from isthmus.model.flows import Flow, is_failed
from isthmus.model.names import ClusterName
from isthmus.processes import ejections, ignoring, observing, rescuing
from isthmus.processes.proving import Proving, account_of
from isthmus.processes.start import CannotStart
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Database, Reconciler, ReconcilerStats, Snapshot, Table

log = logs.get("agent")

PLACEMENT_INTERVAL: Final = 15.0
"""Seconds between two comparisons of the configuration with the pods of the node. A problem is shown if two find it:
a pod's row may be newer than its cgroup."""
PLANS_PER_ROUND: Final = 256
"""Largest number of plans that a round writes before other tasks have their turn: some milliseconds."""
CALLERS_INTERVAL: Final = 2.0
"""Seconds between looks for new pods. Until then a pod's calls are spread by a hash of this node's own, and follow no
route of its namespace for Services of others."""
CALLERS_PAUSE: Final = 0.5
"""Smallest number of seconds between two looks when pods change."""

FLOWS_OFF: Final = "flows are not recorded here: set datapath.flows = 256 (one call of 256; 1: every one) for the agent"
FLOWS_KEPT: Final = 20_000
"""Records that are kept, about 13 MB: an hour of 700 calls a second, at one of 256 with two records each."""

TABLES: Final = (
    tables.NAMES, tables.PODS, tables.NODES, tables.PLANS_STATUS, tables.NAMES_STATUS, tables.FAILURES,
    tables.CALLER_FAILURES, tables.DENIALS, tables.ISLAND_LISTENERS, tables.GATEWAY_CHECKS,
)  # fmt: skip
"""Tables that :class:`Programming` reads and writes, beside the plans and their inputs."""


def flows_feed(config: Config) -> Feed[Flow]:
    """Return the feed of calls. A namespace's failures displace none of another, and calls that succeed none at all."""
    one_of = config.datapath.flows
    return Feed(
        off=flows_off(config),
        note=f"one call of {one_of} is recorded here, and all that fail or are rescued" if one_of != 1 else "",
        kept=FLOWS_KEPT,
        group=lambda flow: f"{(flow.pod or flow.policy).partition('/')[0]} {'fails' if is_failed(flow) else 'calls'}",
    )


def flows_off(config: Config) -> str:
    """Return the reason why flows are not recorded here; empty if they are."""
    if config.datapath.substitute:
        return f"flows are not recorded here: calls are translated {config.datapath.substitute}"
    return "" if config.datapath.cgroup and config.datapath.flows != "off" else FLOWS_OFF


class NamesStatus(Struct, frozen=True):
    """State of the answers to names of the node's pods."""

    mode: str
    entries: ReconcilerStats
    interfaces: PodLinksStats
    questions: list[dict[str, Any]]
    """Numbers of pods' questions by kind, result and who answers."""


class DatapathStatus(Struct, frozen=True):
    """State of the hooks, and of the rounds that write plans and names into the maps."""

    hooks: DatapathStats
    plans: ReconcilerStats
    names: NamesStatus
    flows: FlowStats | None
    """``None`` if flows are not recorded."""
    rescue: str
    """Sentence on where connects to a dead backend are moved to another one, and where they cannot be."""


class Parts(NamedTuple):
    """The parts that program the kernel."""

    datapath: Datapath
    plans: Reconciler[Any, Any]
    names: Reconciler[Any, Any]
    interfaces: PodLinks
    callers: Callers
    ignored: IgnoredPods
    failures: FailureWatch
    flows: FlowReader | None


class Programming:
    """The datapath and the parts that program it. They exist while :meth:`run` does."""

    def __init__(
        self, db: Database, config: Config, flows: Feed[Flow] | None = None, proven: Proving | None = None
    ) -> None:
        self._db = db
        self._proven = proven if proven is not None else Proving(db, config)
        self._config = config
        self._feed = flows or Feed(off=FLOWS_OFF)
        self._parts: Parts | None = None
        self._services = metrics.Bound()
        self._placement = ("", "", "")
        """Problems of the configured cgroup and of the configured DNS, by the pods of this node."""

    def stats(self) -> DatapathStatus | None:
        """``None`` until the datapath is open and the plans of an earlier process are taken over."""
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
            parts.datapath.stats(),
            parts.plans.stats(),
            names,
            flows,
            rescue,
        )

    def counted_calls(self) -> list[dict[str, Any]]:
        """Calls of this node's pods by import or Service, cluster of the backend and verdict; none while not attached.

        At most as many services as have series of their own in the metrics; the rest are ``other``.
        """
        if self._parts is None:
            return []
        imports = {str(row.derived_service): str(row.name) for row in self._db.snapshot().all(tables.IMPORTS)}
        counts = call_counts(self._parts.datapath.counters(), imports, self._services)
        return [
            {"service": service, "cluster": cluster, "verdict": verdict, "calls": calls}
            for (service, cluster, verdict), calls in counts.items()
        ]

    async def stalled_connections(self) -> list[dict[str, Any]]:
        """Stalled connections of this node's pods, measured now; none while not attached."""
        if self._parts is None:
            return []
        own = ClusterName(self._config.cluster.name)
        rows = await self._parts.datapath.stalled(self._db.snapshot(), own)
        return [msgspec.to_builtins(row) for row in rows]

    def families(self, prefix: str) -> list[Metric]:
        """Return the metrics of hooks, maps, calls and names; before the datapath is open only those of hooks."""
        if not self._config.datapath.cgroup:
            return []
        attached = metrics.DATAPATH_ATTACHED.value(prefix, not self.problem())
        if self._parts is None:
            return [attached]
        failures, own, snapshot = self._parts.failures, self._config.cluster.name, self._db.snapshot()
        recorded = self._parts.flows.stats() if self._parts.flows else None
        imports = {str(row.derived_service): str(row.name) for row in snapshot.all(tables.IMPORTS)}
        stats = {"plans": self._parts.plans.stats(), "names": self._parts.names.stats()}
        return [
            attached,
            pod_links(self._parts.interfaces.stats(), prefix),
            *observing.reconciler_families(prefix, stats),
            calls(self._parts.datapath.counters(), prefix, cluster=own, imports=imports, bound=self._services),
            name_questions(self._parts.datapath.questions(), prefix),
            traffic(self._parts.datapath.traffic(), prefix, cluster=own),
            *([records(recorded.records, recorded.lost, prefix)] if recorded else []),
            ejection_counts(failures.counts, prefix),
            *ejections.families(prefix, snapshot, moved=failures.moved),
        ]

    @property
    def settled(self) -> bool:
        """True if every plan and name is in the kernel's maps."""
        if self._parts is None:
            return False
        return self._parts.plans.settled and (self._config.dns.mode != "kernel" or self._parts.names.settled)

    def ignored_pods(self) -> str:
        """Return a sentence on the pods whose calls are not translated; empty if there are none."""
        return ignoring.sentence(self._db.snapshot(), missing=self._parts.ignored.missing) if self._parts else ""

    def callers(self) -> str:
        """Return the reason why calls cannot be attributed to a pod; empty if they can."""
        return self._parts.callers.condition if self._parts else ""

    def unattached_links(self) -> str:
        """Return a sentence on links of pods that have no programs; empty if there are none."""
        return rescuing.without_programs(self._parts.interfaces.stats()) if self._parts else ""

    def problem(self) -> str:
        """Return the reason why calls are not translated; empty without a configured cgroup, which is a choice."""
        if not self._config.datapath.cgroup:
            return ""
        if self._parts is None:
            return "plans are not programmed yet: the maps of an earlier agent wait for the first complete lists"
        hooks = self._parts.datapath.stats()
        if not hooks.attached:
            return f"calls are not translated: {hooks.detail}"
        return self._placement[0] or self._parts.datapath.rival

    def dns_problem(self) -> str:
        """Return the reason why names of this node's pods are not answered; empty if they are, or nothing is known."""
        return self._placement[1]

    def pods_outside(self) -> str:
        """Return a sentence on the node's pods that are outside the hooked cgroup, which others are in; or empty."""
        return self._placement[2]

    async def run(self) -> None:
        """Program plans and names into the kernel's maps, for ever."""
        db, config = self._db, self._config
        try:
            datapath = Datapath.open(config.datapath, config.dns)
        except DatapathError as error:
            raise CannotStart(str(error)) from None
        try:
            target, known = datapath.target(), datapath.callers()
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
            ignored = datapath.ignored_pods()
            interfaces, failures = datapath.pod_links(), datapath.failures(db, known, node=config.node.name)
            if datapath.waiting:
                ignoring.renew(db.snapshot(), ignored)
                outcome = await plans.step()
                datapath.take_over()
                failures.step()  # opens the gates over connections that were carried over, which our programs then see
                interfaces.look()
                log.info("took over from another layout of the maps", plans=outcome)
            datapath.repair()
            answers = datapath.names(config.dns, lifetime=config.clusterset.cache_lifetime)
            names = Reconciler(db, tables.NAMES, answers, status=tables.NAMES_STATUS, backoff=Backoff(0.2, 30.0))
            account = partial(account_of, db, config.clusterset.max_connected_clusters)
            flows = datapath.flows(db, self._feed.add, known, node=config.node.name, account=account)
            self._parts = Parts(datapath, plans, names, interfaces, known, ignored, failures, flows)
            closer = datapath.gone_sockets(db, tcp=config.datapath.destroy_tcp)
            async with Tasks() as tasks:
                tasks.start("hooks", datapath.keep)
                tasks.start("plans", plans.run)
                tasks.start("sweep", target.sweep)
                tasks.start("pod links", interfaces.keep)
                tasks.start("placement", partial(self._compare, datapath))
                if config.dns.mode == "kernel":
                    tasks.start("names", names.run)
                    tasks.start("names deadline", answers.keep)
                tasks.start("ignored pods", partial(ignoring.keep, db, ignored))
                tasks.start("callers", partial(callers, db, known, config.node.name))
                tasks.start("failures", failures.run)
                tasks.start("confirmation", datapath.confirmation(db, failures).run)
                if flows is not None:
                    tasks.start("flows", flows.run)
                tasks.start("gone sockets", closer.run)
                tasks.start("gone name server", datapath.gone_server(closer, config.dns).run)
                tasks.start("drained sockets", datapath.drained_sockets(db).run)
                await self._proven.start(datapath, tasks)
        finally:
            self._proven.stop()
            parts, self._parts = self._parts, None
            if parts is not None:
                parts.interfaces.close()
                if parts.flows is not None:
                    parts.flows.close()
            datapath.close()

    async def _compare(self, datapath: Datapath) -> None:
        """Compare the configuration with the pods of this node, for ever."""
        last = ("", "", "")
        while True:
            pods = placement.expected(self._db.snapshot().all(tables.PODS), self._config.node.name)
            current = await asyncio.to_thread(datapath.placement, pods, self._config.dns)
            first, second, third = (new if new == old else "" for new, old in zip(current, last, strict=True))
            self._placement = first, second, third
            last = current
            await asyncio.sleep(PLACEMENT_INTERVAL)


async def callers(db: Database, tracked: Callers, node: str) -> None:
    """Keep the map of calling pods, while some plan depends on the caller; ``node``: the name of this one."""
    while True:
        await db.until(_depends_on_callers)
        with contextlib.closing(db.changes(tables.PODS)) as pods:
            while _depends_on_callers(db.snapshot()):
                now, _ = pods.next()
                row = now.get(tables.NODES, node)
                tracked.renew(identities(now.all(tables.PODS), row.addresses if row is not None else ()))
                del now
                await asyncio.sleep(CALLERS_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALLERS_INTERVAL - CALLERS_PAUSE):
                        await pods.wait()
        tracked.renew({})


def _depends_on_callers(now: Snapshot) -> bool:
    return bool(now.by(tables.PLANS, "callers", True))


async def complete(db: Database, timeout: float, table: Table[Any, Any] = tables.PLANS) -> None:
    """Wait until every source of a table is complete, for ``timeout`` seconds at most."""
    try:
        async with asyncio.timeout(timeout):
            await db.until(lambda snapshot: snapshot.initialized(table, tables.PLANS))
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.ENDPOINT_SETS)))
