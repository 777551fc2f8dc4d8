"""Copying of peers' records into the own etcd, so that a thousand agents make one connection each.

A mirror is a follower whose rows are the records as received, with an ``OwnedKeys`` per peer and kind that writes
them. It handles failures as every follower does, with one exception: copies of a peer that cannot be reached stay, and
its description states since when. Readers decide how long they use such copies. Copies of a peer that leaves or is
refused are deleted; invalid records are not copied.

Readers see, in this order: the peer's configuration marked ``cached``, the copies, the canary. There is one
mirror at a time: it holds a key under a lease, and starts over when it loses the lease or the store is wiped.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from isthmus import logs
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.peers.cache import Cache, Known
from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.peers.timings import TIMINGS, FollowerTimings
from isthmus.clusterset.publishing.owned_keys import OwnedKeys
from isthmus.clusterset.publishing.targets import KINDS, WITH_IDENTITIES
from isthmus.clusterset.records import decoding, identity, keys, slices
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.decoding import wall_clock
from isthmus.clusterset.records.forms import ROWS, Decoded, Form, Forms
from isthmus.clusterset.records.identity import ClusterConfig
from isthmus.config import ClusterSection, ClustersetSection
from isthmus.etcd import Compare, EtcdError, Lease, LeaseGone, Put, Session
from isthmus.model.clusters import Cluster
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.tables import CLUSTERS, FAULTS
from isthmus.reflector import Expired, Transient
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Database, Reader, Retry, Table
from isthmus.times import timestamp

log = logs.get("mirror")

LOCK_TTL: Final = 15
"""TTL of the lock's lease in seconds: the time after which another mirror replaces one that was killed."""
FAREWELL: Final = 1.0
"""Time limit in seconds for releasing the lock when the process ends."""
RETRY: Final = Backoff(0.1, 5.0)


class Copy(Struct, frozen=True, gc=False):
    """A valid record of a peer, as received."""

    cluster: ClusterName
    name: ServiceName
    value: bytes
    stored: Literal["endpointslices", ""] = ""
    """The kind in its key, if it is another one than that of its table."""


CopyTable = Table[tuple[ClusterName, ServiceName], Copy]


def _table(kind: RecordKind) -> CopyTable:
    return CopyTable(
        f"copies_{kind}",
        Copy,
        key=lambda row: (row.cluster, row.name),
        indexes={"cluster": lambda row: (row.cluster,)},
    )


COPIES: Final[Mapping[RecordKind, CopyTable]] = {kind: _table(kind) for kind in WITH_IDENTITIES}


def _form(kind: RecordKind, read: Form) -> Form:
    table = COPIES[kind]

    def decode(value: bytes, admission: Admission, cluster_id: int, name: ServiceName) -> Decoded:
        decoded = read.decode(value, admission, cluster_id, name)
        row = Copy(admission.cluster, name, value, read.stored) if decoded.row is not None else None
        return structs.replace(decoded, row=row)

    def rows(reader: Reader, cluster: ClusterName) -> list[Copy]:
        return reader.by(table, "cluster", cluster)

    return Form(
        table,
        decode,
        key=lambda cluster, name: (cluster, name),
        rows=rows,
        part=lambda row, units, whole: row,  # copied whole: each reader applies its own quota
        usage=lambda row: (row.name, len(row.value)),
        parse=read.parse,
        stored=read.stored,
        slices=_form(kind, read.slices) if read.slices is not None else None,
    )


FORMS: Final[Forms] = {kind: _form(kind, ROWS[kind]) for kind in WITH_IDENTITIES}


Began = Callable[[Database], None]


