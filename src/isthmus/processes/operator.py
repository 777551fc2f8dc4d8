"""The operator, one leader per cluster: exports out to the peers' followers, imports into the own API server.

It acts when the tables of its own API server are complete, and waits a moment for those of peers: for one that takes
longer, the imports as they stand stand in, so that a restart takes no cluster out of them. What an earlier process left
is pruned only when every peer's records are complete. A replica that does not lead holds no tables; it is ready, namely
to take over.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from isthmus import kube, logs, mcs
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Follower, PeerStats, Publisher, PublisherStats
from isthmus.config import Config
from isthmus.desired import ApiTarget, TargetStats
from isthmus.etcd import Session
from isthmus.kube.events import Recorder
from isthmus.kube.lease import Election
from isthmus.loadbalancer import claims, drain_objects, own_ranges, policy_objects, refusals
from isthmus.mcs import metrics as mcs_metrics
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import is_peer
from isthmus.processes import draining, observing, proxying, refused_claims
from isthmus.processes.draining import DrainClock
from isthmus.processes.start import identified, own_etcd, require, start, tables_of
from isthmus.proxy import route_objects
from isthmus.reflector import Reflector, State
from isthmus.sources import kubernetes
from isthmus.statedb import (
    Backoff,
    Database,
    Derivation,
    Derivations,
    DerivationsStats,
    Reconciler,
    ReconcilerStats,
    Snapshot,
)

log = logs.get("operator")

PREFIX = "isthmus_operator"
KUBERNETES = (
    "peer_policies",
    "services",
    "endpoint_sets",
    "export_marks",
    "imports",
    "namespaces",
    "nodes",
    "local_redirects",
    "policies",
    "drains",
    "observed",
)
KINDS: tuple[RecordKind, ...] = ("serviceexports", "services")
PEERS_WAIT = 1.0
"""Seconds that peers are waited for: without it a restart would write what it takes back when their records come."""


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("operator", main, config)


async def main(config: Config) -> None:
    """Wait for the lease, and lead."""
    require(
        config,
        cluster__families=config.cluster.families,
        cluster__id=config.cluster.id,
        etcd__endpoints=config.etcd.endpoints,
    )
    identity = f"{socket.gethostname()}-{os.getpid()}"
    async with await kube.connect(config.kubernetes) as client, asyncio.TaskGroup() as tasks:
        config = await identified(config, client)
        election = Election(client, name="isthmus-operator", namespace=config.kubernetes.namespace, identity=identity)
        leader = Leader(config, client, identity)
        observing.monitor(tasks, config, ready=leader.not_ready, families=leader.families)
        await election.run(leader.lead)


class OperatorStatus(ProcessStatus, frozen=True, kw_only=True):
    """The leader's part of ``isthmus status``."""

    cluster: str
    drains: tuple[str, ...]
    """What takes no new call now, a sentence each."""
    reflectors: dict[str, State]
    derivations: DerivationsStats
    peers: dict[ClusterName, PeerStats]
    publisher: PublisherStats
    objects: ReconcilerStats
    """Of what the API server should hold."""
    written: TargetStats


class Leader:
    """What the leader does, and what is known of it meanwhile. Each term begins with empty tables."""

    def __init__(self, config: Config, client: kube.Client, identity: str) -> None:
        self._config = config
        self._client = client
        self._recorder = Recorder(client, component="isthmus-operator", instance=identity)
        self._db: Database | None = None
        self._takeovers: Counter[ClusterName] = Counter()

    def not_ready(self) -> str:
        """Why the process is not ready; empty for one that stands by."""
        return observing.waiting_for(own_awaited(self._db.snapshot()) if self._db is not None else ())

    def families(self) -> Iterable[Metric]:
        """Metrics, as of now."""
        general = observing.families(PREFIX, self._db, leads="1 where this replica leads")
        if self._db is None:
            return general
        snapshot, limit = self._db.snapshot(), self._config.clusterset.max_derived_services
        own = [*mcs_metrics.families(snapshot), *mcs_metrics.quota(snapshot, limit)]
        return [*general, *own, mcs_metrics.takeovers(self._takeovers)]

    async def lead(self) -> None:
        """Do the leader's work, until cancelled."""
        config, cluster = self._config, ClusterName(self._config.cluster.name)
        derived = derived_tables(config, cluster)
        known = (
            tables.CLUSTERS,
            tables.PEER_POLICIES,
            tables.DRAINS,
            tables.DRAINING,
            tables.DRAIN_OBJECTS,
            tables.DRAIN_OBJECTS_STATUS,
            tables.OBJECTS_STATUS,
            tables.POLICY_OBJECTS_STATUS,
            tables.ROUTE_OBJECTS_STATUS,
        )
        db = self._db = Database(*tables_of(derived, *known))
        try:
            async with own_etcd(config.etcd) as session, asyncio.TaskGroup() as tasks:
                parts = wire(config, db, self._client, session, derived)
                for reflector in parts.reflectors:
                    tasks.create_task(reflector.run(), name=reflector.name)
                tasks.create_task(parts.follower.run(), name="follower")
                tasks.create_task(parts.drain_clock.run(), name="drains")
                tasks.create_task(parts.derivations.run(), name="derivations")
                tasks.create_task(parts.publisher.run(), name="publisher")
                tasks.create_task(
                    self._act(db, parts.objects, parts.policies, parts.drains, *parts.routes), name="objects"
                )
                tasks.create_task(draining.report(db, cluster), name="drain status")
                tasks.create_task(self._recorder.run(), name="events")
                observing.admin(tasks, config, db, lambda: status(cluster, parts, db.snapshot()))
        finally:
            self._db = None

    async def _act(self, db: Database, *reconcilers: Reconciler[Any, Any]) -> None:
        """Write objects and record events, as soon as the inputs are complete."""
        await wait_for_inputs(db)
        async with asyncio.TaskGroup() as tasks:
            for each in reconcilers:
                tasks.create_task(each.run(), name=f"apply {each!r}")
            tasks.create_task(mcs.record(db, self._recorder, self._takeovers), name="record events")
            tasks.create_task(refused_claims.record(db, self._recorder), name="refused claims")


