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
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from prometheus_client.metrics_core import Metric

from isthmus import health, kube, logs, mcs, metrics
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Follower, PeerStats, Publishers, PublisherStats
from isthmus.config import Config
from isthmus.desired import ApiTarget, Ownership, TargetStats
from isthmus.etcd import Session
from isthmus.identity import permits, statuses
from isthmus.kube.events import Recorder
from isthmus.kube.lease import Election
from isthmus.loadbalancer import (
    checks,
    claims,
    drain_objects,
    gateways,
    l4_route_objects,
    own_ranges,
    policy_objects,
    refusals,
)
from isthmus.mcs import metrics as mcs_metrics
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import is_peer
from isthmus.processes import draining, faults, identities, observing, pair_keys, proxying, refused_claims
from isthmus.processes.certificates import OwnCertificates
from isthmus.processes.convergence import Convergence
from isthmus.processes.draining import DrainClock
from isthmus.processes.etcd import EtcdWatch
from isthmus.processes.observing import Shown, View
from isthmus.processes.peer_secret import follow_peers
from isthmus.processes.start import identified, own_etcds, require, start, supervised, tables_of
from isthmus.proxy import backend_tls_objects, route_objects
from isthmus.reflector import Reflector, State
from isthmus.running import Tasks
from isthmus.sources import kubernetes
from isthmus.sources.backend_tls import Authorities
from isthmus.statedb import (
    Backoff,
    Database,
    Derivation,
    Derivations,
    DerivationsStats,
    Reconciler,
    ReconcilerStats,
    Snapshot,
    Table,
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
    "l4_routes",
    "grants",
    "observed",
)
IDENTITY_TABLES = (tables.PODS, tables.IDENTITIES, tables.IDENTITY_OBJECTS, tables.IDENTITY_OBJECTS_STATUS)
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
    async with await kube.connect(config.kubernetes) as client, supervised() as tasks:
        shown = Shown(tasks, config, PREFIX, leader=True)
        config = await identified(config, client, shown)
        await follow_peers(config, client, tasks, shown)
        election = Election(client, name="isthmus-operator", namespace=config.kubernetes.namespace, identity=identity)
        leader = Leader(config, client, election, shown)
        shown.idle(leader.standing_by())
        tasks.start("election", lambda: election.run(leader.lead))
        tasks.start("certificates", leader.certificates.run)


class OperatorStatus(ProcessStatus, frozen=True, kw_only=True):
    """The leader's part of ``isthmus status``."""

    cluster: str
    drains: tuple[str, ...]
    """Drains in force, a sentence each."""
    reflectors: dict[str, State]
    derivations: DerivationsStats
    peers: dict[ClusterName, PeerStats]
    publisher: PublisherStats
    health: health.ProberStats
    objects: ReconcilerStats
    """Reconciler of the objects that the API server should hold."""
    written: TargetStats