class Mirror:
    """Mirror of the peers of a configuration directory. :meth:`run` never returns.

    ``db`` has the tables while this process holds the lock, otherwise None. ``began`` is called with it when the lock
    is acquired, ``ended`` when it is lost.
    """

    def __init__(
        self,
        session: Session,
        *,
        cluster: ClusterSection,
        section: ClustersetSection,
        began: Began = lambda db: None,
        ended: Callable[[], None] = lambda: None,
        timings: FollowerTimings = TIMINGS,
        lock_ttl: int = LOCK_TTL,
        identities: bool = False,
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._section = structs.replace(section, cache_lifetime=0.0)  # readers decide how long they use copies
        self._began = began
        self._ended = ended
        self._timings = timings
        self._lock_ttl = lock_ttl
        self._kinds: Sequence[RecordKind] = WITH_IDENTITIES if identities else KINDS
        self._identity = f"{socket.gethostname()}-{os.getpid()}"
        self.outcome = "has not run"
        self.standing_by = False
        self.problem = "the own etcd has not answered yet"
        """Reason why the lock cannot be acquired; empty if this mirror or another one holds it."""
        self.db: Database | None = None

    def __repr__(self) -> str:
        return f"<Mirror of {self._cluster.name}: {self.outcome}>"

    async def run(self) -> None:
        """Wait for the lock, mirror, and start over when the lock is lost."""
        retry = Retry(RETRY)
        while True:
            try:
                lease = await self._lock()
                retry.succeeded()
                try:
                    await self._mirror(lease)
                finally:
                    self.db = None
                    self._ended()
                    await _release(lease)
            except (Transient, Expired, EtcdError) as error:
                self.problem = self.outcome = f"cannot mirror: {error}"
                log.warning("cannot mirror", why=str(error), attempt=retry.failed())
                await retry.pause()

    async def _lock(self) -> Lease:
        """Acquire the lock of the one mirror of an etcd."""
        lease = await self._session.grant_lease(self._lock_ttl)
        mine = Put(keys.MIRROR, self._identity.encode(), lease.id)
        try:
            while not (locked := await self._session.txn([Compare(keys.MIRROR, "version", "==", 0)], [mine])).succeeded:
                self.standing_by, self.outcome, self.problem = True, "waiting for another mirror to end", ""
                await self._wait_for_release(locked.revision)
                await lease.renew()
        finally:
            self.standing_by = False
        return lease

    async def _wait_for_release(self, revision: int) -> None:
        """Wait until the lock's key is deleted, at most a third of our lease."""
        try:
            async with asyncio.timeout(self._lock_ttl / 3):
                async for batch in self._session.watch(keys.MIRROR, revision + 1, exact=True):
                    if any(event.kv is None for event in batch.events):
                        return
        except TimeoutError:
            return

    async def _mirror(self, lease: Lease) -> None:
        """Mirror while the lease lasts."""
        stored = await _StoredCopies.read(self._session, self._kinds)
        db = self.db = Database(CLUSTERS, FAULTS, *(COPIES[kind] for kind in self._kinds))
        follower = Follower(
            db,
            cluster=self._cluster,
            section=self._section,
            kinds=self._kinds,
            forms=FORMS,
            cache=stored,
            timings=self._timings,
        )
        writer = _Writer(self._session, db, follower, stored=stored.clusters, kinds=self._kinds)
        self.outcome, self.problem = "mirroring", ""
        async with Tasks() as tasks:
            tasks.start("follower", follower.run)
            tasks.start("writer", writer.run)
            self._began(db)
            try:
                await lease.keep()
            except LeaseGone as error:
                reason = str(error)
                tasks.cancel()
        raise Transient(f"the turn is lost: {reason}")


async def _release(lease: Lease) -> None:
    """Release the lock, so that the next mirror starts at once. If this fails, it starts when the lease expires."""
    with suppress(Transient, EtcdError, TimeoutError):
        async with asyncio.timeout(FAREWELL):
            await lease.revoke()


class _StoredCopies(Cache):
    """Copies that an earlier mirror left in the own etcd. They serve as the cache, so a restart withdraws nothing."""

    def __init__(self, clusters: set[ClusterName]) -> None:
        super().__init__("")
        self.clusters = clusters
        self.known: dict[tuple[RecordKind, ClusterName], Known] = {}

    @classmethod
    async def read(cls, session: Session, kinds: Sequence[RecordKind]) -> _StoredCopies:
        """Read the stored copies from the own etcd; those of a cluster whose copies are unreadable are skipped."""
        clusters = (keys.mirrored(kv.key.removeprefix(keys.SYNCED)) for kv in (await session.list(keys.SYNCED)).kvs)
        stored = cls({cluster for cluster in clusters if cluster is not None})
        for cluster in stored.clusters:
            try:
                await stored._read_cluster(session, cluster, kinds)
            except (Transient, Expired, EtcdError):
                raise
            except Exception:  # unreadable copies of one cluster must not keep the others from being read
                log.exception("stored copies are not used", cluster=cluster)
        return stored

    async def _read_cluster(self, session: Session, cluster: ClusterName, kinds: Sequence[RecordKind]) -> None:
        if (config := await _config(session, cluster)) is not None:
            now = wall_clock()
            described = await _description(session, cluster, now)
            lost_at = described.away_since(now)
            age = (now - lost_at).total_seconds() if lost_at is not None else 0.0
            described = structs.replace(described, away="", silent="")
            for kind in kinds:
                copies = [copy for each in stored_kinds(kind) for copy in await _copies(session, each, cluster)]
                self.known[kind, cluster] = Known(config, copies, age, described)

    def load(self, kind: RecordKind, cluster: ClusterName) -> Known | None:
        """Return the state of a peer that the own etcd held when the mirror started."""
        return self.known.get((kind, cluster))


async def _config(session: Session, cluster: ClusterName) -> ClusterConfig | None:
    """Return a peer's configuration as the peer published it: the mirror's copy without the mark ``cached``."""
    kv = await session.get(keys.config(cluster))
    try:
        config = identity.decode_config(kv.value) if kv is not None else None
    except RecordError:
        return None
    if config is None:
        return None
    return structs.replace(config, capabilities=structs.replace(config.capabilities, cached=False))


async def _description(session: Session, cluster: ClusterName, now: datetime) -> identity.Description:
    """Return the description of a peer that an earlier mirror published, with the time since which it was away."""
    kv = await session.get(keys.description(cluster))
    return identity.decode_description(kv.value, now=now) if kv is not None else identity.Description()


def stored_kinds(kind: RecordKind) -> set[RecordKind]:
    """The kinds in the keys of records of a kind: endpoints may be published in two ways."""
    return {kind, slices.KIND} if kind == "services" else {kind}


def stored_kind(kind: RecordKind, published: bytes) -> RecordKind:
    """The one of them that a cluster publishes, by its configuration."""
    if kind == "services" and identity.decode_config(published).capabilities.slices_only:
        return slices.KIND
    return kind


async def _copies(session: Session, kind: RecordKind, cluster: ClusterName) -> list[Copy]:
    prefix = keys.prefix(kind, cluster, cached=True)
    kvs = (await session.list(prefix)).kvs
    stored = kind if kind == slices.KIND else ""
    return [Copy(cluster, ServiceName(kv.key.removeprefix(prefix)), kv.value, stored) for kv in kvs]


class _Writer:
    """Writer of the follower's tables to the own etcd."""

    def __init__(
        self,
        session: Session,
        db: Database,
        follower: Follower,
        *,
        stored: Iterable[ClusterName],
        kinds: Sequence[RecordKind],
    ) -> None:
        self._kinds = kinds
        self._session = session
        self._db = db
        self._follower = follower
        self._present = set(stored)
        self._owned: dict[tuple[RecordKind, ClusterName], OwnedKeys] = {}
        self._written: dict[str, bytes] = {}
        self._whole: set[tuple[RecordKind, ClusterName]] = set()

    async def run(self) -> None:
        """Write changes, for ever. After a failure or a restart, compare all keys with the store again."""
        self._written.clear()
        self._whole.clear()
        self._owned.clear()
        copies = {kind: self._db.changes(COPIES[kind]) for kind in self._kinds}
        clusters = self._db.changes(CLUSTERS)
        retry = Retry(RETRY)
        while True:
            for kind, changes in copies.items():
                for (cluster, name), old, row in changes.next()[1]:
                    for copy in (old, row):  # a record of another kind may have the name now
                        if copy is not None:
                            stored: RecordKind = copy.stored or kind
                            value = row.value if row is not None and copy is row else None
                            self._owned_keys(stored, cluster).want(keys.copy(stored, cluster, name), value)
            clusters.next()
            try:
                await self._write()
                retry.succeeded()
            except (Transient, Expired, EtcdError) as error:
                log.warning("cannot copy", why=str(error), attempt=retry.failed())
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
        """Write configuration, description, copies and canaries of a peer."""
        if published := self._follower.published(row.name):
            self._present.add(row.name)
            try:
                await self._put(keys.config(row.name), republished(published))
            except RecordError as error:
                log.warning("configuration not copied", cluster=row.name, why=str(error))
            away = row.since if row.state == "stale" else ""
            silent = row.since if row.state == "silent" else ""
            description = identity.Description(
                network=row.network,
                region=row.region,
                zone=row.zone,
                gateways=row.gateways,
                version=row.version,
                away=away,
                silent=silent,
                labels=tuple(f"{key}={value}" for key, value in row.labels),
                drains=row.drains,
            )
            await self._put(keys.description(row.name), identity.encode(description))
        for kind in self._kinds:
            await self._copy_kind(kind, row)

    async def _copy_kind(self, kind: RecordKind, row: Cluster) -> None:
        for each in stored_kinds(kind):
            if failed := await self._owned_keys(each, row.name).flush():
                raise Transient(next(iter(failed.values())))
        published = self._follower.published(row.name)
        if not published or kind not in row.synced or row.state not in ("listing", "ready", "silent"):
            return
        stored = stored_kind(kind, published)
        if (stored, row.name) not in self._whole:
            for other in stored_kinds(kind) - {stored}:  # the peer published it earlier
                await self._withdraw_kind(other, row.name)
            await self._owned_keys(stored, row.name).settle(prune=True)
            now = timestamp(wall_clock()).encode()
            await self._session.put(keys.canary(stored, row.name, cached=True), now)
            self._whole.add((stored, row.name))

    async def _withdraw_kind(self, stored: RecordKind, cluster: ClusterName) -> None:
        await self._session.delete(keys.canary(stored, cluster, cached=True))
        await self._session.delete_prefix(keys.prefix(stored, cluster, cached=True))
        self._owned.pop((stored, cluster), None)
        self._whole.discard((stored, cluster))

    async def _withdraw(self, cluster: ClusterName) -> None:
        """Delete all keys of a peer that left or is refused."""
        await self._session.delete(keys.config(cluster))
        await self._session.delete(keys.description(cluster))
        for kind in (*COPIES, slices.KIND):
            await self._withdraw_kind(kind, cluster)
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


def republished(published: bytes) -> bytes:
    """Return a peer's configuration with all its fields, marked as ``cached`` and with canaries.

    If a peer publishes its endpoints in both forms, the mirror copies the service records, and announces these alone.

    RecordError if an unknown field cannot be encoded again.
    """
    config = decoding.decode(published, _anything, limit=identity.LIMIT)
    capabilities = {**(config.get("capabilities") or {}), "syncedCanaries": True, "cached": True}
    if capabilities.get("endpointSlicesExportMode") != identity.SLICES_ONLY:
        capabilities.pop("endpointSlicesExportMode", None)
    try:
        return msgspec.json.encode(config | {"capabilities": capabilities})
    except RecursionError:
        raise RecordError("it is nested too deep") from None


_anything = msgspec.json.Decoder(dict[str, Any])
