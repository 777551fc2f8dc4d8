"""The state of one peer: its facts, its row of ``clusters`` that follows from them, and the rows of its records.

Invariants. Rows of a peer are written here alone, and only under its own name. Every change of a fact is followed by
a verdict at once (``record``), so the row is never older than the facts. A peer whose id changes is drained and read
from scratch, since its records were written under another identity.

Nothing here awaits but ``judge_when_due``: sessions with the peer's etcd are ``connection``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import structs

from isthmus import bounds, logs
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.peers import peer_status, sinks
from isthmus.clusterset.peers.cache import Known, Memory
from isthmus.clusterset.peers.context import Awaited, Context
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.clusterset.peers.peer_status import Heartbeat, PeerFacts, judge, steady_clock
from isthmus.clusterset.records import forms as record_forms
from isthmus.clusterset.records import identity, quotas, refusals
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.decoding import wall_clock
from isthmus.clusterset.records.identity import ClusterConfig
from isthmus.clusterset.records.refusals import RefusedRecords
from isthmus.etcd import KeyValue
from isthmus.model.mcs import PeerRefusal, RecordKind, RefusedRecord
from isthmus.model.tables import CLUSTERS, FAULTS, PEER_REFUSALS, PROBES, REFUSED_RECORDS
from isthmus.reflector import State
from isthmus.statedb import Faults, WriteTxn, describe_bug, rewrite
from isthmus.times import timestamp

log = logs.get("clusterset")

SESSION: Final = "session"
RECORDS: Final = "records"
"""Tasks that hold all links of a peer, and the links of its records."""


class PeerRecord:
    """One peer's facts and rows. ``suspect`` is called when its session cannot be trusted any more, with the reason."""

    def __init__(self, context: Context, peer: Peer, awaited: Awaited, *, suspect: Callable[[str], None]) -> None:
        db, forms, section = context.db, context.forms, context.section
        self._db = db
        self._ids = context.ids
        self._section = section
        self._timings = context.timings
        self._awaited = awaited
        self._unjudged = set(forms) - record_forms.OPTIONAL
        """Kinds whose records have not been judged in this process."""
        self._last_refusals: KeyValue | None = None
        self._description_read = False
        self._recalled: Mapping[RecordKind, Known] = {}
        """The last known state, until it is restored or the peer itself is read."""
        self._lapsed = False
        """True if the rows in the tables are marked as lapsed, or were deleted instead."""
        self._last_beat: tuple[int, bytes] | None = None
        """Revision and value of the heartbeat last seen: the same key read again is no sign of life."""
        self._last_ahead = 0.0
        """Seconds by which the time in the last heartbeat was ahead of the system's clock."""
        self._changed = asyncio.Event()
        self.forms = forms
        self.faults = Faults(db, FAULTS, CLUSTERS.name, kind=f"published by {peer.name}")
        self.record_faults = {kind: sinks.record_faults(db, form, peer.name) for kind, form in forms.items()}
        self.quotas = {kind: quotas.of_kind(kind, section) for kind in forms}
        self.memory = Memory(db, context.cache, peer.name, forms=forms, timings=context.timings)
        self.now = steady_clock()
        self.suspect = suspect
        self.follow_anew = asyncio.Event()
        """Set when the records must be read again: under another configuration, or none."""
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

    @property
    def links(self) -> tuple[RecordKind, ...]:
        """Kinds of records whose watch the peer's state depends on."""
        return tuple(kind for kind in self.facts.kinds if kind not in record_forms.OPTIONAL)

    def recall(self) -> None:
        """Load the state that an earlier process saved, and reserve the peer's id; :meth:`restore` writes the rows."""
        saved = self.memory.load()
        for state in saved.values():
            if not state.config.refusal(most=self.facts.most) and not self._ids.reserve(self.name, state.config.id):
                config = state.config
                self._recalled = {kind: each for kind, each in saved.items() if each.config == config}
                self._hold_quotas()
                return

    def _hold_quotas(self) -> None:
        """Count the recalled rows against the quotas, so that the first list displaces none of them."""
        admission = self.admission()
        for kind, recalled in self._recalled.items():
            for row in recalled.rows:
                if record_forms.admitted(row, admission):
                    self.quotas[kind].hold(*self.forms[kind].usage(row))

    async def restore_if_late(self) -> None:
        """Restore the last known state after a delay, unless the peer itself is read before."""
        await asyncio.sleep(self._timings.restore_after)
        self.restore()

    def restore(self) -> None:
        """Restore the last known state of each kind that was not read meanwhile, once."""
        recalled, self._recalled = self._recalled, {}
        config = self.facts.config
        usable = {
            kind: state
            for kind, state in recalled.items()
            if kind not in self.facts.synced and config in (None, state.config)
        }
        if not usable or self.facts.distrusted or self.facts.refusal:
            return
        try:
            self._restore(usable)
        except Exception:
            log.exception("last known state not restored", cluster=self.name)
            self.memory.set_aside("its records cannot be taken in")

    def _restore(self, states: Mapping[RecordKind, Known]) -> None:
        # Callers may have been read long ago, or never since identities were enabled again: no endpoint lapses by that.
        required = [state for kind, state in states.items() if kind not in record_forms.OPTIONAL]
        age, admission = max(state.age for state in required or states.values()), self.admission()
        if self.facts.config is None:
            # A session may be waiting for a configuration: one equal to the restored one would not end that wait.
            self.follow_anew.set()
        with self._db.write() as txn:
            for kind, state in states.items():
                for row in state.rows:
                    if record_forms.admitted(row, admission):  # the peer's file may have changed meanwhile
                        txn.put(self.forms[kind].table, row)
            newest = min(states.values(), key=lambda found: found.age)
            self.record(
                txn,
                config=newest.config,
                synced=(*self.facts.synced, *states),
                lost=bounds.after(self.now(), -age),
                failure=self.facts.failure or f"as it was {age:.0f} s ago, before this process started",
                description=self.facts.description if self._description_read else newest.description,
            )

    def reconsider(self) -> None:
        """Judge the peer's id again: ids were released or pinned."""
        if self.facts.published:
            self._identify(self.facts.published)

    def distrust(self, distrusted: bool) -> None:
        """Withdraw the peer's records at once, or read them again. The peer keeps its id meanwhile."""
        if distrusted == self.facts.distrusted:
            return
        if distrusted:
            with self._db.write() as txn:
                self._drain(txn)
                self._replace_peer_refusals(txn, [])
                self.record(txn, distrusted=True, config=None, refusal="", synced=())
            self._forget()
            self.follow_anew.set()
        else:
            self.record(distrusted=False)
            self.refused_by_peer(self._last_refusals)
            self.reconsider()

    def drain(self) -> None:
        """Delete everything of a peer that has left; no table waits for it any more."""
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            self.faults.clear(txn)
            self._replace_peer_refusals(txn, [])
            txn.delete(CLUSTERS, self.name)
            if self._awaited.described is not None:
                self._awaited.described.complete(txn)
        self._forget()

    def _forget(self) -> None:
        self._recalled = {}
        self.memory.forget()

    def admission(self) -> Admission:
        """Return the namespaces and addresses that the peer may publish, by our configuration and the peer's file."""
        return Admission(
            cluster=self.name,
            namespaces=self.peer.namespaces,
            reserved=self._section.reserved_namespaces,
            pod_ranges=self.peer.pod_ranges,
            most=self._section.max_connected_clusters,
        )

    # Facts. Each of these may be called from within a reflector's task.

    def linked(self, name: str, state: State) -> None:
        """Record the state of a link, unless its kind is optional. One that is being established has not failed."""
        if name in record_forms.OPTIONAL:
            return
        links = {**self.facts.links, name: state.connected}
        if not state.connected and state.last_failure:
            self.failed(state.last_failure, links=links)
        else:
            self.record(links=links, lost=None if all(links.values()) else self.facts.lost)

    def failed(self, reason: str, **changes: Any) -> None:
        self.restore()
        now = self.now()
        self.record(lost=self.facts.lost or now, failure=reason, **self._counted(reason, now), **changes)

    def task_failed(self, task: str, reason: str) -> None:
        """Record that a task fails, or succeeds again if ``reason`` is empty. The links of a failed task are lost."""
        other_tasks = {name: each for name, each in self.facts.failing.items() if name != task}
        if not reason:
            self.record(failing=other_tasks)
            return
        links = self.facts.links if task in (SESSION, RECORDS) else self.facts.links.keys() & {task}
        failing = {**other_tasks, task: reason}
        if links:
            self.failed(f"{task}: {reason}", failing=failing, links={**self.facts.links, **dict.fromkeys(links, False)})
        else:
            self.record(failing=failing, **self._counted(f"{task}: {reason}", self.now()))

    def contained(self, part: str, changed: Callable[[KeyValue | None], None]) -> Callable[[KeyValue | None], None]:
        """Return a ``changed`` whose exceptions fail one part of the peer; the value before keeps its effect."""
        task = f"reading its {part}"

        def take(kv: KeyValue | None) -> None:
            error = ""
            try:
                changed(kv)
            except MemoryError:
                raise
            except Exception as bug:
                self.faults.failed(part, bug)
                error = describe_bug(bug)
            else:
                self.faults.succeeded(part)
            self.faults.publish()
            if error or task in self.facts.failing:
                self.task_failed(task, error)

        return take

    def _counted(self, reason: str, now: datetime) -> dict[str, Any]:
        return {"failures": self.facts.failures + 1, "failed_at": now, "last_failure": reason}

    def denied(self, reason: str) -> None:
        """Suspect the session: reads are denied although watches continue. A new session decides."""
        if self.row.state in ("listing", "ready", "silent"):
            self.suspect(reason)

    def expect_heartbeat(self, expected: bool) -> None:
        """Record that a new session follows the heartbeat, or a mirror instead."""
        if not expected:
            self.record(heartbeat=None)
            return
        now, beat = self.now(), self.facts.heartbeat
        # A new session restarts the publisher's time limit, unless it was silent already.
        if beat is None or peer_status.silence(self.facts, now) is None:
            beat = Heartbeat(time=now, good_for=self._timings.late, beating=beat is not None and beat.beating)
        self.record(heartbeat=beat, unmirrored=None)

    def beat(self, kv: KeyValue | None) -> None:
        """Record the heartbeat's key. Four cases: written, seen before, deleted, never existed."""
        beat = self.facts.heartbeat
        if kv is not None:
            if (kv.mod_revision, kv.value) != self._last_beat:  # an etcd that lost its data counts from 1 again
                self._last_beat = (kv.mod_revision, kv.value)
                beat = Heartbeat(time=self.now(), good_for=self._timings.late, beating=True)
                self.record(heartbeat=beat, clock_ahead=self._clock_ahead(kv.value))
        elif beat is None or beat.exists:
            good_for = 0.0 if self._last_beat else self._timings.absent
            self.record(heartbeat=Heartbeat(time=self.now(), exists=False, good_for=good_for))

    def _clock_ahead(self, beat: bytes) -> float:
        """Seconds by which a heartbeat's time is ahead of the system's clock; 0 unless it was so twice in a row.

        The first heartbeat that is read after a break may have been written up to its interval before.
        """
        before, self._last_ahead = self._last_ahead, 0.0
        with contextlib.suppress(bounds.OutOfBounds, UnicodeDecodeError):
            self._last_ahead = (bounds.timestamp(beat.decode("ascii")) - wall_clock()).total_seconds()
        return min(before, self._last_ahead, key=abs) if before * self._last_ahead > 0 else 0.0

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
        """Keep the last known description: the peer's cannot be read, which not every peer permits."""
        self._description_read = True
        self.record()

    def _record_copies(self, **changes: Any) -> None:
        """Record facts about the mirror of the peer's copies; when it stops updating them, count one failure."""
        now = self.now()
        before = peer_status.unmirrored(self.facts, now)
        after = peer_status.unmirrored(structs.replace(self.facts, **changes), now)
        new = after is not None and (before is None or before.reason != after.reason)
        self.record(**changes, **(self._counted(after.reason, now) if after is not None and new else {}))

    def configured(self, kv: KeyValue | None) -> None:
        """Take the peer's configuration. If it is absent or unreadable, the previous one stays in effect."""
        if kv is None:
            self.record(unpublished="it has not published its configuration")
        else:
            self._identify(kv.value)

    def _identify(self, published: bytes) -> None:
        """Accept or refuse the peer by its configuration."""
        try:
            config = identity.decode_config(published)
        except RecordError as error:
            self.record(unpublished=f"its configuration cannot be read: {error}")
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
                    record_forms.drain(txn, self.forms[kind], self.name)
                    self.quotas[kind].clear()
            self.record(txn, config=config, published=published, unpublished="", refusal="", synced=())
        self.follow_anew.set()

    def _refuse(self, reason: str, *, published: bytes) -> None:
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            self.record(txn, config=None, published=published, unpublished="", refusal=reason, synced=())
        self._forget()
        self.follow_anew.set()

    def synced(self, txn: WriteTxn, kind: RecordKind, **changes: Any) -> None:
        """Record that the list of a kind is complete and its rows are in this transaction."""
        self._complete(txn, kind)
        if kind == "services":
            changes["listed"] = self.now()
            if self._lapsed:
                # The peer confirms new rows; copies that no mirror updates stay lapsed.
                self._lapsed = peer_status.unmirrored(self.facts, self.now()) is not None
                if self._lapsed:
                    self._lapse(txn)
        self.record(txn, synced=(*(each for each in self.facts.synced if each != kind), kind), **changes)
        if set(self.facts.kinds) <= set(self.facts.synced):
            self._recalled = {}

    def received(self, kind: RecordKind, refused: RefusedRecords) -> None:
        """Record that rows of a kind changed, and which of its records are refused."""
        if self.facts.config is not None:
            self.memory.note(self.facts.config, kind, self.facts.description)
        if REFUSED_RECORDS.name in self._db.tables and (refused.take_changes() or kind in self._unjudged):
            with self._db.write() as txn:
                self._replace_refused(txn, kind, refusals.rows(kind, self.name, refused.named))
                self.settle_refusals(txn, kind)
        dropped = len(refused), refused.example
        if self.facts.dropped.get(kind, (0, "")) != dropped:
            self.record(dropped={**self.facts.dropped, kind: dropped})

    def refused_by_peer(self, kv: KeyValue | None) -> None:
        """Replace the peer's refusals of our records; an unreadable value changes nothing."""
        self._last_refusals = kv
        try:
            rows = refusals.decode(kv.value, cluster=self.name) if kv is not None else []
        except RecordError as error:
            log.warning("refusals cannot be read", cluster=self.name, why=str(error))
            return
        if self.facts.distrusted:
            rows = []
        with self._db.write() as txn:
            self._replace_peer_refusals(txn, rows)

    def _replace_refused(self, txn: WriteTxn, kind: RecordKind, rows: Sequence[RefusedRecord]) -> None:
        current = [row for row in txn.by(REFUSED_RECORDS, "cluster", self.name) if row.kind == kind]
        rewrite(txn, REFUSED_RECORDS, current, rows)

    def _replace_peer_refusals(self, txn: WriteTxn, rows: Sequence[PeerRefusal]) -> None:
        if PEER_REFUSALS.name in self._db.tables:
            rewrite(txn, PEER_REFUSALS, txn.by(PEER_REFUSALS, "cluster", self.name), rows)

    def settle_refusals(self, txn: WriteTxn, *kinds: RecordKind) -> None:
        """End the wait for refusals of these kinds: they are known, or cannot be for now."""
        self._unjudged.difference_update(kinds)
        if self._awaited.judged is not None and not self._unjudged:
            self._awaited.judged.complete(txn)

    # Verdicts, and what follows from them.

    def record(self, txn: WriteTxn | None = None, **facts: Any) -> None:
        """Replace some facts and judge the peer again."""
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
            log.debug("peer judged", cluster=self.name, state=row.state, reason=row.reason, since=row.since)
            self.row = row
            txn.put(CLUSTERS, row)
        self._wait_no_longer(txn)
        self._expire(txn, now)
        self._suspect(now)

    def _wait_no_longer(self, txn: WriteTxn) -> None:
        """If the peer has failed, let no table wait for more than was restored from disk.

        ``clusters`` waits for the description, so that no cluster is called before its drains are known.
        """
        if self.facts.failures and peer_status.away(self.facts, self.now()) is not None:
            for kind in self.facts.synced:
                self._complete(txn, kind)
            self.settle_refusals(txn, *self.facts.kinds)
        if self._awaited.described is not None and (self._description_read or self.facts.failures):
            self._awaited.described.complete(txn)

    def _expire(self, txn: WriteTxn, now: datetime) -> None:
        """Let endpoints lapse that have outlived the cache lifetime; everything else of the peer stays."""
        if "services" not in self.facts.kinds:
            return
        lapsed = peer_status.lapsed(self.facts, now)
        if lapsed and not self._lapsed:
            log.warning("cache lifetime is over", cluster=self.name)
            self._lapsed = True
            self._lapse(txn)
        elif self._lapsed and not lapsed and self.facts.lost is None:
            # The mirror is back and no link was lost, so no list follows by itself: request one.
            self._lapsed = False
            self.follow_anew.set()

    def _suspect(self, now: datetime) -> None:
        """Request a new session, once, if a heartbeat stops: its watch may have died unnoticed."""
        beat = self.facts.heartbeat
        if beat is not None and beat.beating and peer_status.silence(self.facts, now) is not None:
            self.facts = structs.replace(self.facts, heartbeat=structs.replace(beat, beating=False))
            self.suspect("its heartbeat is late")

    def _lapse(self, txn: WriteTxn) -> None:
        """Mark the endpoints as lapsed if probes decide which of them are used; otherwise delete them."""
        end = record_forms.lapse if PROBES.name in self._db.tables else record_forms.drain
        end(txn, self.forms["services"], self.name)

    def _drain(self, txn: WriteTxn) -> None:
        for kind in self.facts.kinds:
            record_forms.drain(txn, self.forms[kind], self.name)
            self.quotas[kind].clear()
            self.record_faults[kind].clear(txn)
            if REFUSED_RECORDS.name in self._db.tables:
                self._replace_refused(txn, kind, [])
            self._complete(txn, kind)
        self.settle_refusals(txn, *self.facts.kinds)

    def _complete(self, txn: WriteTxn, kind: RecordKind) -> None:
        if kind in self._awaited.records:
            self._awaited.records[kind].complete(txn)
