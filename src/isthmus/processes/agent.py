"""The agent, one per node: rows from the API server and from peers become plans, and plans become map entries.

This module wires the parts, which meet in tables. ``programming`` is what writes to the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from isthmus import dns, health, kube, loadbalancer, logs
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Follower, PeerStats
from isthmus.config import Config
from isthmus.kube.events import Recorder
from isthmus.loadbalancer import claims, ignored_pods
from isthmus.loadbalancer.selection import Place
from isthmus.model import tables
from isthmus.model.hosts import endpoint
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import is_peer
from isthmus.processes import draining, ejections, faults, observing, programming, proving, proxying
from isthmus.processes.certificates import OwnCertificates
from isthmus.processes.convergence import Convergence
from isthmus.processes.draining import DrainClock
from isthmus.processes.observing import Shown, View
from isthmus.processes.peer_secret import follow_peers
from isthmus.processes.start import CannotStart, identified, require, start, supervised, tables_of
from isthmus.proxy import probing
from isthmus.reflector import State
from isthmus.running import Tasks
from isthmus.sources import kubernetes
from isthmus.sources.backend_tls import Authorities
from isthmus.sources.files import Files
from isthmus.statedb import (
    Database,
    Derivations,
    DerivationsStats,
)

log = logs.get("agent")

PREFIX = "isthmus_agent"
KUBERNETES = (
    "services", "endpoint_sets", "imports", "namespaces", "nodes", "pods", "local_redirects", "peer_policies",
    "policies", "drains", "l4_routes", "grants",
)  # fmt: skip

TABLES: Final = (tables.CLUSTERS, tables.PEER_POLICIES, tables.REFUSED_RECORDS, tables.DRAINS)
"""Tables that no derived one brings."""

PEERS_PATIENCE: Final = 10.0
"""Seconds after the start for which names wait for every peer: several tries to reach an etcd."""

KINDS: tuple[RecordKind, ...] = ("services",)


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("agent", main, config)


async def main(config: Config) -> None:
    """Check the configuration, then work."""
    require(config, node__name=config.node.name, admin__socket=config.admin.socket)
    async with await kube.connect(config.kubernetes) as client:
        await work(config, client)


async def work(config: Config, client: kube.Client) -> None:
    """Read the cluster's identity from the API server, then start the parts; the process is shown from now on."""
    async with supervised() as tasks:
        shown = Shown(tasks, config, PREFIX)
        tasks.start("api server", client.probe)
        config = await identified(config, client, shown)
        await follow_peers(config, client, tasks, shown, mirrored=config.clusterset.through_mirror)
        start_parts(config, client, tasks, shown)


