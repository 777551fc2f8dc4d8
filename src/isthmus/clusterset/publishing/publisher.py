"""The own cluster in the own etcd: configuration, records, canaries and a heartbeat.

Order matters to readers. The configuration comes first. Records come next, only what changed, and what an earlier
process left and no row wants is pruned. A canary marks a kind's records as whole, so it is written
when every source of RECORDS is complete, everything is written and the store is pruned, and not before.

Records, configuration and canaries have no lease: a publisher that is down withdraws nothing. Only the heartbeat has.
A store that comes back without its data gets everything again in the same order; so does one in which another client
changed or deleted our keys, at once, and then not more often than every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from isthmus import __version__, logs
from isthmus.clusterset.publishing.targets import EVERY, published, records_target, refusals_target
from isthmus.clusterset.records import identity, keys
from isthmus.clusterset.records.signing import NONE, Signing
from isthmus.config import ClusterSection, PublishedEndpoints
from isthmus.etcd import EtcdError, Lease, LeaseGone, Session, WatchEvent
from isthmus.model.names import ClusterName
from isthmus.model.tables import DRAINING, RECORDS, REFUSALS
from isthmus.reflector import Expired, Transient
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Database, Reconciler, ReconcilerStats, Retry
from isthmus.times import timestamp

log = logs.get("publisher")

RENEW_AGAIN: Final = 1.0
"""Seconds to the next try to renew the lease after one that failed."""
RETRY: Final = Backoff(0.1, 5.0)
REFUSALS_RETRY: Final = Backoff(0.1, 60.0)


def _now() -> datetime:
    return datetime.now(UTC)


class PublisherTimings(Struct, frozen=True, gc=False, kw_only=True):
    """Seconds of a publisher. Processes run with the defaults."""

    heartbeat_every: float = 60.0
    """Interval of heartbeats: Cilium's readers reconnect after twice as long without one."""
    heartbeat_ttl: int = 15
    """TTL of the heartbeat's lease. Its end deletes the key, so readers notice at once that no publisher runs."""
    renew_every: float = 5.0
    """Interval of renewals of that lease: a third of its TTL, so that one may fail."""
    signing_every: float = 5.0
    """Interval of looks at the own cluster's key of signatures."""
    after_a_foreign_write: float = 5.0
    """Minimum interval between complete rewrites when another client changes our keys."""


TIMINGS: Final = PublisherTimings()


class PublisherStats(Struct, frozen=True, gc=False):
    """Status of a publisher: its last outcome, a sentence, and its reconcilers."""

    outcome: str
    error: str
    """Reason why the own etcd is not writable; empty if it is."""
    records: ReconcilerStats
    refusals: ReconcilerStats
    """Reports of refused records to the peers that published them. An etcd whose users an earlier release created
    denies these writes until ``isthmus clusters certs`` runs again."""


