"""A gateway of an island: what its cluster exports becomes the configuration of the Envoy that others' nodes call.

Any number may run, each for an Envoy of its own (``isthmus envoy`` with the same ``proxy.directory``). Where they are
is ``cluster.gateways`` in the operator's configuration, which publishes it. A gateway that ends leaves its Envoy as it
is. Members are those whose authorities are there as files. Of peers' etcds only descriptions are read, for labels of
clusters in ExportPolicies, and only where identities of callers are enabled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.metrics_core import Metric

from isthmus import kube, mcs, metrics, proxy
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Follower
from isthmus.config import Config
from isthmus.gateway import exports
from isthmus.gateway.access_log import AccessLog
from isthmus.gateway.exports import GatewaySettings
from isthmus.gateway.refusals import REASONS, UNKNOWN, Refusals
from isthmus.gateway.secrets import Secrets
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint, endpoint
from isthmus.model.names import ClusterName
from isthmus.processes import faults, observing, proxying
from isthmus.processes.certificates import OwnCertificates
from isthmus.processes.observing import Shown, View
from isthmus.processes.peer_secret import follow_peers
from isthmus.processes.start import CannotStart, identified, require, start, supervised, tables_of
from isthmus.reflector import State
from isthmus.running import Tasks
from isthmus.sources import kubernetes
from isthmus.statedb import Database, Derivations, DerivationsStats, Derived

PREFIX: Final = "isthmus_gateway"
KUBERNETES: Final = ("services", "endpoint_sets", "export_marks", "namespaces", "peer_policies")
PORT: Final = 15_443
PEERS_PATIENCE: Final = 10.0
"""Seconds for which a starting gateway waits for labels of peers: without them its Envoy would lose their chains."""


def sources(config: Config) -> tuple[str, ...]:
    """Names of the tables that are read from the API server."""
    return (*KUBERNETES, "export_policies") if config.identity.enabled else KUBERNETES


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("gateway", main, config)


async def main(config: Config) -> None:
    """Check the configuration, then work."""
    require(
        config,
        proxy__directory=config.proxy.directory,
        gateway__identity=config.gateway.identity,
        gateway__listen=config.gateway.listen,
        gateway__trust=config.gateway.trust or config.clusterset.directory,
    )
    async with await kube.connect(config.kubernetes) as client:
        await work(config, client)


async def work(config: Config, client: kube.Client) -> None:
    """Read the cluster's identity from the API server, then start the parts; the process is shown from now on."""
    async with supervised() as tasks:
        shown = Shown(tasks, config, PREFIX)
        tasks.start("api server", client.probe)
        config = await identified(config, client, shown)
        await follow_peers(config, client, tasks, shown)
        start_parts(config, client, tasks, shown)


class GatewayStatus(ProcessStatus, frozen=True, kw_only=True):
    """The gateway's part of ``isthmus status``."""

    cluster: str
    listen: tuple[str, ...]
    exports: int
    """Exports that can be called here."""
    members: tuple[ClusterName, ...]
    """Clusters whose certificates are accepted."""
    certificate_ends: datetime | None
    refusals: dict[str, dict[str, int]]
    """Connections that were refused since this process started, by reason and peer; see ``gateway/refusals.py``."""
    reflectors: dict[str, State]
    derivations: DerivationsStats
    ads: proxy.AdsStats


