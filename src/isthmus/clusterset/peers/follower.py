"""The follower of all peers: one connection per file of the configuration directory.

Each connection writes the rows of its own peer and no others. A new file opens a connection, a changed file reopens it
without touching a row, and a removed file deletes the peer's rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from isthmus import __version__, logs
from isthmus.clusterset.peers.cache import Cache
from isthmus.clusterset.peers.connection import Connection, PeerStats
from isthmus.clusterset.peers.context import Awaited, Context
from isthmus.clusterset.peers.peer_files import Directory, Peer
from isthmus.clusterset.peers.sinks import RECORD_LIMITS
from isthmus.clusterset.peers.timings import TIMINGS, FollowerTimings
from isthmus.clusterset.records.forms import ROWS, Forms
from isthmus.clusterset.records.identity import Ids, label_pairs
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.etcd import Limits
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName
from isthmus.model.sources import of_peer
from isthmus.model.tables import CLUSTERS, PEER_POLICIES, REFUSED_RECORDS
from isthmus.running import Tasks
from isthmus.statedb import Database

log = logs.get("clusterset")


class Follower:
    """Fills the table ``clusters`` and, for each kind of record, its table. :meth:`run` never returns.

    ``limits``: bounds of the records of one kind of one peer.
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
        own = ClusterName(cluster.name)
        chosen = {kind: forms[kind] for kind in kinds}
        cache = cache or Cache(section.state)
        self._context = Context(db, chosen, Ids(own, cluster.id), section, timings, limits, cache)
        self._directory = Directory(section.directory, own=own)
        self._connections: dict[ClusterName, Connection] = {}
        self._tasks: dict[ClusterName, asyncio.Task[None]] = {}
        with db.write() as txn:
            txn.put(CLUSTERS, _own_row(cluster))
        peers = self._directory.read()
        self._context.ids.pin(_pins(peers))
        self._reconsidered = self._context.ids.given_up
        for peer in peers.values():
            connection = self._connections[peer.name] = self._connection(peer, awaited=True)
            connection.known.recall()

    def __repr__(self) -> str:
        return f"<Follower {', '.join(map(repr, self._connections.values())) or 'of nobody'}>"

    def stats(self) -> dict[ClusterName, PeerStats]:
        """Return the state and counters of each peer."""
        return {name: connection.stats() for name, connection in self._connections.items()}

    def published(self, name: ClusterName) -> bytes:
        """Return the configuration that a peer published; empty if the peer is not followed."""
        connection = self._connections.get(name)
        return connection.published if connection is not None else b""

    def problems(self) -> tuple[str, ...]:
        """Return one sentence for each cached state of a peer that cannot be read or written."""
        return self._context.cache.problems()

    async def run(self) -> None:
        """Follow, for ever."""
        if PEER_POLICIES.name in self._context.db.tables:
            # Otherwise the records of a distrusted peer would be used for a moment after each start.
            await self._context.db.until(lambda snapshot: snapshot.initialized(PEER_POLICIES))
            for name, connection in self._connections.items():
                connection.known.distrust(self._distrusted(name))
        self._tasks.clear()
        async with Tasks() as tasks:
            if PEER_POLICIES.name in self._context.db.tables:
                tasks.start("policies", self._follow_policies)
            for name in self._connections:
                self._start(tasks, name)
            tasks.start("directory", lambda: self._follow_directory(tasks))

    def _start(self, tasks: Tasks, name: ClusterName) -> None:
        self._tasks[name] = tasks.start(name, self._connections[name].run)

    async def _follow_directory(self, tasks: Tasks) -> None:
        while True:
            await asyncio.sleep(self._context.timings.look_every)
            await self._look(tasks)

    async def _follow_policies(self) -> None:
        """Apply changes of administrators' trust in peers at once."""
        changes = self._context.db.changes(PEER_POLICIES)
        while True:
            changes.next()
            for name, connection in self._connections.items():
                connection.known.distrust(self._distrusted(name))
            await changes.wait()

    def _distrusted(self, name: ClusterName) -> bool:
        if PEER_POLICIES.name not in self._context.db.tables:
            return False
        row = self._context.db.snapshot().get(PEER_POLICIES, name)
        return row is not None and row.distrusted

    async def _look(self, tasks: Tasks) -> None:
        """Compare the directory with what is followed."""
        peers = self._directory.read()
        for name in self._connections.keys() - peers.keys():
            await self._stop(name)
            self._connections.pop(name).known.drain()
            log.info("cluster left", name=name)
        self._context.ids.pin(_pins(peers))
        for name, peer in peers.items():
            connection = self._connections.get(name)
            if connection is None:
                connection = self._connections[name] = self._connection(peer, awaited=False)
                connection.known.distrust(self._distrusted(name))
            elif connection.peer == peer:
                continue
            await self._stop(name)
            connection.known.peer = peer
            self._start(tasks, name)
        for name, connection in self._connections.items():
            if connection.known.facts.file_problem != (problem := self._directory.problem(name)):
                connection.known.record(file_problem=problem)
        while self._reconsidered != self._context.ids.given_up:
            # A reconsidered peer may release an id in turn. This ends: a pin decides, and a holder keeps its id.
            self._reconsidered = self._context.ids.given_up
            for connection in self._connections.values():
                connection.known.reconsider()

    async def _stop(self, name: ClusterName) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _connection(self, peer: Peer, *, awaited: bool) -> Connection:
        """Return a connection, not running yet. Tables await only peers that exist at the start of the process."""
        return Connection(self._context, peer, self._awaited(peer.name) if awaited else Awaited())

    def _awaited(self, peer: ClusterName) -> Awaited:
        db = self._context.db
        source = of_peer(peer)
        records = {kind: db.initializer(form.table, source) for kind, form in self._context.forms.items()}
        judged = db.initializer(REFUSED_RECORDS, source) if REFUSED_RECORDS.name in db.tables else None
        return Awaited(records, db.initializer(CLUSTERS, source), judged)


def _pins(peers: Mapping[ClusterName, Peer]) -> dict[ClusterName, int]:
    return {name: peer.id for name, peer in peers.items() if peer.id}


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
        service_ranges=cluster.service_ranges,
        node_ranges=cluster.node_ranges,
        version=__version__,
        exports_enabled=True,
    )
