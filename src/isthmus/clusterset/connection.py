"""One peer's sessions: its configuration, description, records and signs of life, followed over its etcd.

What is followed is recorded as facts (``peer_record``), and judged there. A connection is run anew when its file or
certificates change, without touching a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from isthmus import logs
from isthmus.clusterset import keys, liveness, sinks
from isthmus.clusterset.admission import Pace
from isthmus.clusterset.cache import Cache
from isthmus.clusterset.gate import GatedStore
from isthmus.clusterset.identity import ClusterConfig, Ids
from isthmus.clusterset.peer_record import PeerRecord
from isthmus.clusterset.peer_status import CONFIG
from isthmus.clusterset.peers import Peer
from isthmus.clusterset.sinks import Forms
from isthmus.clusterset.timings import FollowerTimings
from isthmus.config import ClustersetSection
from isthmus.etcd import EtcdError, KeyStore, Limits, PrefixStore, Session
from isthmus.model.clusters import PeerState
from isthmus.model.mcs import RecordKind
from isthmus.reflector import Reflector, State
from isthmus.statedb import Database, Initializer

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
        timings: FollowerTimings,
        limits: Limits,
        initializers: Mapping[RecordKind, Initializer],
        described: Initializer | None = None,
        cache: Cache | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._db = db
        self._pace = Pace(section.peer_rate)
        self._timings = timings
        self._limits = limits
        self._broken: asyncio.Future[str] | None = None
        self.runs = 0
        self.name = peer.name
        self.known = PeerRecord(
            db,
            peer,
            forms=forms,
            ids=ids,
            section=section,
            timings=timings,
            initializers=initializers,
            described=described,
            cache=cache,
            now=now,
            suspect=self._break,
        )

    @property
    def peer(self) -> Peer:
        """How it is reached."""
        return self.known.peer

    @property
    def published(self) -> bytes:
        """The configuration of a peer that is followed, as it published it; empty where it is not followed."""
        return self.known.facts.published if self.known.facts.config is not None else b""

    def __repr__(self) -> str:
        return f"<Connection with {self.name}: {self.known.row.state} {self.known.row.reason}, run {self.runs} times>"

    def _fresh(self) -> bool:
        """Whether what is known of the peer is confirmed now."""
        return self.known.row.state in ("ready", "silent")

    def stats(self) -> PeerStats:
        """How the peer does."""
        row = self.known.row
        return PeerStats(row.state, row.since, row.reason, self.runs, row.failures, row.dropped)

    async def run(self) -> None:
        """Connect and follow the peer until cancelled or, where its file is of no use, until that is recorded."""
        self.runs += 1
        links = {**self.known.facts.links, **dict.fromkeys((CONFIG, *self.known.facts.kinds), False)}
        self.known.record(endpoints=self.peer.endpoints, expiry=self.peer.expiry, links=links)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.known.judge_when_due(), name=f"{self.name} verdict")
            tasks.create_task(
                self.known.memory.run(fresh=lambda: self.known.row.state in ("ready", "silent")),
                name=f"{self.name} cache",
            )
            tasks.create_task(self._connect(), name=f"{self.name} session")

    # Sessions.

    async def _connect(self) -> None:
        if self.peer.problem:
            self.known.failed(self.peer.problem)
            return
        try:
            while why := await self._follow():
                log.warning("connection is made anew", cluster=self.name, why=why)
        except EtcdError as refused:
            self.known.failed(str(refused))

    async def _follow(self) -> str:
        """Follow the peer over one session; gives why that session cannot be trusted any more."""
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._broken = broken
        async with self.peer.session(self._timings.session) as session, asyncio.TaskGroup() as tasks:
            parts = {
                "config": self._follow_config(session),
                "description": self._follow_description(session),
                "records": self._follow_records(session),
                "access": liveness.check_access(
                    session, keys.config(self.name), denied=self.known.denied, every=self._timings.ask_every
                ),
            }
            running = [tasks.create_task(part, name=f"{self.name} {name}") for name, part in parts.items()]
            why = await broken
            for task in running:
                task.cancel()
        return why

    def _break(self, why: str) -> None:
        """Have the session made anew. Accepts a race: of several reasons at once the first is logged."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(why)

    async def _follow_config(self, session: Session) -> None:
        store = GatedStore(KeyStore(session, keys.config(self.name)))
        await self._reflect(store, sinks.OneKey(self.known.configured), name=CONFIG)

    async def _follow_description(self, session: Session) -> None:
        """Not a link: only clusters of Isthmus have one, and not every peer lets us read it."""
        store = GatedStore(KeyStore(session, keys.description(self.name)))
        sink = sinks.OneKey(self.known.described)

        def linked(state: State) -> None:
            if state.failures:
                self.known.not_described()

        name = f"{self.name}/description"
        await Reflector(store, sink, name=name, max_delay=liveness.SIGN_DELAY, on_state=linked).run()

    async def _reflect(self, store: GatedStore, sink: Any, *, name: str) -> None:
        def linked(state: State) -> None:
            self.known.linked(name, state)

        await Reflector(store, sink, name=f"{self.name}/{name}", max_delay=MOST_DELAY, on_state=linked).run()

    async def _follow_records(self, session: Session) -> None:
        """Follow every kind by the configuration that the peer has; by another one, start over."""
        while True:
            # Cleared before the configuration is read: one that changes in between is followed in the next round.
            self.known.follow_anew.clear()
            config = self.known.facts.config
            if config is None:
                await self.known.follow_anew.wait()
                continue
            self.known.record(links={**self.known.facts.links, **dict.fromkeys(self.known.facts.kinds, False)})
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._follow_kind(session, kind, config), name=f"{self.name} {kind}")
                    for kind in self.known.facts.kinds
                ]
                running.append(tasks.create_task(self._follow_liveness(session, config), name=f"{self.name} liveness"))
                await self.known.follow_anew.wait()
                for task in running:
                    task.cancel()

    async def _follow_liveness(self, session: Session, config: ClusterConfig) -> None:
        """Beside copies there is a mirror and no heartbeat of the peer."""
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
                sinks.drain(txn, self.known.forms[kind], self.name)
                self.known.synced(txn, kind, links=links)
            return
        cached, admission = capabilities.cached, self.known.admission()
        records = PrefixStore(session, keys.prefix(kind, self.name, cached=cached), limits=self._limits)
        canary = KeyStore(session, keys.canary(kind, self.name, cached=cached))
        store = GatedStore(records, canary=canary if capabilities.synced_canaries else None, pace=self._pace)
        sink = sinks.RecordSink(
            self._db,
            self.known.forms[kind],
            cluster_id=config.id,
            admission=admission,
            limits=self._limits,
            limit=admission.limit(kind, most=self._limits.keys),
            listed=lambda txn: self.known.synced(txn, kind),
            received=lambda count, example: self.known.received(kind, count, example),
        )
        await self._reflect(store, sink, name=kind)
