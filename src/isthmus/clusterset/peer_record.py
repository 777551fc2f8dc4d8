"""What is known about one peer, kept: its facts, its row of ``clusters`` that follows from them, and its rows.

Invariants. Rows of a peer are written here alone, and only under its own name. Every change of a fact is followed by
a verdict at once (``record``), so the row is never older than the facts. A peer whose id changes is drained and read
from scratch, since its records were written under another identity.

Nothing here awaits but ``judge_when_due``: sessions with the peer's etcd are ``connection``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from isthmus import logs
from isthmus.clusterset import identity, peer_status, sinks
from isthmus.clusterset.admission import Admission
from isthmus.clusterset.cache import Cache, Memory
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.identity import ClusterConfig, Ids
from isthmus.clusterset.peer_status import Heartbeat, PeerFacts, judge, steady_clock
from isthmus.clusterset.peers import Peer
from isthmus.clusterset.sinks import Forms
from isthmus.clusterset.timings import FollowerTimings
from isthmus.config import ClustersetSection
from isthmus.etcd import KeyValue
from isthmus.model.mcs import RecordKind
from isthmus.model.tables import CLUSTERS, PROBES
from isthmus.reflector import State
from isthmus.statedb import Database, Initializer, WriteTxn
from isthmus.times import timestamp

log = logs.get("clusterset")


class PeerRecord:
    """One peer's facts and rows. ``suspect`` is called when its session cannot be trusted any more, with the reason."""

    def __init__(
        self,
        db: Database,
        peer: Peer,
        *,
        forms: Forms,
        ids: Ids,
        section: ClustersetSection,
        timings: FollowerTimings,
        initializers: Mapping[RecordKind, Initializer],
        described: Initializer | None,
        cache: Cache | None,
        now: Callable[[], datetime] | None,
        suspect: Callable[[str], None],
    ) -> None:
        self._db = db
        self._ids = ids
        self._section = section
        self._timings = timings
        self._initializers = initializers
        self._described = described
        self._description_read = False
        self._lapsed = False
        """Whether the rows in the tables are marked as lapsed, or drained for it."""
        self._last_beat = 0
        """Revision of the heartbeat last seen: the same key read again is no sign of life."""
        self._changed = asyncio.Event()
        self.forms = forms
        self.memory = Memory(db, cache or Cache(""), peer.name, forms=forms, timings=timings)
        self.now = now or steady_clock()
        self.suspect = suspect
        self.follow_anew = asyncio.Event()
        """Set when the records have to be read again: under another configuration, or none."""
        self.name = peer.name
        self.peer = peer
        self.facts = PeerFacts(
            name=peer.name,
            kinds=tuple(forms),
            most=section.max_connected_clusters,
            lifetime=section.cache_lifetime,
            endpoints=peer.endpoints,
        )
        self.row = structs.replace(judge(self.facts, self.now()), since=timestamp(self.now()))
        with db.write() as txn:
            txn.put(CLUSTERS, self.row)

    def __repr__(self) -> str:
        return f"<PeerRecord of {self.name}: {self.row.state} {self.row.reason}>"

    def restore(self) -> None:
        """Begin with what an earlier process last read of the peer, before the first connection."""
        known = self.memory.load()
        config: ClusterConfig | None = None
        for found in known.values():
            if not found.config.refusal(most=self.facts.most) and not self._ids.reserve(self.name, found.config.id):
                config = found.config
        if config is None:
            return
        known = {kind: found for kind, found in known.items() if found.config == config}
        age, admission = max(found.age for found in known.values()), self.admission()
        with self._db.write() as txn:
            for kind, found in known.items():
                for row in found.rows:
                    if sinks.admitted(row, admission):  # the peer's file may have changed since
                        txn.put(self.forms[kind].table, row)
            reason = f"as it was {age:.0f} s ago, before this process started"
            lost = self.now() - timedelta(seconds=age)
            newest = min(known.values(), key=lambda found: found.age).description
            self.record(txn, config=config, synced=tuple(known), lost=lost, failure=reason, description=newest)

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
                self.record(txn, distrusted=True, config=None, refusal="", synced=())
            self.memory.forget()
            self.follow_anew.set()
        else:
            self.record(distrusted=False)
            self.reconsider()

    def drain(self) -> None:
        """The peer has left: nothing of it stays, and no table waits for it."""
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            txn.delete(CLUSTERS, self.name)
            if self._described is not None:
                self._described.complete(txn)
        self.memory.forget()

    def admission(self) -> Admission:
        """What the peer may publish, by the configuration and by what its own file adds."""
        return Admission(
            cluster=self.name,
            namespaces=self.peer.namespaces,
            reserved=self._section.reserved_namespaces,
            max_imports=self._section.max_imports,
            pod_ranges=self.peer.pod_ranges,
        )

    # Facts. Each of these may be called from within a reflector's task.

    def linked(self, name: str, state: State) -> None:
        """A link stands or does not. One that is only being made has no failure and is no fact against the peer."""
        links = {**self.facts.links, name: state.connected}
        if not state.connected and state.last_failure:
            self.failed(state.last_failure, links=links)
        else:
            self.record(links=links, lost=None if all(links.values()) else self.facts.lost)

    def failed(self, why: str, **changes: Any) -> None:
        now = self.now()
        self.record(lost=self.facts.lost or now, failure=why, **self._counted(why, now), **changes)

    def _counted(self, why: str, now: datetime) -> dict[str, Any]:
        return {"failures": self.facts.failures + 1, "failed_at": now, "last_failure": why}

    def denied(self, why: str) -> None:
        """We may not read any more though our watches stand: only a new session finds out."""
        if self.row.state in ("listing", "ready", "silent"):
            self.suspect(why)

    def expect_heartbeat(self, expected: bool) -> None:
        """A session follows the heartbeat from now on, or whether a mirror runs."""
        if not expected:
            self.record(heartbeat=None)
            return
        now, beat = self.now(), self.facts.heartbeat
        # A new session gives a publisher its full time again, unless it was silent already: that is no news.
        if beat is None or peer_status.silence(self.facts, now) is None:
            beat = Heartbeat(at=now, good_for=self._timings.late, beating=beat is not None and beat.beating)
        self.record(heartbeat=beat, unmirrored=None)

    def beat(self, kv: KeyValue | None) -> None:
        """The heartbeat's key. Four cases: a new one; the one that was seen already; it went; there was none."""
        beat = self.facts.heartbeat
        if kv is not None:
            if kv.mod_revision != self._last_beat:
                self._last_beat = kv.mod_revision
                self.record(heartbeat=Heartbeat(at=self.now(), good_for=self._timings.late, beating=True))
        elif beat is None or beat.present:
            good_for = 0.0 if self._last_beat else self._timings.absent
            self.record(heartbeat=Heartbeat(at=self.now(), present=False, good_for=good_for))

    def mirrored(self, running: bool) -> None:
        self._record_copies(unmirrored=None if running else self.facts.unmirrored or self.now())

    def described(self, kv: KeyValue | None) -> None:
        now = self.now()
        before = self.facts.description
        self._description_read = True
        self._record_copies(description=identity.decode_description(kv.value, now=now) if kv is not None else None)
        if self.facts.description != before and self.facts.config is not None:
            for kind in self.facts.synced:
                self.memory.note(self.facts.config, kind, self.facts.description)

    def not_described(self) -> None:
        """Its description cannot be read, which not every peer allows: the last known one counts."""
        self._description_read = True
        self.record()

    def _record_copies(self, **changes: Any) -> None:
        """Facts about who makes the copies: when they are no longer kept that is a failure, and counted once."""
        now = self.now()
        before = peer_status.unmirrored(self.facts, now)
        after = peer_status.unmirrored(structs.replace(self.facts, **changes), now)
        new = after is not None and (before is None or before.why != after.why)
        self.record(**changes, **(self._counted(after.why, now) if after is not None and new else {}))

    def configured(self, kv: KeyValue | None) -> None:
        """The peer's configuration. An absent or unreadable one changes nothing of what is followed."""
        if kv is None:
            self.record(unpublished="it has not published its configuration")
        else:
            self._identify(kv.value)

    def _identify(self, published: bytes) -> None:
        """Follow the peer by its configuration, or refuse it."""
        try:
            config = identity.decode_config(published)
        except RecordError as why:
            self.record(unpublished=f"its configuration cannot be read: {why}")
            return
        if self.facts.distrusted:
            self.record(published=published, unpublished="")
            return
        refusal = config.refusal(most=self.facts.most) or self._ids.reserve(self.name, config.id)
        if refusal:
            self._refuse(refusal, published=published)
        elif config != self.facts.config:
            self._accept(config, published=published)
        else:
            self.record(published=published, unpublished="")

    def _accept(self, config: ClusterConfig, *, published: bytes) -> None:
        before = self.facts.config
        with self._db.write() as txn:
            if before is not None and before.id != config.id:
                for kind in self.facts.kinds:
                    sinks.drain(txn, self.forms[kind], self.name)
            self.record(txn, config=config, published=published, unpublished="", refusal="", synced=())
        self.follow_anew.set()

    def _refuse(self, why: str, *, published: bytes) -> None:
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            self.record(txn, config=None, published=published, unpublished="", refusal=why, synced=())
        self.memory.forget()
        self.follow_anew.set()

    def synced(self, txn: WriteTxn, kind: RecordKind, **changes: Any) -> None:
        """A list of a kind is whole, and its rows are in this transaction."""
        self._complete(txn, kind)
        if kind == "services":
            changes["listed"] = self.now()
            if self._lapsed:
                # New rows are confirmed by the peer; copies that no mirror updates stay lapsed as the rows before.
                self._lapsed = peer_status.unmirrored(self.facts, self.now()) is not None
                if self._lapsed:
                    self._lapse(txn)
        self.record(txn, synced=(*(each for each in self.facts.synced if each != kind), kind), **changes)

    def received(self, kind: RecordKind, count: int, example: str) -> None:
        """Rows of a kind changed, and so many of its records cannot be used."""
        if self.facts.config is not None:
            self.memory.note(self.facts.config, kind, self.facts.description)
        if self.facts.dropped.get(kind, (0, "")) != (count, example):
            self.record(dropped={**self.facts.dropped, kind: (count, example)})

    # Verdicts, and what follows from them.

    def record(self, txn: WriteTxn | None = None, **facts: Any) -> None:
        """Replace some facts, and judge by all of them."""
        self.facts = structs.replace(self.facts, **facts)
        self._changed.set()
        if txn is not None:
            self._judge(txn)
            return
        with self._db.write() as own:
            self._judge(own)

    async def judge_when_due(self) -> None:
        """Judge again when time alone changes the verdict."""
        while True:
            self._changed.clear()
            now = self.now()
            due = peer_status.next_change(self.facts, now)
            try:
                async with asyncio.timeout((due - now).total_seconds() if due is not None else None):
                    await self._changed.wait()
            except TimeoutError:
                self.record()

    def _judge(self, txn: WriteTxn) -> None:
        now = self.now()
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
        """What was restored from disk is all there is for now when the peer has failed: no table waits for more.

        ``clusters`` waits for the description, so that nothing is called before the drains of its cluster are known.
        """
        if self.facts.failures and peer_status.away(self.facts, self.now()) is not None:
            for kind in self.facts.synced:
                self._complete(txn, kind)
        if self._described is not None and (self._description_read or self.facts.failures):
            self._described.complete(txn)

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
            self.follow_anew.set()

    def _suspect(self, now: datetime) -> None:
        """A heartbeat that was there and is late may be a watch that died unnoticed: a new session, once."""
        beat = self.facts.heartbeat
        if beat is not None and beat.beating and peer_status.silence(self.facts, now) is not None:
            self.facts = structs.replace(self.facts, heartbeat=structs.replace(beat, beating=False))
            self.suspect("its heartbeat is late")

    def _lapse(self, txn: WriteTxn) -> None:
        """Where probes are made those endpoints stay that they find alive: the rows are only marked."""
        end = sinks.lapse if PROBES.name in self._db.tables else sinks.drain
        end(txn, self.forms["services"], self.name)

    def _drain(self, txn: WriteTxn) -> None:
        for kind in self.facts.kinds:
            sinks.drain(txn, self.forms[kind], self.name)
            self._complete(txn, kind)

    def _complete(self, txn: WriteTxn, kind: RecordKind) -> None:
        if kind in self._initializers:
            self._initializers[kind].complete(txn)