def start_parts(config: Config, client: kube.Client, tasks: Tasks, shown: Shown) -> None:
    """Wire the parts, start them and show them."""
    cluster, directory = ClusterName(config.cluster.name), Path(config.proxy.directory)
    derived = derived_tables(config)
    db = Database(*tables_of(derived, tables.FAULTS, tables.CLUSTERS, tables.PEER_POLICIES, *proxying.TABLES))
    reflectors = kubernetes.reflectors(
        db, client, tables=sources(config), cluster=cluster, namespace=config.kubernetes.namespace
    )
    follower = descriptions(db, config)
    if follower is None:
        with db.write() as txn:
            txn.put(tables.CLUSTERS, Cluster(name=cluster, own=True, state="ready", network=config.cluster.network))
    derivations = Derivations(db, *derived, faults=tables.FAULTS)
    secrets = proxying.secrets(db, config, "gateway")
    bootstrap = proxying.bootstrap_file(config)
    server = proxy.AdsServer(db, bootstrap.ads)
    refusals = Refusals(config.gateway.domain, lambda: secrets.members)
    access_log = AccessLog(directory, refusals.count)

    certificates = OwnCertificates(config, files=[secrets.identity.certificate], given=client.certificates())
    for reflector in reflectors:
        tasks.start(reflector.name, reflector.run)
    tasks.start("derivations", derivations.run)
    tasks.start("faults", partial(faults.log_bugs, db))
    tasks.start("secrets", secrets.run)
    tasks.start("certificates", certificates.run)
    tasks.start("access log", access_log.run)
    if follower is not None:
        tasks.start("follower", follower.run)
    tasks.start("envoy", partial(_serve, db, config, bootstrap, server))

    def problems() -> Iterator[str]:
        yield from filter(None, [secrets.identity.problem])
        yield from certificates.problems()
        yield from follower.problems() if follower is not None else ()
        yield from observing.away(reflectors, client)

    def status() -> GatewayStatus:
        return GatewayStatus(
            cluster=cluster,
            listen=config.gateway.listen,
            exports=len(_exported(db)),
            members=secrets.members,
            certificate_ends=secrets.identity.ends,
            refusals=refusals.by_reason(),
            reflectors=observing.states(reflectors),
            derivations=derivations.stats(),
            ads=server.stats(),
        )

    shown.show(
        View(
            db=db,
            status=status,
            problems=problems,
            imminent=certificates.imminent,
            warnings=certificates.warnings,
            awaited=lambda: db.snapshot().pending(tables.XDS),
            families=lambda: [
                *observing.source_families(PREFIX, reflectors),
                *certificates.families(PREFIX),
                *families(db, secrets, refusals),
            ],
            list_timeout=config.sync.timeout,
            # Clients call it while it is ready, and its Envoy continues without the API server and most of our parts.
            unready=lambda: filter(None, [secrets.identity.problem]),
        )
    )


def descriptions(db: Database, config: Config) -> Follower | None:
    """Return the follower of peers' descriptions, without their records; ``None`` if no policy is read."""
    section = config.clusterset
    if not (config.identity.enabled and section.directory):
        return None
    return Follower(db, cluster=config.cluster, section=section, kinds=())


def derived_tables(config: Config) -> list[Derived[Any]]:
    """Return the derived tables: exports, as in the operator, and the Envoy resources that serve them."""
    cluster = ClusterName(config.cluster.name)
    try:
        listen = tuple(endpoint(each, port=PORT) for each in config.gateway.listen)
    except ValueError as error:
        raise CannotStart(f"gateway.listen = {error}") from None
    settings = GatewaySettings(
        cluster,
        config.gateway.domain,
        listen,
        Path(config.proxy.directory),
        tuple(_etcd(config)) if config.gateway.etcd else (),
        config.gateway.connections,
        proxying.tracing(config, "gateway", socket.gethostname()),
        policies=config.identity.enabled,
    )
    return [mcs.exports.derived(cluster, default_global=config.clusterset.default_global), exports.derived(settings)]


def _etcd(config: Config) -> list[Endpoint]:
    """The own etcd where it ends TLS: without, whoever is passed on could read all of it."""
    urls = [urlsplit(each) for each in config.etcd.endpoints]
    return [Endpoint(url.hostname or "", url.port or 2379) for url in urls if url.scheme == "https"]


async def _serve(db: Database, config: Config, bootstrap: proxy.BootstrapFile, server: proxy.AdsServer) -> None:
    """Serve the resources once they are complete, so that no export is missing after a restart; have an Envoy."""
    try:
        async with asyncio.timeout(config.sync.timeout):
            await db.until(lambda now: now.initialized(tables.XDS))
    except TimeoutError:
        pass  # the status has who is missing
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PEERS_PATIENCE):
            await db.until(lambda now: now.initialized(tables.CLUSTERS))
    async with Tasks() as tasks:
        tasks.start("ads", server.run)
        tasks.start("wanted", partial(proxying.keep_wanted, db, bootstrap, f"gateway {config.cluster.name}"))


def _exported(db: Database) -> list[Any]:
    return [row for row in db.snapshot().all(tables.OWN_EXPORTS) if row.export is not None]


def families(db: Database, secrets: Secrets, refusals: Refusals) -> list[Metric]:
    """Metrics of the gateway."""
    none_yet = dict.fromkeys(((each, UNKNOWN) for each in REASONS), 0)
    families = [
        metrics.GATEWAY_EXPORTS.value(PREFIX, len(_exported(db))),
        metrics.GATEWAY_MEMBERS.value(PREFIX, len(secrets.members)),
        metrics.GATEWAY_REFUSED.family(PREFIX, sorted({**none_yet, **refusals.counts}.items())),
    ]
    if (ends := secrets.identity.ends) is not None:
        families.append(metrics.GATEWAY_CERTIFICATE_END.value(PREFIX, ends.timestamp()))
    return families
