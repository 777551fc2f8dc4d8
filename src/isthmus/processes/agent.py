"""The agent, one per node: rows from the API server and from peers become plans, and plans become map entries.

Its parts meet in tables. Nothing is programmed away at its start: where an earlier agent left maps, the first round
waits until every source has said its first list, or for ``sync.timeout`` where one does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from isthmus import dns, kube, loadbalancer, logs
from isthmus.admin import Server, metrics
from isthmus.admin.monitor import Monitor
from isthmus.clusterset.follower import Follower
from isthmus.config import Config
from isthmus.datapath import Callers, Datapath, DatapathError, Introduced
from isthmus.loadbalancer import claims
from isthmus.model import tables
from isthmus.model.hosts import endpoint
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.processes.start import CannotStart, identified, require, start, tables_of
from isthmus.sources import kubernetes
from isthmus.sources.files import Files
from isthmus.statedb import Backoff, Database, Derivations, Reconciler, Table

log = logs.get("agent")

PREFIX = "isthmus_agent"
KUBERNETES = ("services", "endpoint_sets", "imports", "namespaces", "nodes", "pods", "local_redirects")

LOOK_FOR_CALLERS = 2.0
"""Seconds; a pod that calls earlier in its life has a choice that is stable, but this node's own."""

KINDS: tuple[RecordKind, ...] = ("services",)


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("agent", main, config)


async def main(config: Config) -> None:
    """Find out who we are, and work."""
    require(config, node__name=config.node.name, admin__socket=config.admin.socket)
    async with await kube.connect(config.kubernetes) as client:
        await work(await identified(config, client), client)


async def work(config: Config, client: kube.Client) -> None:
    """Wire the parts and keep them going."""
    cluster = ClusterName(config.cluster.name)
    derived = [
        *loadbalancer.derived(cluster, config.node.name, services=config.datapath.services, rules=claims.rules(config)),
        dns.derived(config.dns.zone, servers=servers(config)),
    ]
    db = Database(*tables_of(derived, tables.CLUSTERS, tables.PODS, tables.PLANS_STATUS))
    async with asyncio.TaskGroup() as tasks:
        reflectors = kubernetes.reflectors(db, client, tables=KUBERNETES, cluster=cluster, node=config.node.name)
        follower = Follower(db, cluster=config.cluster, section=config.clusterset, kinds=KINDS)
        derivations = Derivations(db, *derived)
        place = {"cluster": cluster, "node": config.node.name}
        parts: dict[str, Any] = {"reflectors": reflectors, "derivations": derivations, "place": place}
        parts["services"] = config.datapath.services
        for reflector in reflectors:
            tasks.create_task(reflector.run(), name=reflector.name)
        if config.sources.files:
            tasks.create_task(Files(db, Path(config.sources.files)).run(), name="files")
        tasks.create_task(follower.run(), name="follower")
        tasks.create_task(derivations.run(), name="derivations")
        if config.datapath.cgroup:
            tasks.create_task(program(db, config, parts), name="datapath")
        if config.monitor.listen:
            monitor = Monitor(config.monitor.listen, ready=lambda: not_ready(db), families=lambda: families(db))
            tasks.create_task(monitor.run(), name="monitor")
        server = Server(db, config.admin.socket, status=lambda: status(parts), timeout=config.sync.timeout)
        tasks.create_task(server.run(), name="admin")


def servers(config: Config) -> tuple[str, ...]:
    """Addresses of the cluster DNS: what pods ask, and so the address of our zone's name server."""
    try:
        return tuple(endpoint(each, port=53).host for each in config.dns.cluster_dns)
    except ValueError as why:
        raise CannotStart(f"dns.cluster_dns = {why}") from None


async def program(db: Database, config: Config, parts: dict[str, Any]) -> None:
    """Keep the kernel's maps as the plans say."""
    try:
        datapath = Datapath.open(config.datapath, config.dns)
    except DatapathError as why:
        raise CannotStart(str(why)) from None
    try:
        target, known = datapath.target(), datapath.callers()
        if datapath.waiting:
            await complete(db, config.sync.timeout, tables.BACKENDS)
        elif datapath.restored:
            await complete(db, config.sync.timeout)
        told = Introduced(target, known)
        plans = Reconciler(
            db,
            tables.PLANS,
            told,
            status=tables.PLANS_STATUS,
            backoff=Backoff(0.2, 30.0),
            together=lambda plan: plan.key.service,
        )
        parts["plans"] = plans
        if datapath.waiting:
            said = await plans.step()
            datapath.take_over()
            log.info("took over from another layout of the maps", plans=said)
        parts["datapath"], parts["callers"] = datapath, known
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(datapath.keep(), name="hooks")
            tasks.create_task(plans.run(), name="plans")
            tasks.create_task(target.sweep(), name="sweep")
            tasks.create_task(callers(db, known), name="callers")
    finally:
        datapath.close()


async def callers(db: Database, known: Callers) -> None:
    """Tell the kernel which pod a call comes from, while what some plan gives depends on it."""
    while True:
        snapshot = await db.until(lambda now: bool(now.by(tables.PLANS, "callers", True)))
        while snapshot.by(tables.PLANS, "callers", True):
            known.renew({address for pod in snapshot.all(tables.PODS) for address in pod.addresses})
            await asyncio.sleep(LOOK_FOR_CALLERS)
            snapshot = db.snapshot()
        known.renew(())


async def complete(db: Database, timeout: float, table: Table[Any, Any] = tables.PLANS) -> None:
    """Wait until a table knows every source, or until one that does not answer has been waited for long enough."""
    try:
        async with asyncio.timeout(timeout):
            await db.until(lambda snapshot: snapshot.initialized(table, tables.PLANS))
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.ENDPOINT_SETS)))


def not_ready(db: Database) -> str:
    """Why the agent is not ready; nothing once the plans know every source."""
    pending = db.snapshot().pending(tables.PLANS)
    return f"waiting for {', '.join(sorted(pending))}" if pending else ""


def families(db: Database) -> Iterable[Metric]:
    """Metrics, as of now."""
    return [*metrics.tables(db, PREFIX), *metrics.clusters(db.snapshot(), PREFIX)]


def status(parts: dict[str, Any]) -> dict[str, Any]:
    """What the process has and has not got, for `isthmus status`."""
    return {
        "place": parts["place"],
        "services": parts["services"],
        "reflectors": {r.name: r.state._asdict() for r in parts["reflectors"]},
        "derivations": repr(parts["derivations"]),
        "plans": repr(parts["plans"]) if "plans" in parts else "no datapath",
        "hooks": parts["datapath"].hooks if "datapath" in parts else "not attached by this process",
        **({"callers": parts["callers"].condition} if "callers" in parts and parts["callers"].condition else {}),
    }