def start_parts(config: Config, client: kube.Client, tasks: Tasks, shown: Shown) -> None:
    """Wire the parts, start them and show them."""
    cluster = ClusterName(config.cluster.name)
    patience = dns.PeersPatience()
    derived = [
        *loadbalancer.derived(cluster, config.node.name, services=config.datapath.services, rules=claims.rules(config)),
        *proxying.derived(config),
        *proving.derived(config),
        ignored_pods.derived(config.node.name, which=config.datapath.services),
        dns.derived(
            config.dns.zone,
            servers=servers(config),
            more=more_names(config),
            rules=claims.rules(config),
            awaits=patience,
        ),
    ]
    db = Database(
        *tables_of(
            derived,
            tables.FAULTS,
            *TABLES,
            *programming.TABLES,
            *proxying.TABLES,
            *proxying.REPORTED,
            *proving.tables_of(config),
        )
    )
    reflectors = kubernetes.reflectors(
        db,
        client,
        tables=(*KUBERNETES, *proxying.sources(config), *proving.sources(config)),
        cluster=cluster,
        node=config.node.name,
        namespace=config.kubernetes.namespace,
    )
    follower = Follower(db, cluster=config.cluster, section=config.clusterset, kinds=kinds(config))
    derivations = Derivations(db, *derived, faults=tables.FAULTS)
    flows = programming.flows_feed(config)
    proven = proving.Proving(db, config)
    kernel = programming.Programming(db, config, flows, proven)
    convergence = Convergence(db, lambda: derivations.settled and kernel.settled)
    node = proxying.node_secrets(db, config)
    prober = health.Prober(db, config.health, node=config.node.name)
    recorder = Recorder(client, component="isthmus-agent", instance=config.node.name)
    certificates = OwnCertificates(
        config, files=[node.identity.certificate] if node is not None else [], given=client.certificates()
    )
    for reflector in reflectors:
        tasks.start(reflector.name, reflector.run)
    if config.sources.files:
        tasks.start("files", Files(db, Path(config.sources.files)).run)
    tasks.start("follower", follower.run)
    tasks.start("events", recorder.run)
    tasks.start("ejections", partial(ejections.record, db, recorder, ejections.Pace(), ejections.Pace()))
    tasks.start("faults", partial(faults.log_bugs, db))
    tasks.start("faults of pods", partial(faults.record, db, recorder, faults.OF_PODS))
    tasks.start("drains", DrainClock(db, cluster, cordoned=config.drains.cordoned_nodes).run)
    tasks.start("derivations", derivations.run)
    tasks.start("names of peers", partial(forgo_peers, db, derivations, patience), ends=True)
    tasks.start("certificates", certificates.run)
    if config.health.rate:
        tasks.start("health", prober.run)
    if config.proxy.directory:
        tasks.start("proxy", proxying.Serving(db, config, node).run)
        tasks.start("authorities", Authorities(db, client).run)
        tasks.start("refused routes", proxying.Reporting(db, client, config.node.name).run)
    if config.datapath.cgroup:
        proven.follow(client, tasks)
        tasks.start("datapath", kernel.run)
        tasks.start("convergence", convergence.run)

    def problems() -> Iterator[str]:
        yield from filter(None, [kernel.problem(), node.identity.problem if node is not None else ""])
        yield from probing.problems(db.snapshot())
        yield from follower.problems()
        yield from certificates.problems()
        yield from observing.away(reflectors, client)

    def status() -> AgentStatus:
        return AgentStatus(
            unhooked=kernel.problem(),
            ignored_pods=kernel.ignored_pods(),
            unattached_links=kernel.unattached_links(),
            callers=kernel.callers(),
            place=Place(cluster, config.node.name),
            services=config.datapath.services,
            drains=draining.sentences(db.snapshot()),
            reflectors=observing.states(reflectors),
            derivations=derivations.stats(),
            peers=follower.stats(),
            health=prober.stats(),
            calling=proxying.calling_status(config, node),
            datapath=kernel.stats(),
            proving=proven.stats(),
            translated=config.datapath.substitute or None,
        )

    shown.show(
        View(
            db=db,
            status=status,
            problems=problems,
            imminent=lambda: [
                *filter(None, [kernel.dns_problem(), kernel.pods_outside()]),
                *certificates.imminent(),
            ],
            warnings=lambda: [*certificates.warnings(), *proven.warnings()],
            awaited=lambda: db.snapshot().pending(tables.PLANS),
            families=lambda: [
                *observing.source_families(PREFIX, reflectors),
                *certificates.families(PREFIX),
                *kernel.families(PREFIX),
                convergence.histogram.family(PREFIX),
                *proxying.families(PREFIX, db.snapshot()),
            ],
            feeds={"flows": flows},
            counters={"calls": kernel.counted_calls, "stalls": kernel.stalled_connections},
            list_timeout=config.sync.timeout,
        )
    )


def kinds(config: Config) -> tuple[RecordKind, ...]:
    """Return the kinds of peers' records that are followed."""
    return (*KINDS, "identities", "ip") if config.identity.enabled else KINDS


def more_names(config: Config) -> dns.More:
    """Return the optional names. Raises CannotStart if they need the cluster's domain and it is not configured."""
    domain = config.dns.cluster_domain.strip(".").lower()
    if config.dns.native_names and not domain:
        raise CannotStart("dns.native_names: wants dns.cluster_domain, in which those names are")
    return dns.More(clusters=config.dns.cluster_names, native=domain if config.dns.native_names else "")


def servers(config: Config) -> tuple[str, ...]:
    """Addresses of the cluster DNS, which pods query, and so of our zone's name server."""
    try:
        return tuple(endpoint(each, port=53).host for each in config.dns.cluster_dns)
    except ValueError as error:
        raise CannotStart(f"dns.cluster_dns = {error}") from None


class AgentStatus(ProcessStatus, frozen=True, kw_only=True):
    """The agent's part of ``isthmus status``. ``datapath`` is ``None`` if no cgroup is configured, or not open yet."""

    place: Place
    services: str
    """Services that are load balanced: 'multicluster' or 'all'."""
    drains: tuple[str, ...]
    """Drains in force, a sentence each."""
    reflectors: dict[str, State]
    derivations: DerivationsStats
    peers: dict[ClusterName, PeerStats]
    health: health.ProberStats
    calling: proxying.Calling | None
    """Status of calls to gateways of islands; ``None`` if there are none."""
    datapath: programming.DatapathStatus | None
    proving: proving.ProvingStatus | None
    """State of proven identities of callers; ``None`` unless they are enabled."""
    translated: str | None
    """Program that translates calls in place of the kernel; ``None`` if none is configured."""
    unhooked: str
    """Reason why calls are not translated on this node; empty if they are, or if the node is not meant to."""
    ignored_pods: str
    """Sentence on the pods that are left alone; empty if there are none."""
    callers: str
    """Reason why calls cannot be attributed to a pod; empty if they can."""
    unattached_links: str
    """Sentence on the links of pods without programs, where the kernel's names and rescues do not work; or empty."""


async def forgo_peers(db: Database, derivations: Derivations, patience: dns.PeersPatience) -> None:
    """Complete the names once every peer was read, or after PEERS_PATIENCE without the others."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PEERS_PATIENCE):
            await db.until(lambda snapshot: not any(map(is_peer, snapshot.pending(tables.BACKENDS))))
    patience.over = True
    derivations.await_anew()
