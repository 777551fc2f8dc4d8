"""Peers of a test, written into an etcd by hand, and a follower that follows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.peers.sinks import RECORD_LIMITS
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records import keys
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.etcd import Limits, Session
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.statedb import Database, Snapshot

OWN = ClusterSection(name="c1", id=1)
QUICK = FollowerTimings(look_every=0.05)
"""A change in the directory of peers is seen soon."""


class Peers:
    """The configuration directory of a test."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.endpoint = endpoint
        folder.mkdir()

    def add(self, *names: str, endpoint: str = "") -> None:
        for name in names:
            (self.folder / name).write_text(f"endpoints: ['{endpoint or self.endpoint}']\n")

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


class Following:
    """A follower at work, and its tables."""

    def __init__(self, db: Database, follower: Follower) -> None:
        self.db = db
        self._follower = follower

    async def until(self, condition: Callable[[Snapshot], Any]) -> None:
        try:
            async with asyncio.timeout(60):
                await self.db.until(lambda snapshot: bool(condition(snapshot)))
        except TimeoutError:
            rows = [*self.db.snapshot().all(tables.CLUSTERS), *self.services(), *self.exports()]
            pytest.fail(f"not reached; rows are {rows}")

    async def until_true(self, condition: Callable[[], Any]) -> None:
        """For what is not in a table."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def state(self, name: str, state: str) -> Cluster:
        await self.until(lambda s: (row := s.get(tables.CLUSTERS, ClusterName(name))) and row.state == state)
        return self.cluster(name)

    def problems(self) -> tuple[str, ...]:
        return self._follower.problems()

    def connections(self, name: str) -> int:
        """How often a connection with this peer was begun."""
        return self._follower._connections[ClusterName(name)].runs

    def cluster(self, name: str) -> Cluster:
        row = self.db.snapshot().get(tables.CLUSTERS, ClusterName(name))
        assert row is not None
        return row

    def services(self) -> dict[str, list[str]]:
        rows = self.db.snapshot().all(tables.ENDPOINT_SETS)
        return {f"{row.cluster}:{row.service}": [each.address for each in row.endpoints] for row in rows}

    def count(self, cluster: str) -> int:
        return len(self.db.snapshot().by(tables.ENDPOINT_SETS, "cluster", ClusterName(cluster)))

    def addresses(self, cluster: str) -> set[str]:
        rows = self.db.snapshot().by(tables.ENDPOINT_SETS, "cluster", ClusterName(cluster))
        return {each.address for row in rows for each in row.endpoints}

    def exports(self) -> list[str]:
        return sorted(f"{row.cluster}:{row.name}" for row in self.db.snapshot().all(tables.EXPORTS))


@asynccontextmanager
async def following(
    peers: Peers,
    *,
    kinds: Any = ("services", "serviceexports"),
    lifetime: float = 600.0,
    most: Any = 255,
    state: Path | None = None,
    timings: FollowerTimings = QUICK,
    limits: Limits = RECORD_LIMITS,
    db: Database | None = None,
    own: ClusterSection = OWN,
    **more: Any,
) -> AsyncIterator[Following]:
    refused = (tables.REFUSED_RECORDS, tables.PEER_REFUSALS)
    db = db or Database(tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS, tables.FAULTS, *refused)
    section = ClustersetSection(
        directory=str(peers.folder),
        state=str(state or ""),
        cache_lifetime=lifetime,
        max_connected_clusters=most,
        **more,
    )
    follower = Follower(db, cluster=own, section=section, kinds=kinds, timings=timings, limits=limits)
    task = asyncio.create_task(follower.run())
    try:
        yield Following(db, follower)
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


async def configure(etcd: Session, name: str, number: int, **capabilities: Any) -> None:
    record = {"syncedCanaries": True, "maxConnectedClusters": 255, "serviceExportsEnabled": True} | capabilities
    config = {"id": number, "capabilities": {key: value for key, value in record.items() if value is not None}}
    await etcd.put(f"cilium/cluster-config/{name}", json.dumps(config).encode())


async def canaries(etcd: Session, name: str) -> None:
    """All of it is written; and a publisher lives, without which a peer is silent after 20 s."""
    await etcd.put(keys.HEARTBEAT, b"2026-11-21T00:00:00Z")
    for kind in ("services", "serviceexports"):
        await etcd.put(f"cilium/synced/{name}/cilium/state/{kind}/v1", b"2026-11-21T00:00:00Z")


async def service(etcd: Session, cluster: str, name: str, /, *addresses: str, number: int, **fields: Any) -> None:
    namespace, short = name.split("/")
    backends = {address: {"http": {"Protocol": "TCP", "Port": 8080}} for address in addresses}
    record = {"cluster": cluster, "namespace": namespace, "name": short, "backends": backends, "shared": True}
    value = json.dumps(record | {"clusterID": number} | fields).encode()
    await etcd.put(f"cilium/state/services/v1/{cluster}/{name}", value)


async def export(etcd: Session, cluster: str, name: str, /, **fields: Any) -> None:
    namespace, short = name.split("/")
    record: dict[str, Any] = {"cluster": cluster, "namespace": namespace, "name": short, "type": "ClusterSetIP"}
    record |= {"exportCreationTimestamp": "2026-01-01T00:00:00Z", "sessionAffinity": "None", "ports": []}
    await etcd.put(f"cilium/state/serviceexports/v1/{cluster}/{name}", json.dumps(record | fields).encode())


async def announce(etcd: Session, name: str, number: int, **capabilities: Any) -> None:
    await configure(etcd, name, number, **capabilities)
    await canaries(etcd, name)