class Leader:
    """The leader's work and its status. Each term begins with empty tables."""

    def __init__(self, config: Config, client: kube.Client, election: Election, shown: Shown) -> None:
        self._config = config
        self._client = client
        self._election = election
        self._shown = shown
        self._recorder = Recorder(client, component="isthmus-operator", instance=election.identity)
        self._takeovers: Counter[ClusterName] = Counter()
        self._etcd = EtcdWatch()
        self.certificates = OwnCertificates(config, given=client.certificates())

    def __repr__(self) -> str:
        return f"<Leader {self._election!r}>"

    def standing_by(self) -> View:
        """A replica that does not lead; one that cannot reach the lease never will."""

        def status() -> ProcessStatus:
            holder = self._election.holder
            return ProcessStatus(standing_by=f"{holder} leads" if holder else "no replica leads yet")

        return View(
            status=status,
            problems=lambda: [*self._lease_problems(), *self.certificates.problems()],
            imminent=self.certificates.imminent,
            warnings=self.certificates.warnings,
            families=lambda: self.certificates.families(PREFIX),
        )

    def _lease_problems(self) -> list[str]:
        problems = self._client.problems()
        return [*problems, *([f"it cannot lead: {why}"] if (why := self._election.problem) and not problems else [])]

    def _families(self, db: Database, parts: Parts) -> Iterator[Metric]:
        snapshot = db.snapshot()
        yield from observing.source_families(PREFIX, parts.reflectors)
        yield from self.certificates.families(PREFIX)
        yield from mcs_metrics.families(snapshot)
        yield from mcs_metrics.quota(snapshot, self._config.clusterset.max_derived_services)
        yield mcs_metrics.takeovers(self._takeovers)
        yield from publisher_families(parts)
        yield parts.convergence.histogram.family(PREFIX)
        yield from self._etcd.families(PREFIX)

    def _problems(self, parts: Parts) -> Iterator[str]:
        yield from self._lease_problems()
        yield from parts.publisher.problems()
        yield from parts.follower.problems()
        yield from self.certificates.problems()
        yield from self._etcd.problems()
        if not self._client.problems():
            yield from observing.away(parts.reflectors)

    def _view(self, db: Database, parts: Parts) -> View:
        cluster = ClusterName(self._config.cluster.name)
        return View(
            db=db,
            status=lambda: status(cluster, parts, db.snapshot()),
            problems=lambda: self._problems(parts),
            imminent=self.certificates.imminent,
            warnings=lambda: [*self.certificates.warnings(), *parts.publisher.warnings()],
            awaited=lambda: own_awaited(db.snapshot()),
            families=lambda: self._families(db, parts),
            list_timeout=self._config.sync.timeout,
        )

    async def lead(self) -> None:
        """Do the leader's work, until cancelled."""
        config, cluster = self._config, ClusterName(self._config.cluster.name)
        derived = derived_tables(config, cluster)
        known = (
            tables.FAULTS,
            tables.CLUSTERS,
            tables.PEER_POLICIES,
            tables.REFUSED_RECORDS,
            tables.PEER_REFUSALS,
            tables.RECORDS_STATUS,
            tables.DRAINS,
            tables.DRAINING,
            tables.DRAIN_OBJECTS,
            tables.DRAIN_OBJECTS_STATUS,
            tables.OBJECTS_STATUS,
            tables.POLICY_OBJECTS_STATUS,
            tables.EXPORT_POLICY_OBJECTS_STATUS,
            tables.ROUTE_OBJECTS_STATUS,
            tables.L4_ROUTE_OBJECTS_STATUS,
            tables.BACKEND_TLS_OBJECTS_STATUS,
            *(IDENTITY_TABLES if config.identity.enabled else ()),
        )
        db = Database(*tables_of(derived, *known))
        try:
            async with own_etcds(config.etcd) as etcds, Tasks() as tasks:
                parts = wire(config, db, self._client, etcds, derived)
                for reflector in parts.reflectors:
                    tasks.start(reflector.name, reflector.run)
                tasks.start("follower", parts.follower.run)
                tasks.start("drains", parts.drain_clock.run)
                if config.health.rate:
                    tasks.start("health", parts.prober.run)
                tasks.start("derivations", parts.derivations.run)
                tasks.start("publisher", parts.publisher.run)
                tasks.start("convergence", parts.convergence.run)
                for name, session in etcds.items():
                    tasks.start(f"size of {name}", partial(self._etcd.run, name, session))
                if parts.authorities is not None:
                    tasks.start("authorities", parts.authorities.run)
                if parts.numbering is not None:
                    tasks.start("numbering", parts.numbering.run)
                notifier = mcs.Notifier(db, self._recorder, self._takeovers)
                claims = refused_claims.ClaimEvents(db, self._recorder)
                tasks.start("objects", partial(act, db, parts, notifier, claims))
                tasks.start("drain status", partial(draining.report, db, cluster))
                tasks.start("events", self._recorder.run)
                tasks.start("faults", partial(faults.log_bugs, db))
                tasks.start("faulty objects", partial(faults.record, db, self._recorder, faults.OF_OPERATOR))
                self._shown.show(self._view(db, parts))
        finally:
            self._shown.hide()