class Parts(NamedTuple):
    """What runs while this replica leads."""

    reflectors: list[Reflector[Any]]
    """Of the own API server."""
    follower: Follower
    derivations: Derivations
    publisher: Publisher
    target: ApiTarget
    """Where ``objects`` writes."""
    objects: Reconciler[Any, Any]
    policies: Reconciler[Any, Any]
    """Conditions of traffic policies."""
    drains: Reconciler[Any, Any]
    """Conditions of drains."""
    routes: list[Reconciler[Any, Any]]
    """Conditions of routes; none where no Envoy follows them."""
    drain_clock: DrainClock


def wire(config: Config, db: Database, client: kube.Client, session: Session, derived: list[Derivation]) -> Parts:
    """The parts over one database, none of them running."""
    target, back_off = ApiTarget(client, mcs.KINDS), Backoff(0.1, 30.0)
    return Parts(
        reflectors=kubernetes.reflectors(
            db,
            client,
            tables=(*proxying.status_sources(config), *KUBERNETES),
            cluster=ClusterName(config.cluster.name),
            remote_slices=True,
            namespace=config.kubernetes.namespace,
        ),
        follower=Follower(db, cluster=config.cluster, section=config.clusterset, kinds=KINDS),
        derivations=Derivations(db, *derived),
        publisher=Publisher(
            db, session, config.cluster, max_connected_clusters=config.clusterset.max_connected_clusters
        ),
        target=target,
        objects=Reconciler(
            db,
            tables.OBJECTS,
            target,
            status=tables.OBJECTS_STATUS,
            backoff=back_off,
            together=lambda row: row.service,
        ),
        policies=Reconciler(
            db,
            tables.POLICY_OBJECTS,
            ApiTarget(client, policy_objects.KINDS),
            status=tables.POLICY_OBJECTS_STATUS,
            backoff=back_off,
        ),
        drains=Reconciler(
            db,
            tables.DRAIN_OBJECTS,
            ApiTarget(client, drain_objects.KINDS),
            status=tables.DRAIN_OBJECTS_STATUS,
            backoff=back_off,
        ),
        routes=[
            Reconciler(
                db,
                tables.ROUTE_OBJECTS,
                ApiTarget(client, route_objects.KINDS),
                status=tables.ROUTE_OBJECTS_STATUS,
                backoff=back_off,
            )
            for _ in proxying.statuses(config)
        ],
        drain_clock=DrainClock(db, ClusterName(config.cluster.name), cordoned=config.drains.cordoned_nodes),
    )


def status(cluster: ClusterName, parts: Parts, snapshot: Snapshot) -> OperatorStatus:
    """What the parts do now."""
    return OperatorStatus(
        problems=(*parts.publisher.problems(), *observing.away(parts.reflectors)),
        cluster=cluster,
        drains=draining.sentences(snapshot),
        reflectors=observing.states(parts.reflectors),
        derivations=parts.derivations.stats(),
        peers=parts.follower.stats(),
        publisher=parts.publisher.stats(),
        objects=parts.objects.stats(),
        written=parts.target.stats(),
    )


def derived_tables(config: Config, cluster: ClusterName) -> list[Derivation]:
    """The tables that the leader computes."""
    shared = config.clusterset.default_global
    return [
        *mcs.derived(
            cluster,
            config.cluster.families,
            default_global=shared,
            max_derived_services=config.clusterset.max_derived_services,
        ),
        refusals.derived("", which=config.datapath.services, rules=claims.rules(config)),
        own_ranges.derived(cluster),
        policy_objects.derived(cluster),
        *proxying.statuses(config),
        mcs.records.derived(cluster, config.cluster.id, default_global=shared),
    ]


async def wait_for_inputs(db: Database) -> None:
    """Wait for the tables of the own API server, and a moment for those of peers."""
    await db.until(lambda snapshot: not own_awaited(snapshot))
    try:
        async with asyncio.timeout(PEERS_WAIT):
            await db.until(lambda snapshot: snapshot.initialized(tables.OBJECTS))
    except TimeoutError:
        log.warning("going on without every peer", waiting_for=sorted(db.snapshot().pending(tables.OBJECTS)))


def own_awaited(snapshot: Snapshot) -> list[str]:
    """Sources that have to complete before objects can be written: all but peers."""
    return sorted(source for source in snapshot.pending(tables.OBJECTS) if not is_peer(source))
