"""One peer's sessions: its configuration, description, records and signs of life, followed over its etcd.

Everything seen is recorded as facts in ``peer_record``, which judges them. A change of the peer's file or certificates
restarts the connection and leaves its rows alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from msgspec import Struct

from isthmus import logs
from isthmus.clusterset.certificates import Expiry
from isthmus.clusterset.peers import liveness, sinks
from isthmus.clusterset.peers.context import Awaited, Context
from isthmus.clusterset.peers.gate import GatedStore
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.clusterset.peers.peer_record import RECORDS, SESSION, PeerRecord
from isthmus.clusterset.peers.peer_status import CONFIG
from isthmus.clusterset.records import forms as record_forms
from isthmus.clusterset.records import keys
from isthmus.clusterset.records.admission import Pace
from isthmus.clusterset.records.identity import ClusterConfig
from isthmus.etcd import EtcdError, KeyStore, PrefixStore, Session
from isthmus.model.clusters import PeerState
from isthmus.model.mcs import RecordKind
from isthmus.model.tables import PEER_REFUSALS
from isthmus.reflector import Reflector, State
from isthmus.running import Tasks, Work

log = logs.get("clusterset")

REFUSALS_RATE: Final = 0.1
"""Changes per second that are read of a peer's refusals: each may change the status of many exports."""
MOST_DELAY: Final = 3.0
"""Maximum delay between two attempts to read records, in seconds: short, because calls depend on them."""


class PeerStats(Struct, frozen=True, gc=False):
    """State of a peer, and counts of its connections and failures."""

    state: PeerState
    since: str
    """Time at which this state began, RFC 3339."""
    reason: str
    connections: int
    failures: int
    dropped: int
    """Number of its records that cannot be used."""