class Parts(NamedTuple):
    """Parts that run while this replica leads."""

    reflectors: list[Reflector[Any]]
    """Reflectors of the own API server."""
    follower: Follower
    derivations: Derivations
    publisher: Publishers
    target: ApiTarget
    """Target of ``objects``."""
    objects: Reconciler[Any, Any]
    policies: Reconciler[Any, Any]
    """Conditions of traffic policies."""
    export_policies: Reconciler[Any, Any] | None
    """Conditions of ExportPolicies; None where they are not read."""
    drains: Reconciler[Any, Any]
    """Conditions of drains."""
    routes: Reconciler[Any, Any] | None
    """Conditions of routes; None where no Envoy follows them."""
    backend_tls: Reconciler[Any, Any] | None
    """Conditions of BackendTLSPolicies; None where no Envoy follows them, as ``authorities``."""
    authorities: Authorities | None
    l4_routes: Reconciler[Any, Any]
    """Conditions of TCPRoutes and UDPRoutes."""
    numbers: Reconciler[Any, Any] | None
    """Numbers of service accounts; None unless they are enabled, as ``numbering``."""
    numbering: identities.Numbering | None
    drain_clock: DrainClock
    prober: health.Prober
    """Probes what the shares in traffic policies' statuses depend on."""
    convergence: Convergence

    def reconcilers(self) -> dict[str, Reconciler[Any, Any]]:
        """Return the reconcilers by the names of their tasks."""
        writers = {
            "merged": self.objects,
            "policies": self.policies,
            "export policies": self.export_policies,
            "drains": self.drains,
            "routes": self.routes,
            "backend tls": self.backend_tls,
            "l4 routes": self.l4_routes,
            "numbers": self.numbers,
        }
        return {name: writer for name, writer in writers.items() if writer is not None}


def wire(
    config: Config, db: Database, client: kube.Client, etcds: Mapping[str, Session], derived: list[Derivation]
) -> Parts:
    """The parts over one database, none of them running."""
    target, back_off, routed = ApiTarget(client, mcs.KINDS), Backoff(0.1, 30.0), bool(proxying.statuses(config))

    def statuses_of(
        table: Table[Any, Any], status: Table[Any, Any], kinds: Mapping[str, Ownership]
    ) -> Reconciler[Any, Any]:
        return Reconciler(db, table, ApiTarget(client, kinds), status=status, backoff=back_off)

    derivations = Derivations(db, *derived, faults=tables.FAULTS)
    publisher = Publishers(
        db,
        etcds,
        config.cluster,
        max_connected_clusters=config.clusterset.max_connected_clusters,
        signing=partial(pair_keys.published, config) if config.identity.enabled else None,
        identities=config.identity.enabled,
        publish_endpoints=config.clusterset.publish_endpoints,
    )
    objects = Reconciler(
        db, tables.OBJECTS, target, status=tables.OBJECTS_STATUS, backoff=back_off, together=lambda row: row.service
    )
    return Parts(
        reflectors=kubernetes.reflectors(
            db,
            client,
            tables=(*proxying.status_sources(config), *KUBERNETES, *identity_sources(config)),
            cluster=ClusterName(config.cluster.name),
            remote_slices=True,
            namespace=config.kubernetes.namespace,
            accounts=True,
        ),
        follower=Follower(
            db,
            cluster=config.cluster,
            section=config.clusterset,
            kinds=kinds(config),
        ),
        derivations=derivations,
        publisher=publisher,
        target=target,
        objects=objects,
        policies=statuses_of(tables.POLICY_OBJECTS, tables.POLICY_OBJECTS_STATUS, policy_objects.KINDS),
        export_policies=statuses_of(tables.EXPORT_POLICY_OBJECTS, tables.EXPORT_POLICY_OBJECTS_STATUS, statuses.KINDS)
        if config.identity.enabled
        else None,
        drains=statuses_of(tables.DRAIN_OBJECTS, tables.DRAIN_OBJECTS_STATUS, drain_objects.KINDS),
        routes=statuses_of(tables.ROUTE_OBJECTS, tables.ROUTE_OBJECTS_STATUS, route_objects.KINDS) if routed else None,
        backend_tls=statuses_of(
            tables.BACKEND_TLS_OBJECTS, tables.BACKEND_TLS_OBJECTS_STATUS, backend_tls_objects.KINDS
        )
        if routed
        else None,
        authorities=Authorities(db, client) if routed else None,
        l4_routes=statuses_of(tables.L4_ROUTE_OBJECTS, tables.L4_ROUTE_OBJECTS_STATUS, l4_route_objects.KINDS),
        numbers=identities.reconciler(db, client, back_off) if config.identity.enabled else None,
        numbering=identities.numbering(db, config) if config.identity.enabled else None,
        drain_clock=DrainClock(db, ClusterName(config.cluster.name), cordoned=config.drains.cordoned_nodes),
        prober=health.Prober(db, config.health, node=""),
        convergence=Convergence(db, lambda: derivations.settled and objects.settled and publisher.settled),
    )


