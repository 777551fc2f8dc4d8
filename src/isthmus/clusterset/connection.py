"""One peer: sessions with its etcd, its records as rows, and the facts by which it is judged.

A connection records facts (``peer_status.PeerFacts``); ``judge`` makes its row of ``clusters`` of them, here and
nowhere else. States: connecting → listing → ready; stale when it was read and cannot be reached, with all rows kept;
refused when it is not to be followed, with its rows drained.

Invariants. Rows of a peer are written here alone, and only under its own name. Every change of a fact is followed by
a verdict at once (``_record``), so the row is never older than the facts. A connection is run anew when its file or
certificates change, without touching a row; a peer whose id changes is drained and read from scratch, since its
records were written under another identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct, structs

from isthmus import logs
from isthmus.clusterset import identity, keys, liveness, peer_status, sinks
from isthmus.clusterset.admission import Admission, Pace
from isthmus.clusterset.cache import Cache, Memory
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.gate import GatedStore
from isthmus.clusterset.identity import ClusterConfig, Ids
from isthmus.clusterset.peer_status import CONFIG, LATE, Heartbeat, PeerFacts, judge, steady_clock
from isthmus.clusterset.peers import Peer
from isthmus.clusterset.sinks import Forms
from isthmus.config import ClustersetSection
from isthmus.etcd import EtcdError, KeyStore, KeyValue, PrefixStore, Session
from isthmus.model.clusters import PeerState
from isthmus.model.mcs import RecordKind
from isthmus.model.tables import CLUSTERS, PROBES
from isthmus.reflector import Reflector, State
from isthmus.statedb import Database, Initializer, WriteTxn
from isthmus.times import timestamp

log = logs.get("clusterset")

MOST_DELAY: Final = 3.0
"""Seconds between two tries to read records, at most: short, because calls depend on them."""


class PeerStats(Struct, frozen=True, gc=False):
    """How a peer does, and how often it was connected to."""

    state: PeerState
    since: str
    """When it came into this state, RFC 3339."""
    reason: str
    connections: int
    failures: int
    dropped: int
    """Records of it that cannot be used."""


class Connection:
    """Follows one peer. :meth:`run` is one connection and never ends by itself; the object outlives it."""

    def __init__(
        self,
        db: Database,
        peer: Peer,
        *,
        forms: Forms,
        ids: Ids,
        section: ClustersetSection,
        initializers: Mapping[RecordKind, Initializer],
        cache: Cache | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._db = db
        self._forms = forms
        self._ids = ids
        self._section = section
        self._pace = Pace(section.peer_rate)
        self._initializers = initializers
        self._memory = Memory(db, cache or Cache(""), peer.name, forms=forms)
        self._now = now or steady_clock()
        self._lapsed = False
        """Whether the rows in the tables are marked as lapsed, or drained for it."""
        self._last_beat = 0
        """Revision of the heartbeat last seen: the same key read again is no sign of life."""
        self._changed = asyncio.Event()
        self._follow_anew = asyncio.Event()
        self._broken: asyncio.Future[str] | None = None
        self.runs = 0
        self.name = peer.name
        self.peer = peer
        self.facts = PeerFacts(
            name=peer.name,
            kinds=tuple(forms),
            most=section.max_connected_clusters,
            lifetime=section.cache_lifetime,
            endpoints=peer.endpoints,
        )
        self.row = structs.replace(judge(self.facts, self._now()), since=timestamp(self._now()))
        with db.write() as txn:
            txn.put(CLUSTERS, self.row)

    @property
    def published(self) -> bytes:
        """The configuration of a peer that is followed, as it published it; empty where it is not followed."""
        return self.facts.published if self.facts.config is not None else b""

    def __repr__(self) -> str:
        return f"<Connection with {self.name}: {self.row.state} {self.row.reason}, run {self.runs} times>"

    def stats(self) -> PeerStats:
        """How the peer does."""
        row = self.row
        return PeerStats(row.state, row.since, row.reason, self.runs, row.failures, row.dropped)

    # What happens to a peer, in the order in which it may.

    def restore(self) -> None:
        """Begin with what an earlier process last read of the peer, before the first connection."""
        known = self._memory.load()
        config: ClusterConfig | None = None
        for found in known.values():
            if not found.config.refusal(most=self.facts.most) and not self._ids.reserve(self.name, found.config.id):
                config = found.config
        if config is None:
            return
        known = {kind: found for kind, found in known.items() if found.config == config}
        age, admission = max(found.age for found in known.values()), self._admission()
        with self._db.write() as txn:
            for kind, found in known.items():
                for row in found.rows:
                    if sinks.admitted(row, admission):  # the peer's file may have changed since
                        txn.put(self._forms[kind].table, row)
            reason = f"as it was {age:.0f} s ago, before this process started"
            lost = self._now() - timedelta(seconds=age)
            self._record(txn, config=config, synced=tuple(known), lost=lost, failure=reason)

    async def run(self) -> None:
        """Connect and follow the peer until cancelled or, where its file is of no use, until that is recorded."""
        self.runs += 1
        links = {**self.facts.links, **dict.fromkeys((CONFIG, *self.facts.kinds), False)}
        self._record(endpoints=self.peer.endpoints, links=links)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._judge_when_due(), name=f"{self.name} verdict")
            tasks.create_task(
                self._memory.run(fresh=lambda: self.row.state in ("ready", "silent")), name=f"{self.name} cache"
            )
            tasks.create_task(self._connect(), name=f"{self.name} session")

    def reconsider(self) -> None:
        """Ids were given up or pinned: what was refused for one may be had now, and the other way round."""
        if self.facts.published:
            self._identify(self.facts.published)

    def distrust(self, distrusted: bool) -> None:
        """Take the peer's records out at once, or read them again. Its id stays its own meanwhile."""
        if distrusted == self.facts.distrusted:
            return
        if distrusted:
            with self._db.write() as txn:
                self._drain(txn)
                self._record(txn, distrusted=True, config=None, refusal="", synced=())
            self._memory.forget()
            self._follow_anew.set()
        else:
            self._record(distrusted=False)
            self.reconsider()

    def drain(self) -> None:
        """The peer has left: nothing of it stays, and no table waits for it."""
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            txn.delete(CLUSTERS, self.name)
        self._memory.forget()

    # Sessions.

    async def _connect(self) -> None:
        if self.peer.problem:
            self._failed(self.peer.problem)
            return
        try:
            while why := await self._follow():
                log.warning("connection is made anew", cluster=self.name, why=why)
        except EtcdError as refused:
            self._failed(str(refused))

    async def _follow(self) -> str:
        """Follow the peer over one session; gives why that session cannot be trusted any more."""
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._broken = broken
        async with self.peer.session() as session, asyncio.TaskGroup() as tasks:
            parts = {
                "config": self._follow_config(session),
                "description": self._follow_description(session),
                "records": self._follow_records(session),
                "access": liveness.check_access(session, keys.config(self.name), denied=self._denied),
            }
            running = [tasks.create_task(part, name=f"{self.name} {name}") for name, part in parts.items()]
            why = await broken
            for task in running:
                task.cancel()
        return why

    def _admission(self) -> Admission:
        """What the peer may publish, by the configuration and by what its own file adds."""
        return Admission(
            cluster=self.name,
            namespaces=self.peer.namespaces,
            reserved=self._section.reserved_namespaces,
            max_imports=self._section.max_imports,
            pod_ranges=self.peer.pod_ranges,
        )

    def _break(self, why: str) -> None:
        """Have the session made anew. Accepts a race: of several reasons at once the first is logged."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(why)

    async def _follow_config(self, session: Session) -> None:
        store = GatedStore(KeyStore(session, keys.config(self.name)))
        await self._reflect(store, sinks.OneKey(self._configured), name=CONFIG)

    async def _follow_description(self, session: Session) -> None:
        """Not a link: only clusters of Isthmus have one, and not every peer lets us read it."""
        store = GatedStore(KeyStore(session, keys.description(self.name)))
        sink = sinks.OneKey(self._described)
        await Reflector(store, sink, name=f"{self.name}/description", max_delay=liveness.SIGN_DELAY).run()

    async def _reflect(self, store: GatedStore, sink: Any, *, name: str) -> None:
        def linked(state: State) -> None:
            self._linked(name, state)

        await Reflector(store, sink, name=f"{self.name}/{name}", max_delay=MOST_DELAY, on_state=linked).run()

    async def _follow_records(self, session: Session) -> None:
        """Follow every kind by the configuration that the peer has; by another one, start over."""
        while True:
            # Cleared before the configuration is read: one that changes in between is followed in the next round.
            self._follow_anew.clear()
            config = self.facts.config
            if config is None:
                await self._follow_anew.wait()
                continue
            self._record(links={**self.facts.links, **dict.fromkeys(self.facts.kinds, False)})
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._follow_kind(session, kind, config), name=f"{self.name} {kind}")
                    for kind in self.facts.kinds
                ]
                running.append(tasks.create_task(self._follow_liveness(session, config), name=f"{self.name} liveness"))
                await self._follow_anew.wait()
                for task in running:
                    task.cancel()

    async def _follow_liveness(self, session: Session, config: ClusterConfig) -> None:
        """Beside copies there is a mirror and no heartbeat of the peer."""
        if config.capabilities.cached:
            self._record(heartbeat=None)
            await liveness.follow_mirror(session, name=self.name, running=self._mirrored)
            return
        now, beat = self._now(), self.facts.heartbeat
        # A new session gives a publisher its full time again, unless it was silent already: that is no news.
        if beat is None or peer_status.silence(self.facts, now) is None:
            beat = Heartbeat(at=now, good_for=LATE, beating=beat is not None and beat.beating)
        self._record(heartbeat=beat, unmirrored=None)
        await liveness.follow_heartbeat(session, name=self.name, beat=self._beat)

    async def _follow_kind(self, session: Session, kind: RecordKind, config: ClusterConfig) -> None:
        capabilities = config.capabilities
        if kind == "serviceexports" and capabilities.service_exports_enabled is None:
            links = {name: stands for name, stands in self.facts.links.items() if name != kind}
            with self._db.write() as txn:
                sinks.drain(txn, self._forms[kind], self.name)
                self._synced(txn, kind, links=links)
            return
        cached, admission = capabilities.cached, self._admission()
        records = PrefixStore(session, keys.prefix(kind, self.name, cached=cached), limits=sinks.MOST)
        canary = KeyStore(session, keys.canary(kind, self.name, cached=cached))
        store = GatedStore(records, canary=canary if capabilities.synced_canaries else None, pace=self._pace)
        sink = sinks.RecordSink(
            self._db,
            self._forms[kind],
            cluster_id=config.id,
            admission=admission,
            limit=admission.limit(kind, most=sinks.MOST.keys),
            listed=lambda txn: self._synced(txn, kind),
            received=lambda count, example: self._received(kind, count, example),
        )
        await self._reflect(store, sink, name=kind)

    # Facts. Each of these may be called from within a reflector's task; none of them awaits.

    def _linked(self, name: str, state: State) -> None:
        """A link stands or does not. One that is only being made has no failure and is no fact against the peer."""
        links = {**self.facts.links, name: state.connected}
        if not state.connected and state.last_failure:
            self._failed(state.last_failure, links=links)
        else:
            self._record(links=links, lost=None if all(links.values()) else self.facts.lost)

    def _failed(self, why: str, **changes: Any) -> None:
        now = self._now()
        self._record(lost=self.facts.lost or now, failure=why, **self._counted(why, now), **changes)

    def _counted(self, why: str, now: datetime) -> dict[str, Any]:
        return {"failures": self.facts.failures + 1, "failed_at": now, "last_failure": why}

    def _denied(self, why: str) -> None:
        """We may not read any more though our watches stand: only a new session finds out."""
        if self.row.state in ("listing", "ready", "silent"):
            self._break(why)

    def _beat(self, kv: KeyValue | None) -> None:
        """The heartbeat's key. Four cases: a new one; the one that was seen already; it went; there was none."""
        beat = self.facts.heartbeat
        if kv is not None:
            if kv.mod_revision != self._last_beat:
                self._last_beat = kv.mod_revision
                self._record(heartbeat=Heartbeat(at=self._now(), good_for=LATE, beating=True))
        elif beat is None or beat.present:
            good_for = 0.0 if self._last_beat else peer_status.ABSENT
            self._record(heartbeat=Heartbeat(at=self._now(), present=False, good_for=good_for))

    def _mirrored(self, running: bool) -> None:
        self._record_copies(unmirrored=None if running else self.facts.unmirrored or self._now())

    def _described(self, kv: KeyValue | None) -> None:
        now = self._now()
        self._record_copies(description=identity.decode_description(kv.value, now=now) if kv is not None else None)

    def _record_copies(self, **changes: Any) -> None:
        """Facts about who makes the copies: when they are no longer kept that is a failure, and counted once."""
        now = self._now()
        before = peer_status.unmirrored(self.facts, now)
        after = peer_status.unmirrored(structs.replace(self.facts, **changes), now)
        new = after is not None and (before is None or before.why != after.why)
        self._record(**changes, **(self._counted(after.why, now) if after is not None and new else {}))

    def _configured(self, kv: KeyValue | None) -> None:
        """The peer's configuration. An absent or unreadable one changes nothing of what is followed."""
        if kv is None:
            self._record(unpublished="it has not published its configuration")
        else:
            self._identify(kv.value)

    def _identify(self, published: bytes) -> None:
        """Follow the peer by its configuration, or refuse it."""
        try:
            config = identity.decode_config(published)
        except RecordError as why:
            self._record(unpublished=f"its configuration cannot be read: {why}")
            return
        if self.facts.distrusted:
            self._record(published=published, unpublished="")
            return
        refusal = config.refusal(most=self.facts.most) or self._ids.reserve(self.name, config.id)
        if refusal:
            self._refuse(refusal, published=published)
        elif config != self.facts.config:
            self._accept(config, published=published)
        else:
            self._record(published=published, unpublished="")

    def _accept(self, config: ClusterConfig, *, published: bytes) -> None:
        before = self.facts.config
        with self._db.write() as txn:
            if before is not None and before.id != config.id:
                for kind in self.facts.kinds:
                    sinks.drain(txn, self._forms[kind], self.name)
            self._record(txn, config=config, published=published, unpublished="", refusal="", synced=())
        self._follow_anew.set()

    def _refuse(self, why: str, *, published: bytes) -> None:
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            self._record(txn, config=None, published=published, unpublished="", refusal=why, synced=())
        self._memory.forget()
        self._follow_anew.set()

    def _synced(self, txn: WriteTxn, kind: RecordKind, **changes: Any) -> None:
        """A list of a kind is whole, and its rows are in this transaction."""
        self._complete(txn, kind)
        if kind == "services":
            changes["listed"] = self._now()
            if self._lapsed:
                # New rows: as good as the peer or, where they are copies nobody keeps, lapsed as those before.
                self._lapsed = peer_status.unmirrored(self.facts, self._now()) is not None
                if self._lapsed:
                    self._lapse(txn)
        self._record(txn, synced=(*(each for each in self.facts.synced if each != kind), kind), **changes)

    def _received(self, kind: RecordKind, count: int, example: str) -> None:
        """Rows of a kind changed, and so many of its records cannot be used."""
        if self.facts.config is not None:
            self._memory.note(self.facts.config, kind)
        if self.facts.dropped.get(kind, (0, "")) != (count, example):
            self._record(dropped={**self.facts.dropped, kind: (count, example)})

    # Verdicts, and what follows from them.

    def _record(self, txn: WriteTxn | None = None, **facts: Any) -> None:
        """Replace some facts, and judge by all of them."""
        self.facts = structs.replace(self.facts, **facts)
        self._changed.set()
        if txn is not None:
            self._judge(txn)
            return
        with self._db.write() as own:
            self._judge(own)

    async def _judge_when_due(self) -> None:
        """Judge again when time alone changes the verdict."""
        while True:
            self._changed.clear()
            now = self._now()
            due = peer_status.next_change(self.facts, now)
            try:
                async with asyncio.timeout((due - now).total_seconds() if due is not None else None):
                    await self._changed.wait()
            except TimeoutError:
                self._record()

    def _judge(self, txn: WriteTxn) -> None:
        now = self._now()
        row = judge(self.facts, now)
        if row.state != self.row.state:
            log.info("cluster", name=self.name, state=row.state, reason=row.reason)
        if not row.since:
            row = structs.replace(row, since=self.row.since if row.state == self.row.state else timestamp(now))
        if row != self.row:
            self.row = row
            txn.put(CLUSTERS, row)
        self._wait_no_longer(txn)
        self._expire(txn, now)
        self._suspect(now)

    def _wait_no_longer(self, txn: WriteTxn) -> None:
        """What was restored from disk is all there is for now when the peer has failed: no table waits for more."""
        if self.facts.failures and peer_status.away(self.facts, self._now()) is not None:
            for kind in self.facts.synced:
                self._complete(txn, kind)

    def _expire(self, txn: WriteTxn, now: datetime) -> None:
        """Endpoints that are older than they are good for lapse; everything else of the peer stays."""
        if "services" not in self.facts.kinds:
            return
        lapsed = peer_status.lapsed(self.facts, now)
        if lapsed and not self._lapsed:
            log.warning("cache lifetime is over", cluster=self.name)
            self._lapsed = True
            self._lapse(txn)
        elif self._lapsed and not lapsed and self.facts.lost is None:
            # It came back without a list (only what copied it was away): the rows have to be read again.
            self._lapsed = False
            self._follow_anew.set()

    def _suspect(self, now: datetime) -> None:
        """A heartbeat that was there and is late may be a watch that died unnoticed: a new session, once."""
        beat = self.facts.heartbeat
        if beat is not None and beat.beating and peer_status.silence(self.facts, now) is not None:
            self.facts = structs.replace(self.facts, heartbeat=structs.replace(beat, beating=False))
            self._break("its heartbeat is late")

    def _lapse(self, txn: WriteTxn) -> None:
        """Where probes are made those endpoints stay that they find alive: the rows are only marked."""
        end = sinks.lapse if PROBES.name in self._db.tables else sinks.drain
        end(txn, self._forms["services"], self.name)

    def _drain(self, txn: WriteTxn) -> None:
        for kind in self.facts.kinds:
            sinks.drain(txn, self._forms[kind], self.name)
            self._complete(txn, kind)

    def _complete(self, txn: WriteTxn, kind: RecordKind) -> None:
        if kind in self._initializers:
            self._initializers[kind].complete(txn)