class Publisher:
    """Publishes RECORDS of a database as one cluster into one etcd. :meth:`run` never returns.

    ``failing`` is called with the keys of records that were tried while some fail. ``signing`` returns the cluster's
    own key of signatures; ``None`` publishes none.
    """

    def __init__(
        self,
        db: Database,
        session: Session,
        cluster: ClusterSection,
        *,
        max_connected_clusters: identity.Most = 255,
        identities: bool = False,
        publish_endpoints: PublishedEndpoints = "services",
        failing: Callable[[Collection[Any]], None] | None = None,
        signing: Callable[[], Signing] | None = None,
        now: Callable[[], datetime] = _now,
        timings: PublisherTimings = TIMINGS,
    ) -> None:
        self._db = db
        self._session = session
        self._name = ClusterName(cluster.name)
        self._section = cluster
        self._signing = signing
        self._now = now
        self._timings = timings
        kinds = published(publish_endpoints, identities=identities)
        self._target = records_target(session, self._name, kinds)
        self._refusals = refusals_target(session, self._name)
        self._identity = {
            keys.config(self._name): identity.encode(
                identity.own_config(cluster, most=max_connected_clusters, publish_endpoints=publish_endpoints)
            ),
            keys.description(self._name): self._description(),
        }
        self._writing_identity = asyncio.Lock()
        self._synced = f"{keys.SYNCED}{self._name}/"
        self._kinds = kinds
        every = dict.fromkeys((*kinds, *keys.SILENT_KINDS))
        self._canaries = [keys.canary(kind, self._name) for kind in every]
        self._lease: Lease | None = None
        self._beat_at: float | None = None
        """Loop time of the last heartbeat under this lease."""
        self.reconciler = Reconciler(db, RECORDS, self._target, failing=failing, backoff=RETRY)
        self.refusals = Reconciler(db, REFUSALS, self._refusals, backoff=REFUSALS_RETRY)
        self.outcome = "has not run"
        self.error = ""
        self.published = False
        """True while the own etcd holds everything; see :meth:`_establish`."""
        self.failures = 0
        """Failures to publish since the start."""

    def __repr__(self) -> str:
        return f"<Publisher of {self._name}: {self.outcome}; {self._target}; {self.reconciler}>"

    def problems(self) -> tuple[str, ...]:
        """Reasons why publishing fails, a sentence each."""
        return (f"cannot publish: {self.error}",) if self.error else ()

    def stats(self) -> PublisherStats:
        """Return the outcome of publishing and the counters of both reconcilers."""
        return PublisherStats(self.outcome, self.error, self.reconciler.stats(), self.refusals.stats())

    async def run(self) -> None:
        """Publish, for ever."""
        async with Tasks() as tasks:
            tasks.start("records", self.reconciler.run)
            tasks.start("refusals", self.refusals.run)
            tasks.start("presence", self._presence)
            tasks.start("drains", self._drains)
            if self._signing is not None:
                tasks.start("signing", self._follow_signing)
            tasks.start("heartbeat", self._heartbeat)

    def _description(self) -> bytes:
        asked = (row.drain for row in self._db.snapshot().all(DRAINING) if row.by == self._name)
        published = [each for each in asked if each.kind != "Cluster" or each.target == self._name]
        signing = self._signing() if self._signing is not None else NONE
        described = identity.own_description(self._section, version=__version__, drains=published, signing=signing)
        return identity.encode(described)

    async def _drains(self) -> None:
        """Publish the own cluster's drains with its description, as they come and go; :meth:`_presence` begins."""
        changes, retry = self._db.changes(DRAINING), Retry(RETRY)
        await self._db.until(lambda snapshot: snapshot.initialized(DRAINING))
        while True:
            changes.next()
            try:
                await self._publish_identity()
                retry.succeeded()
                await changes.wait()
            except (Transient, Expired, EtcdError) as error:
                log.warning("drains are not published yet", why=str(error), attempt=retry.failed())
                await retry.pause()

    async def _follow_signing(self) -> None:
        """Publish another key of signatures with the description, soon after it appears."""
        await self._db.until(lambda snapshot: snapshot.initialized(DRAINING))
        while True:
            await asyncio.sleep(self._timings.signing_every)
            if self._description() != self._identity[keys.description(self._name)]:
                with suppress(Transient, Expired, EtcdError):  # tried again; _presence reports it
                    await self._publish_identity()

    async def _presence(self) -> None:
        """Publish configuration and canaries, and again whenever the store was lost or lost them."""
        retry = Retry(RETRY)
        while True:
            try:
                revision = await self._establish()
                retry.succeeded()
                began = asyncio.get_running_loop().time()
                key = await self._undisturbed(revision)
                self.outcome = f"somebody else changed {key}; writing again what is ours"
                log.warning("somebody else changed what is ours", key=key)
                lasted = asyncio.get_running_loop().time() - began
                # two publishers of one name must not write in a tight loop against each other
                await asyncio.sleep(self._timings.after_a_foreign_write - lasted)
            except (Transient, Expired, EtcdError) as error:
                self.error = str(error)
                self.published = False
                self.failures += 1
                self.outcome = f"cannot publish: {error}"
                log.warning("cannot publish", why=str(error), attempt=retry.failed())
                await retry.pause()

    async def _establish(self) -> int:
        """Write configuration, records, canaries; returns a revision after which any foreign change is seen."""
        await self._publish_identity()
        await self._target.settle()
        await self._complete()
        revision = (await self._session.read(keys.config(self._name))).revision
        await self._publish_identity()
        await self._target.settle()
        await self.reconciler.wait_until_reconciled(self._db.snapshot().revision(RECORDS))
        for key in self._canaries:
            await self._session.put(key, timestamp(self._now()).encode())
        with suppress(Transient):  # what is not permitted is no reason to publish nothing
            await self._refusals.settle()
        self.error = ""
        self.published = True
        self.outcome = f"published; {len(self._kinds)} kinds are whole"
        log.info("published", cluster=self._name, records=self._db.snapshot().count(RECORDS))
        return revision

    async def _publish_identity(self) -> None:
        """Write configuration and description where the store differs; the description once the drains are known."""
        async with self._writing_identity:  # of two writers at once, one would put back what the other replaced
            for key in self._identity:
                stored = await self._session.get(key)
                if key == keys.description(self._name):
                    if not self._db.snapshot().initialized(DRAINING):
                        continue
                    self._identity[key] = self._description()
                value = self._identity[key]
                if stored is None or stored.value != value:
                    await self._session.put(key, value)

    async def _complete(self) -> None:
        """Wait until the sources are complete, so that what no row wants is stale."""
        self.outcome = "waiting for the sources of records"
        await self._db.until(lambda snapshot: snapshot.initialized(RECORDS))
        self.outcome = "writing records"
        await self._target.complete.wait()
        for kind in (each for each in EVERY if each not in self._kinds):
            await self._session.delete_prefix(keys.prefix(kind, self._name))  # of an earlier configuration

    async def _undisturbed(self, revision: int) -> str:
        """Return the first of our keys that another client writes or deletes; raises when the store is lost."""
        watched = dict.fromkeys(self._identity, True) | dict.fromkeys((*self._target.prefixes, self._synced), False)
        watches = [asyncio.ensure_future(self._foreign(key, revision, exact=exact)) for key, exact in watched.items()]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)

    async def _foreign(self, prefix: str, revision: int, *, exact: bool) -> str:
        """The first key below a prefix, or exactly this key, that differs from what we wrote."""
        async for batch in self._session.watch(prefix, revision + 1, exact=exact):
            for event in batch.events:
                if await self._is_foreign(event):
                    return event.key
        raise Transient(f"the watch of {prefix} ended")

    async def _is_foreign(self, event: WatchEvent) -> bool:
        value = event.kv.value if event.kv is not None else None
        if event.key in self._identity:
            if value == self._identity[event.key]:
                return False
            stored = await self._session.get(event.key)  # an earlier description of ours may arrive after a later one
            return (stored.value if stored is not None else None) != self._identity[event.key]
        if event.key.startswith(self._synced):
            return value is None and event.key in self._canaries
        if value == self._target.owned.desired(event.key):
            return False
        now = await self._session.get(event.key)  # an earlier write of ours may arrive here after the row has changed
        return not self._target.owned.is_open(event.key) and (
            (now.value if now is not None else None) != self._target.owned.desired(event.key)
        )

    async def _heartbeat(self) -> None:
        """Keep the heartbeat while we run; its lease ends when we do not."""
        while True:
            try:
                await self._beat()
                wait = min(self._timings.renew_every, self._timings.heartbeat_every)
            except LeaseGone:
                self._lease, wait = None, 0.0
            except (Transient, EtcdError):
                wait = RENEW_AGAIN
            await asyncio.sleep(wait)

    async def _beat(self) -> None:
        if self._lease is None:
            self._lease, self._beat_at = await self._session.grant_lease(self._timings.heartbeat_ttl), None
        else:
            await self._lease.renew()
        now = asyncio.get_running_loop().time()
        if self._beat_at is None or now >= self._beat_at + self._timings.heartbeat_every:
            await self._session.put(keys.HEARTBEAT, timestamp(self._now()).encode(), lease=self._lease.id)
            self._beat_at = now
