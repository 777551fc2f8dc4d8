"""A gateway of an island: what its cluster exports becomes the configuration of the Envoy that others' nodes call.

Any number may run, each for an Envoy of its own (``isthmus envoy`` with the same ``proxy.directory``). Where they are
is ``cluster.gateways`` in the operator's configuration, which publishes it. A gateway that ends leaves its Envoy as it
is. Members are those whose authorities are there as files: no etcd is read.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from isthmus import kube, mcs, proxy
from isthmus.admin.protocol import ProcessStatus
from isthmus.config import Config
from isthmus.gateway import exports
from isthmus.gateway.access_log import AccessLog
from isthmus.gateway.exports import GatewayOf
from isthmus.gateway.refusals import REASONS, UNKNOWN, Refusals
from isthmus.gateway.secrets import Secrets
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint, endpoint
from isthmus.model.names import ClusterName
from isthmus.processes import observing, proxying
from isthmus.processes.start import CannotStart, identified, require, start, tables_of
from isthmus.reflector import State
from isthmus.sources import kubernetes
from isthmus.statedb import Database, Derivations, DerivationsStats, Derived

PREFIX: Final = "isthmus_gateway"
KUBERNETES: Final = ("services", "endpoint_sets", "export_marks", "namespaces", "peer_policies")
PORT: Final = 15_443


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("gateway", main, config)


async def main(config: Config) -> None:
    """Read the cluster's identity from the API server, then work."""
    require(
        config,
        proxy__directory=config.proxy.directory,
        gateway__identity=config.gateway.identity,
        gateway__listen=config.gateway.listen,
        gateway__trust=config.gateway.trust or config.clusterset.directory,
    )
    async with await kube.connect(config.kubernetes) as client:
        await work(await identified(config, client), client)


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


async def work(config: Config, client: kube.Client) -> None:
    """Wire the parts and run them."""
    cluster, directory = ClusterName(config.cluster.name), Path(config.proxy.directory)
    derived = derived_tables(config)
    db = Database(*tables_of(derived, tables.CLUSTERS, tables.PEER_POLICIES, *proxying.TABLES))
    reflectors = kubernetes.reflectors(
        db, client, tables=KUBERNETES, cluster=cluster, namespace=config.kubernetes.namespace
    )
    with db.write() as txn:
        txn.put(tables.CLUSTERS, Cluster(name=cluster, own=True, state="ready", network=config.cluster.network))
    derivations = Derivations(db, *derived)
    secrets = proxying.secrets(db, config, "gateway")
    wanted = proxy.Wanted(directory)
    server = proxy.AdsServer(db, wanted.ads)
    refusals = Refusals(config.gateway.domain, lambda: secrets.members)
    access_log = AccessLog(directory, refusals.count)

    def status() -> GatewayStatus:
        return GatewayStatus(
            problems=(*filter(None, [secrets.identity.problem]), *observing.away(reflectors)),
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

    async with asyncio.TaskGroup() as tasks:
        for reflector in reflectors:
            tasks.create_task(reflector.run(), name=reflector.name)
        tasks.create_task(derivations.run(), name="derivations")
        tasks.create_task(secrets.run(), name="secrets")
        tasks.create_task(access_log.run(), name="access log")
        tasks.create_task(_serve(db, config, wanted, server), name="envoy")
        observing.monitor(
            tasks,
            config,
            ready=lambda: secrets.identity.problem or observing.waiting_for(db.snapshot().pending(tables.XDS)),
            families=lambda: [*observing.families(PREFIX, db), *families(db, secrets, refusals)],
        )
        observing.admin(tasks, config, db, status)


def derived_tables(config: Config) -> list[Derived[Any]]:
    """What is exported, as the operator has it, and Envoy's resources of it."""
    cluster = ClusterName(config.cluster.name)
    try:
        listen = tuple(endpoint(each, port=PORT) for each in config.gateway.listen)
    except ValueError as why:
        raise CannotStart(f"gateway.listen = {why}") from None
    of = GatewayOf(
        cluster,
        config.gateway.domain,
        listen,
        Path(config.proxy.directory),
        tuple(_etcd(config)) if config.gateway.etcd else (),
        config.gateway.connections,
    )
    return [mcs.exports.derived(cluster, default_global=config.clusterset.default_global), exports.derived(of)]


def _etcd(config: Config) -> list[Endpoint]:
    """The own etcd where it ends TLS: without, whoever is passed on could read all of it."""
    urls = [urlsplit(each) for each in config.etcd.endpoints]
    return [Endpoint(url.hostname or "", url.port or 2379) for url in urls if url.scheme == "https"]


async def _serve(db: Database, config: Config, wanted: proxy.Wanted, server: proxy.AdsServer) -> None:
    """Serve the resources once they are complete, so that no export is missing after a restart; have an Envoy."""
    try:
        async with asyncio.timeout(config.sync.timeout):
            await db.until(lambda now: now.initialized(tables.XDS))
    except TimeoutError:
        pass  # the status has who is missing
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run(), name="ads")
        tasks.create_task(proxying.keep_wanted(db, wanted, f"gateway {config.cluster.name}"), name="wanted")


def _exported(db: Database) -> list[Any]:
    return [row for row in db.snapshot().all(tables.OWN_EXPORTS) if row.export is not None]


def families(db: Database, secrets: Secrets, refusals: Refusals) -> list[Metric]:
    """Metrics of the gateway."""
    exported = GaugeMetricFamily(f"{PREFIX}_exports", "exports that can be called here", value=len(_exported(db)))
    members = GaugeMetricFamily(f"{PREFIX}_members", "clusters that may call", value=len(secrets.members))
    none_yet = dict.fromkeys(((each, UNKNOWN) for each in REASONS), 0)
    refused = CounterMetricFamily(f"{PREFIX}_refused", "connections that were refused", labels=["reason", "peer"])
    for labels, number in sorted({**none_yet, **refusals.counts}.items()):
        refused.add_metric(labels, number)
    found: list[Metric] = [exported, members, refused]
    if (ends := secrets.identity.ends) is not None:
        name = f"{PREFIX}_certificate_end_timestamp_seconds"
        found.append(GaugeMetricFamily(name, "when the certificate ends", value=ends.timestamp()))
    return found
