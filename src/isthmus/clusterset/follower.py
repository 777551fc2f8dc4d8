"""Follows the other clusters: one connection per file of the configuration directory.

Rows of one peer are written by its connection alone, and only its own: a peer speaks for itself. A file that appears
is connected to, one that changes is reconnected without touching a row, one that goes takes its peer's rows along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from isthmus import __version__, logs
from isthmus.clusterset.cache import Cache
from isthmus.clusterset.connection import Connection, PeerStats
from isthmus.clusterset.identity import Ids, label_pairs
from isthmus.clusterset.peers import Directory, Peer
from isthmus.clusterset.sinks import RECORD_LIMITS, ROWS, Forms
from isthmus.clusterset.timings import TIMINGS, FollowerTimings
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.etcd import Limits
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import of_peer
from isthmus.model.tables import CLUSTERS, PEER_POLICIES
from isthmus.statedb import Database

log = logs.get("clusterset")

AFTER_A_BUG: Final = 5.0


class Follower:
    """Fills clusters, and per kind exports (serviceexports) and endpoint_sets (services). :meth:`run` never returns.

    ``limits``: most records that are kept of one kind of one peer.
    """

    def __init__(
        self,
        db: Database,
        *,
        cluster: ClusterSection,
        section: ClustersetSection,
        kinds: Collection[RecordKind],
        forms: Forms = ROWS,
        cache: Cache | None = None,
        timings: FollowerTimings = TIMINGS,
        limits: Limits = RECORD_LIMITS,
    ) -> None:
        self._db = db
        self._section = section
        self._timings = timings
        self._limits = limits
        self._forms = {kind: forms[kind] for kind in kinds}
        own = ClusterName(cluster.name)
        self._ids = Ids(own, cluster.id)
        self._cache = cache or Cache(section.state)
        self._directory = Directory(section.directory, own=own)
        self._connections: dict[ClusterName, Connection] = {}
        self._tasks: dict[ClusterName, asyncio.Task[None]] = {}
        with db.write() as txn:
            txn.put(CLUSTERS, _own_row(cluster))
        peers = self._directory.read()
        self._ids.pin(_pins(peers))
        self._reconsidered = self._ids.given_up
        for peer in peers.values():
            connection = self._connections[peer.name] = self._connection(peer, awaited=True)
            connection.known.restore()

    def __repr__(self) -> str:
        return f"<Follower {', '.join(map(repr, self._connections.values())) or 'of nobody'}>"

    def stats(self) -> dict[ClusterName, PeerStats]:
        """How each peer does."""
        return {name: connection.stats() for name, connection in self._connections.items()}

    def published(self, name: ClusterName) -> bytes:
        """The configuration that a peer published, while it is followed; empty where there is none."""
        connection = self._connections.get(name)
        return connection.published if connection is not None else b""

    async def run(self) -> None:
        """Follow, for ever."""
        if PEER_POLICIES.name in self._db.tables:
            # Without this the records of a distrusted peer would count for a moment whenever the process starts.
            await self._db.until(lambda snapshot: snapshot.initialized(PEER_POLICIES))
        async with asyncio.TaskGroup() as tasks:
            if PEER_POLICIES.name in self._db.tables:
                tasks.create_task(self._follow_policies(), name="policies of peers")
            for name, connection in self._connections.items():
                self._tasks[name] = tasks.create_task(_supervised(connection), name=f"peer {name}")
            while True:
                await asyncio.sleep(self._timings.look_every)
                await self._look(tasks)

    async def _follow_policies(self) -> None:
        """Trust and distrust peers as administrators say, at once."""
        changes = self._db.changes(PEER_POLICIES)
        while True:
            for name, _, row in changes.next()[1]:
                if (connection := self._connections.get(name)) is not None:
                    connection.known.distrust(row is not None and row.distrusted)
            await changes.wait()

    def _distrusted(self, name: ClusterName) -> bool:
        if PEER_POLICIES.name not in self._db.tables:
            return False
        row = self._db.snapshot().get(PEER_POLICIES, name)
        return row is not None and row.distrusted

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Compare the directory with what is followed."""
        peers = self._directory.read()
        for name in self._connections.keys() - peers.keys():
            await self._stop(name)
            self._connections.pop(name).known.drain()
            log.info("cluster left", name=name)
        self._ids.pin(_pins(peers))
        for name, peer in peers.items():
            connection = self._connections.get(name)
            if connection is None:
                connection = self._connections[name] = self._connection(peer, awaited=False)
                connection.known.distrust(self._distrusted(name))
            elif connection.peer == peer:
                continue
            await self._stop(name)
            connection.known.peer = peer
            self._tasks[name] = tasks.create_task(_supervised(connection), name=f"peer {name}")
        for name, connection in self._connections.items():
            if connection.known.facts.file_problem != (problem := self._directory.problem(name)):
                connection.known.record(file_problem=problem)
        while self._reconsidered != self._ids.given_up:
            # Who is looked at again may give up an id in turn. It ends: a pin decides, and a holder keeps what it has.
            self._reconsidered = self._ids.given_up
            for connection in self._connections.values():
                connection.known.reconsider()

    async def _stop(self, name: ClusterName) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _connection(self, peer: Peer, *, awaited: bool) -> Connection:
        """A connection not yet run. What joins later was in no table before: none waits for it."""
        initializers = (
            {kind: self._db.initializer(form.table, of_peer(peer.name)) for kind, form in self._forms.items()}
            if awaited
            else {}
        )
        return Connection(
            self._db,
            peer,
            forms=self._forms,
            ids=self._ids,
            section=self._section,
            initializers=initializers,
            described=self._db.initializer(CLUSTERS, of_peer(peer.name)) if awaited else None,
            cache=self._cache,
            timings=self._timings,
            limits=self._limits,
        )


def _pins(peers: Mapping[ClusterName, Peer]) -> dict[ClusterName, int]:
    return {name: peer.id for name, peer in peers.items() if peer.id}


async def _supervised(connection: Connection) -> None:
    """Whatever one peer makes us stumble over, the others go on."""
    while True:
        try:
            return await connection.run()
        except Exception:
            log.exception("the connection with a peer failed and is made anew", cluster=connection.name)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from None  # it came while a TaskGroup ended by an error, which hides it
            await asyncio.sleep(AFTER_A_BUG)


def _own_row(cluster: ClusterSection) -> Cluster:
    return Cluster(
        name=ClusterName(cluster.name),
        id=cluster.id,
        own=True,
        state="ready",
        network=cluster.network,
        region=cluster.region,
        zone=cluster.zone,
        labels=label_pairs(cluster.labels),
        gateways=cluster.gateways,
        own_ranges=cluster.pod_ranges + cluster.service_ranges + cluster.node_ranges,
        version=__version__,
        exports_enabled=True,
    )
