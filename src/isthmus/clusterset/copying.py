"""Copies the records of peers into the own etcd, so that a thousand agents make one connection each.

A mirror is a follower whose rows are the records as they came, and a owned per peer and kind that they are put on.
All that a follower does of failures is done here too, but for one: copies of a peer that is away stay, and its
description has the time since when; how long they are good for is up to their readers. A peer that leaves or is
refused takes its copies along; bad records are not copied.

What readers see, in this order: the peer's configuration marked ``cached``, the copies, the canary. There is one
mirror at a time: it holds a key under a lease, and starts over when it loses that, as it does when the store is wiped.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from isthmus import logs
from isthmus.clusterset import decoding, identity, keys
from isthmus.clusterset.admission import Admission
from isthmus.clusterset.cache import Cache, Known
from isthmus.clusterset.decoding import wall_clock
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.follower import Follower
from isthmus.clusterset.identity import ClusterConfig
from isthmus.clusterset.owned_keys import OwnedKeys
from isthmus.clusterset.publishing import KINDS
from isthmus.clusterset.sinks import ROWS, Form, Forms
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.etcd import Compare, EtcdError, Lease, LeaseGone, Put, Session
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.tables import CLUSTERS
from isthmus.reflector import Expired, Transient
from isthmus.statedb import Backoff, Database, Reader, Retry, Table
from isthmus.times import timestamp

log = logs.get("mirror")

LOCK_TTL: Final = 15
FAREWELL: Final = 1.0
"""Seconds that giving the turn back may take at our end."""
RETRY: Final = Backoff(0.1, 5.0)


class Copy(Struct, frozen=True, gc=False):
    """A record of a peer as it came, found good."""

    cluster: ClusterName
    name: ServiceName
    value: bytes


CopyTable = Table[tuple[ClusterName, ServiceName], Copy]


def _table(kind: RecordKind) -> CopyTable:
    return CopyTable(
        f"copies_{kind}",
        Copy,
        key=lambda row: (row.cluster, row.name),
        indexes={"cluster": lambda row: (row.cluster,)},
    )


COPIES: Final[Mapping[RecordKind, CopyTable]] = {kind: _table(kind) for kind in KINDS}


def _form(kind: RecordKind) -> Form:
    table = COPIES[kind]

    def decode(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Copy | None:
        good = ROWS[kind].decode(value, admission, cluster_id, name)
        return Copy(admission.cluster, name, value) if good is not None else None

    def rows(reader: Reader, cluster: ClusterName) -> list[Copy]:
        return reader.by(table, "cluster", cluster)

    return Form(table, decode, key=lambda cluster, name: (cluster, name), rows=rows)


FORMS: Final[Forms] = {kind: _form(kind) for kind in KINDS}


Beside = Callable[[Database], Coroutine[Any, Any, None]]


async def _nothing(db: Database) -> None:
    """Beside the mirroring nothing is done."""


class Mirror:
    """Mirrors the peers of a configuration directory. :meth:`run` never returns.

    ``db`` has the tables of this turn, None while another mirrors; ``beside`` is run with them as long.
    """

    def __init__(
        self, session: Session, *, cluster: ClusterSection, section: ClustersetSection, beside: Beside = _nothing
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._section = structs.replace(section, cache_lifetime=0.0)  # that of copies is for who reads them
        self._beside = beside
        self._identity = f"{socket.gethostname()}-{os.getpid()}"
        self.outcome = "has not run"
        self.standing_by = False
        self.db: Database | None = None

    def __repr__(self) -> str:
        return f"<Mirror of {self._cluster.name}: {self.outcome}>"

    async def run(self) -> None:
        """Wait for our turn, mirror, and start over when the turn is lost."""
        retry = Retry(RETRY)
        while True:
            try:
                lease = await self._turn()
                retry.succeeded()
                try:
                    await self._mirror(lease)
                finally:
                    self.db = None
                    await _give_back(lease)
            except (Transient, Expired, EtcdError) as why:
                self.outcome = f"cannot mirror: {why}"
                log.warning("cannot mirror", why=str(why), attempt=retry.failed())
                await retry.pause()

    async def _turn(self) -> Lease:
        """Become the one mirror."""
        lease = await self._session.grant_lease(LOCK_TTL)
        mine = Put(keys.MIRROR, self._identity.encode(), lease.id)
        try:
            while not (held := await self._session.txn([Compare(keys.MIRROR, "version", "==", 0)], [mine])).succeeded:
                self.standing_by, self.outcome = True, "waiting for another mirror to end"
                await self._gone(held.revision)
                await lease.renew()
        finally:
            self.standing_by = False
        return lease

    async def _gone(self, revision: int) -> None:
        """Return when the key of the turn was deleted, or after a third of our lease."""
        try:
            async with asyncio.timeout(LOCK_TTL / 3):
                async for batch in self._session.watch(keys.MIRROR, revision + 1):
                    if any(event.kv is None for event in batch.events):
                        return
        except TimeoutError:
            return

    async def _mirror(self, lease: Lease) -> None:
        """Mirror while the lease lasts."""
        held = await _Held.read(self._session)
        db = self.db = Database(CLUSTERS, *COPIES.values())
        follower = Follower(db, cluster=self._cluster, section=self._section, kinds=KINDS, forms=FORMS, cache=held)
        writer = _Writer(self._session, db, follower, held=held.clusters)
        self.outcome = "mirroring"
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(part) for part in (follower.run(), writer.run(), self._beside(db))]
            try:
                await lease.keep()
            except LeaseGone as gone:
                why = str(gone)
                for task in work:
                    task.cancel()
        raise Transient(f"the turn is lost: {why}")


async def _give_back(lease: Lease) -> None:
    """Let the next mirror begin at once; where the store cannot be reached it waits for the lease."""
    with suppress(Transient, EtcdError, TimeoutError):
        async with asyncio.timeout(FAREWELL):
            await lease.revoke()


class _Held(Cache):
    """What the own etcd holds of peers from an earlier mirror: it is the cache, so that nothing is lost meanwhile."""

    def __init__(self, clusters: set[ClusterName]) -> None:
        super().__init__("")
        self.clusters = clusters
        self.known: dict[tuple[RecordKind, ClusterName], Known] = {}

    @classmethod
    async def read(cls, session: Session) -> _Held:
        """Read it."""
        found = (keys.mirrored(kv.key.removeprefix(keys.SYNCED)) for kv in (await session.list(keys.SYNCED)).kvs)
        held = cls({cluster for cluster in found if cluster is not None})
        for cluster in held.clusters:
            if (config := await _config(session, cluster)) is not None:
                away = await _away(session, cluster)
                for kind in KINDS:
                    held.known[kind, cluster] = Known(config, await _copies(session, kind, cluster), away)
        return held

    def load(self, kind: RecordKind, cluster: ClusterName) -> Known | None:
        """What the own etcd held when the mirror began."""
        return self.known.get((kind, cluster))


async def _config(session: Session, cluster: ClusterName) -> ClusterConfig | None:
    """The configuration that was republished of a peer, as the peer published it."""
    kv = await session.get(keys.config(cluster))
    try:
        config = identity.decode_config(kv.value) if kv is not None else None
    except RecordError:
        return None
    if config is None:
        return None
    return structs.replace(config, capabilities=structs.replace(config.capabilities, cached=False))


async def _away(session: Session, cluster: ClusterName) -> float:
    """For how many seconds an earlier mirror had not reached the peer."""
    kv, now = await session.get(keys.description(cluster)), wall_clock()
    since = identity.decode_description(kv.value, now=now).away_since(now) if kv is not None else None
    return (now - since).total_seconds() if since is not None else 0.0


async def _copies(session: Session, kind: RecordKind, cluster: ClusterName) -> list[Copy]:
    prefix = keys.prefix(kind, cluster, cached=True)
    kvs = (await session.list(prefix)).kvs
    return [Copy(cluster, ServiceName(kv.key.removeprefix(prefix)), kv.value) for kv in kvs]


class _Writer:
    """Keeps the own etcd as the follower's tables are."""

    def __init__(self, session: Session, db: Database, follower: Follower, *, held: Iterable[ClusterName]) -> None:
        self._session = session
        self._db = db
        self._follower = follower
        self._present = set(held)
        self._owned: dict[tuple[RecordKind, ClusterName], OwnedKeys] = {}
        self._written: dict[str, bytes] = {}
        self._whole: set[tuple[RecordKind, ClusterName]] = set()

    async def run(self) -> None:
        """Write what changed, for ever; after a failure look at everything again."""
        copies = {kind: self._db.changes(table) for kind, table in COPIES.items()}
        clusters = self._db.changes(CLUSTERS)
        retry = Retry(RETRY)
        while True:
            for kind, changes in copies.items():
                for (cluster, name), _, row in changes.next()[1]:
                    self._owned_keys(kind, cluster).want(keys.copy(kind, cluster, name), row.value if row else None)
            clusters.next()
            try:
                await self._write()
                retry.succeeded()
            except (Transient, Expired, EtcdError) as why:
                log.warning("cannot copy", why=str(why), attempt=retry.failed())
                self._written.clear()
                self._whole.clear()
                await retry.pause()
                continue
            await self._db.until(lambda _: bool(clusters.unread) or any(changes.unread for changes in copies.values()))

    async def _write(self) -> None:
        rows = {row.name: row for row in self._db.snapshot().all(CLUSTERS) if not row.own}
        for row in rows.values():
            if row.state != "refused":
                await self._copy(row)
        for cluster in self._present - {row.name for row in rows.values() if row.state != "refused"}:
            await self._withdraw(cluster)

    async def _copy(self, row: Cluster) -> None:
        """Configuration, copies, canaries of a peer."""
        if said := self._follower.published(row.name):
            self._present.add(row.name)
            try:
                await self._put(keys.config(row.name), republished(said))
            except RecordError as why:
                log.warning("configuration not copied", cluster=row.name, why=str(why))
            away = row.since if row.state == "stale" else ""
            silent = row.since if row.state == "silent" else ""
            description = identity.Description(
                row.network, row.region, row.zone, row.gateways, row.version, away, silent
            )
            await self._put(keys.description(row.name), identity.encode(description))
        for kind in KINDS:
            await self._copy_kind(kind, row)

    async def _copy_kind(self, kind: RecordKind, row: Cluster) -> None:
        owned = self._owned_keys(kind, row.name)
        if failed := await owned.flush():
            raise Transient(next(iter(failed.values())))
        fresh = kind in row.synced and row.state in ("listing", "ready", "silent")
        if fresh and (kind, row.name) not in self._whole:
            await owned.settle(prune=True)
            now = timestamp(wall_clock()).encode()
            await self._session.put(keys.canary(kind, row.name, cached=True), now)
            self._whole.add((kind, row.name))

    async def _withdraw(self, cluster: ClusterName) -> None:
        """A peer has left or is refused: nothing of it stays."""
        await self._session.delete(keys.config(cluster))
        await self._session.delete(keys.description(cluster))
        for kind in KINDS:
            await self._session.delete(keys.canary(kind, cluster, cached=True))
            await self._session.delete_prefix(keys.prefix(kind, cluster, cached=True))
            self._owned.pop((kind, cluster), None)
            self._whole.discard((kind, cluster))
        for key in (keys.config(cluster), keys.description(cluster)):
            self._written.pop(key, None)
        self._present.discard(cluster)

    async def _put(self, key: str, value: bytes) -> None:
        if self._written.get(key) != value:
            await self._session.put(key, value)
            self._written[key] = value

    def _owned_keys(self, kind: RecordKind, cluster: ClusterName) -> OwnedKeys:
        if (owned := self._owned.get((kind, cluster))) is None:
            prefix = keys.prefix(kind, cluster, cached=True)
            owned = self._owned[kind, cluster] = OwnedKeys(self._session, [prefix])
        return owned


def republished(said: bytes) -> bytes:
    """A peer's configuration as a mirror republishes it: every field, and the mark of a copy with canaries.

    RecordError where what we do not know of it is no JSON that can be written again.
    """
    config = decoding.decode(said, _anything, limit=identity.LIMIT)
    capabilities = {**(config.get("capabilities") or {}), "syncedCanaries": True, "cached": True}
    try:
        return msgspec.json.encode(config | {"capabilities": capabilities})
    except RecursionError:
        raise RecordError("it is nested too deep") from None


_anything = msgspec.json.Decoder(dict[str, Any])