class Connection:
    """Follows one peer. :meth:`run` is one connection and never ends by itself; the object outlives it."""

    def __init__(self, context: Context, peer: Peer, awaited: Awaited) -> None:
        self._db = context.db
        self._rate = context.section.peer_rate
        self._pace = Pace(self._rate)
        self._timings = context.timings
        self._own = context.ids.own
        self._limits = context.limits
        self._broken: asyncio.Future[str] | None = None
        self.runs = 0
        self.name = peer.name
        self.known = PeerRecord(context, peer, awaited, suspect=self._break)

    @property
    def peer(self) -> Peer:
        """Endpoints and credentials of the peer."""
        return self.known.peer

    @property
    def published(self) -> bytes:
        """Configuration that the peer published; empty if the peer is not followed."""
        return self.known.facts.published if self.known.facts.config is not None else b""

    def __repr__(self) -> str:
        return f"<Connection with {self.name}: {self.known.row.state} {self.known.row.reason}, run {self.runs} times>"

    def _fresh(self) -> bool:
        """True while the peer itself confirms its rows."""
        return self.known.row.state in ("ready", "silent")

    def stats(self) -> PeerStats:
        """Return the peer's state and counters."""
        row = self.known.row
        return PeerStats(row.state, row.since, row.reason, self.runs, row.failures, row.dropped)

    async def run(self) -> None:
        """Connect and follow the peer until cancelled; an unusable file is recorded and nothing is connected."""
        self.runs += 1
        links = {**self.known.facts.links, **dict.fromkeys((CONFIG, *self.known.links), False)}
        self.known.record(endpoints=self.peer.endpoints, expiry=self.peer.expiry, links=links)
        async with Tasks() as tasks:
            self._start(tasks, "restoring", self.known.restore_if_late, ends=True)
            self._start(tasks, "verdict", self.known.judge_when_due)
            self._start(tasks, "cache", partial(self.known.memory.run, fresh=self._fresh))
            self._start(tasks, SESSION, self._connect, ends=True)
            if any(each.startswith("https:") for each in self.peer.endpoints):
                self._start(tasks, "certificate", self._watch_certificate)

    def _start(self, tasks: Tasks, name: str, work: Work, *, ends: bool = False) -> None:
        """Start a task that follows the peer and reports its failures in the peer's row."""
        tasks.start(name, work, ends=ends, report=partial(self.known.task_failed, name))

    async def _watch_certificate(self) -> None:
        def seen(expiry: Expiry) -> None:
            if expiry != self.known.facts.served:
                self.known.record(served=expiry)

        await liveness.watch_certificate(lambda: self.peer, seen=seen, every=self._timings.handshake_every)

    # Sessions.

    async def _connect(self) -> None:
        if self.peer.problem:
            self.known.failed(self.peer.problem)
            return
        try:
            while reason := await self._follow():
                log.warning("connection is made anew", cluster=self.name, why=reason)
        except EtcdError as refused:
            self.known.failed(str(refused))

    async def _follow(self) -> str:
        """Follow the peer over one session; returns the reason why that session cannot be trusted any more."""
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._broken = broken
        async with self.peer.session(self._timings.session) as session, Tasks() as tasks:
            parts: dict[str, Work] = {
                CONFIG: partial(self._follow_config, session),
                "description": partial(self._follow_description, session),
                RECORDS: partial(self._follow_records, session),
                "access": partial(
                    liveness.check_access,
                    session,
                    keys.config(self.name),
                    denied=self.known.denied,
                    every=self._timings.ask_every,
                ),
            }
            if PEER_REFUSALS.name in self._db.tables:
                parts["refusals"] = partial(self._follow_refusals, session)
            for name, part in parts.items():
                self._start(tasks, name, part)
            reason = await broken
            tasks.cancel()
        return reason

    def _break(self, reason: str) -> None:
        """End the session; a new one follows. Accepts a race: of several reasons at once the first is logged."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(reason)

    async def _follow_config(self, session: Session) -> None:
        store = GatedStore(KeyStore(session, keys.config(self.name)))
        sink = sinks.OneKey(self.known.contained("configuration", self.known.configured))
        await self._reflect(store, sink, name=CONFIG)

    async def _follow_description(self, session: Session) -> None:
        """Follow the description. Not a link: only clusters of Isthmus have one, and not every peer permits reads."""
        store = GatedStore(KeyStore(session, keys.description(self.name)))
        sink = sinks.OneKey(self.known.contained("description", self.known.described))

        def linked(state: State) -> None:
            if state.failures:
                self.known.not_described()

        name = f"{self.name}/description"
        await Reflector(store, sink, name=name, max_delay=liveness.SIGN_DELAY, on_state=linked).run()

    async def _follow_refusals(self, session: Session) -> None:
        """Follow the peer's refusals of our records; not every peer publishes any, or permits reads."""
        key = keys.refusals(self.name, self._own)
        store = GatedStore(KeyStore(session, key), pace=Pace(REFUSALS_RATE))
        sink = sinks.OneKey(self.known.contained("refusals", self.known.refused_by_peer))
        await Reflector(store, sink, name=f"{self.name}/refusals", max_delay=liveness.SIGN_DELAY).run()

    async def _reflect(self, store: GatedStore, sink: Any, *, name: str) -> None:
        def linked(state: State) -> None:
            self.known.linked(name, state)

        await Reflector(store, sink, name=f"{self.name}/{name}", max_delay=MOST_DELAY, on_state=linked).run()

    async def _follow_records(self, session: Session) -> None:
        """Follow every kind of record; start over when the peer's configuration changes."""
        while True:
            # Cleared before the configuration is read, so that a change in between starts another round.
            self.known.follow_anew.clear()
            config = self.known.facts.config
            if config is None:
                await self.known.follow_anew.wait()
                continue
            self.known.record(links={**self.known.facts.links, **dict.fromkeys(self.known.links, False)})
            async with Tasks() as tasks:
                for kind in self.known.facts.kinds:
                    self._start(tasks, kind, partial(self._follow_kind, session, kind, config), ends=True)
                self._start(tasks, "liveness", partial(self._follow_liveness, session, config))
                await self.known.follow_anew.wait()
                tasks.cancel()

    async def _follow_liveness(self, session: Session, config: ClusterConfig) -> None:
        """Follow the heartbeat of the peer or, if its records are copies, the lock of the mirror."""
        if config.capabilities.cached:
            self.known.expect_heartbeat(False)
            await liveness.follow_mirror(session, name=self.name, running=self.known.mirrored)
            return
        self.known.expect_heartbeat(True)
        await liveness.follow_heartbeat(session, name=self.name, beat=self.known.beat)

    async def _follow_kind(self, session: Session, kind: RecordKind, config: ClusterConfig) -> None:
        capabilities = config.capabilities
        if kind == "serviceexports" and capabilities.service_exports_enabled is None:
            links = {name: stands for name, stands in self.known.facts.links.items() if name != kind}
            with self._db.write() as txn:
                record_forms.drain(txn, self.known.forms[kind], self.name)
                self.known.synced(txn, kind, links=links)
                self.known.settle_refusals(txn, kind)
            return
        cached, admission = capabilities.cached, self.known.admission()
        quota = self.known.quotas[kind]
        limits, pace = self._limits._replace(size=min(self._limits.size, quota.listed_bytes)), self._pace
        if kind in record_forms.OPTIONAL:  # numerous; services do not wait for them
            limits, pace = limits._replace(keys=max(limits.keys, quota.room)), Pace(self._rate)
        form = self.known.forms[kind]
        if form.slices is not None and capabilities.slices_only:
            form = form.slices
        stored = form.stored or kind
        records = PrefixStore(session, keys.prefix(stored, self.name, cached=cached), limits=limits)
        canary = KeyStore(session, keys.canary(stored, self.name, cached=cached))
        store = GatedStore(records, canary=canary if capabilities.synced_canaries else None, pace=pace)
        sink = sinks.RecordSink(
            self._db,
            form,
            cluster_id=config.id,
            admission=admission,
            quota=quota,
            listed=lambda txn: self.known.synced(txn, kind),
            received=lambda refused: self.known.received(kind, refused),
            list_again=store.list_again,
            unread=lambda: records.left_out,
            faults=self.known.record_faults[kind],
        )
        await self._reflect(store, sink, name=kind)