def publisher_families(parts: Parts) -> list[Metric]:
    """Metrics of what writes objects and records."""
    publisher = parts.publisher
    stats = {name: reconciler.stats() for name, reconciler in parts.reconcilers().items()}
    published = publisher.stats()
    stats |= {"records": published.records, "refusals": published.refusals}
    return [
        *observing.reconciler_families(PREFIX, stats),
        metrics.PUBLISHED.value(PREFIX, publisher.published),
        metrics.PUBLISH_FAILURES.value(PREFIX, publisher.failures),
    ]


async def act(db: Database, parts: Parts, notifier: mcs.Notifier, claims: refused_claims.ClaimEvents) -> None:
    """Write objects and record events, as soon as the inputs are complete."""
    await wait_for_inputs(db)
    async with Tasks() as tasks:
        for name, reconciler in parts.reconcilers().items():
            tasks.start(name, reconciler.run)
        tasks.start("notices", notifier.run)
        tasks.start("refused claims", claims.run)


def status(cluster: ClusterName, parts: Parts, snapshot: Snapshot) -> OperatorStatus:
    """Return the present status of the parts."""
    return OperatorStatus(
        cluster=cluster,
        drains=draining.sentences(snapshot),
        reflectors=observing.states(parts.reflectors),
        derivations=parts.derivations.stats(),
        peers=parts.follower.stats(),
        publisher=parts.publisher.stats(),
        health=parts.prober.stats(),
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
            import_families=config.clusterset.import_families,
            list_importers=config.clusterset.export_status_clusters,
        ),
        refusals.derived("", which=config.datapath.services, rules=claims.rules(config)),
        own_ranges.derived(cluster),
        gateways.derived(),
        checks.of_policies(cluster),
        policy_objects.derived(cluster),
        l4_route_objects.derived(),
        *proxying.statuses(config),
        *identity_tables(config, cluster),
        mcs.records.derived(
            cluster,
            config.cluster.id,
            default_global=shared,
            with_identities=config.identity.enabled,
            publish_endpoints=config.clusterset.publish_endpoints,
        ),
    ]


async def wait_for_inputs(db: Database) -> None:
    """Wait for the tables of the own API server, and a moment for those of peers."""
    await db.until(lambda snapshot: not own_awaited(snapshot))
    try:
        async with asyncio.timeout(PEERS_WAIT):
            await db.until(lambda snapshot: snapshot.initialized(tables.OBJECTS))
    except TimeoutError:
        log.warning("going on without every peer", waiting_for=sorted(db.snapshot().pending(tables.OBJECTS)))


def kinds(config: Config) -> tuple[RecordKind, ...]:
    """Return the kinds of peers' records that are followed."""
    return (*KINDS, "identities") if config.identity.enabled else KINDS


def identity_sources(config: Config) -> tuple[str, ...]:
    """Names of the tables about callers that are read from the API server."""
    return ("export_policies", *identities.SOURCES) if config.identity.enabled else ()


def identity_tables(config: Config, cluster: ClusterName) -> list[Derivation]:
    """The tables that the statuses of ExportPolicies need."""
    if not config.identity.enabled:
        return []
    return [permits.allowed(cluster), permits.excess(), statuses.derived(cluster)]


def own_awaited(snapshot: Snapshot) -> list[str]:
    """Sources that have to complete before objects can be written: all but peers."""
    return sorted(source for source in snapshot.pending(tables.OBJECTS) if not is_peer(source))
