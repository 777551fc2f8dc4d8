"""The operator, one leader per cluster: exports out to the peers' followers, imports into the own API server.

It acts on the API server only when every source has said its first list (or has been waited for long enough): a merge
of half the exports would take clusters out of imports at each restart.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from isthmus import etcd, kube, logs, mcs
from isthmus.admin import Server
from isthmus.clusterset import records
from isthmus.clusterset.follower import Follower
from isthmus.clusterset.publisher import Publisher
from isthmus.config import Config
from isthmus.kube.lease import lead
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.processes.start import require, start, tables_of
from isthmus.sources import kubernetes
from isthmus.statedb import Backoff, Database, Derivations, Reconciler

log = logs.get("operator")

KUBERNETES = ("services", "endpoint_sets", "export_marks", "imports", "namespaces")

KINDS: tuple[RecordKind, ...] = ("serviceexports",)


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("operator", main, config)


async def main(config: Config) -> None:
    """Wait to lead, then wire the parts and keep them going."""
    require(
        config, cluster__name=config.cluster.name, cluster__id=config.cluster.id, etcd__endpoints=config.etcd.endpoints
    )
    async with await kube.connect(config.kubernetes) as client:
        await lead(
            client,
            name="isthmus-operator",
            namespace="kube-system",
            identity=f"{socket.gethostname()}-{os.getpid()}",
            while_leading=lambda: reconcile(config, client),
        )


async def reconcile(config: Config, client: kube.Client) -> None:
    """Everything the leader does."""
    cluster = ClusterName(config.cluster.name)
    derived = [*mcs.derived(cluster), records.derived(cluster, config.cluster.id)]
    db = Database(*tables_of(derived, tables.CLUSTERS, tables.OBJECTS_STATUS))
    async with etcd.Session(config.etcd.endpoints) as session, asyncio.TaskGroup() as tasks:
        reflectors = kubernetes.reflectors(db, client, tables=KUBERNETES, cluster=cluster)
        follower = Follower(db, cluster=config.cluster, section=config.clusterset, kinds=KINDS)
        derivations = Derivations(db, *derived)
        publisher = Publisher(db, session, config.cluster)
        objects = Reconciler(
            db, tables.OBJECTS, mcs.ApiTarget(client), status=tables.OBJECTS_STATUS, backoff=Backoff(0.1, 30.0)
        )
        parts = {"reflectors": reflectors, "derivations": derivations, "publisher": publisher, "objects": objects}
        for reflector in reflectors:
            tasks.create_task(reflector.run(), name=reflector.name)
        tasks.create_task(follower.run(), name="follower")
        tasks.create_task(derivations.run(), name="derivations")
        tasks.create_task(publisher.run(), name="publisher")
        tasks.create_task(apply(db, objects, config.sync.timeout), name="objects")
        if config.admin.socket:
            server = Server(db, config.admin.socket, status=lambda: status(parts), timeout=config.sync.timeout)
            tasks.create_task(server.run(), name="admin")


async def apply(db: Database, objects: Reconciler[Any, Any], timeout: float) -> None:
    """Keep the own API server as the objects say, once they say it for all sources."""
    try:
        async with asyncio.timeout(timeout):
            await db.until(lambda snapshot: snapshot.initialized(tables.OBJECTS))
    except TimeoutError:
        log.warning("going on without every source", waiting_for=sorted(db.snapshot().pending(tables.EXPORTS)))
    await objects.run()


def status(parts: dict[str, Any]) -> dict[str, Any]:
    """What the process has and has not got, for `isthmus status`."""
    return {
        "reflectors": {r.name: r.state._asdict() for r in parts["reflectors"]},
        "derivations": repr(parts["derivations"]),
        "publisher": repr(parts["publisher"]),
        "objects": repr(parts["objects"]),
    }
