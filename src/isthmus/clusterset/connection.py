"""One peer: a connection to its etcd, what it says of itself, and its records as rows.

States of its row in ``clusters``: connecting → listing → ready; stale when it was ready and cannot be reached, with
all rows kept; refused when what it says of itself cannot be (rows drained); leaving while its rows are taken away.
A connection is run anew when its file or certificates change, without touching a row; a peer whose id changes is
drained and read from scratch, since what it said was said by another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from isthmus import logs
from isthmus.clusterset import identity, keys, signs, sinks
from isthmus.clusterset.cache import Cache, Memory
from isthmus.clusterset.card import Card, wall_clock
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.gate import GatedStore
from isthmus.clusterset.identity import SLICES_ONLY, ClusterConfig, Ids
from isthmus.clusterset.peers import Peer
from isthmus.clusterset.signs import Heartbeat
from isthmus.clusterset.sinks import Forms
from isthmus.clusterset.standing import Standing
from isthmus.clusterset.wire import format_time
from isthmus.etcd import EtcdError, KeyStore, KeyValue, PrefixStore, Session
from isthmus.model.mcs import RecordKind
from isthmus.model.tables import CLUSTERS, PROBES
from isthmus.reflector import Reflector, State
from isthmus.statedb import Database, Initializer, WriteTxn

log = logs.get("clusterset")

MOST_DELAY: Final = 3.0


class Connection:
    """Follows one peer. :meth:`run` is one connection and never ends by itself; the object outlives it."""

    def __init__(
        self,
        db: Database,
        peer: Peer,
        *,
        forms: Forms,
        ids: Ids,
        most: identity.Most,
        initializers: Mapping[RecordKind, Initializer],
        lifetime: float = 0.0,
        cache: Cache | None = None,
        now: Callable[[], datetime] = wall_clock,
    ) -> None:
        self._db = db
        self._kinds = tuple(forms)
        self._forms = forms
        self._ids = ids
        self._most = most
        self._initializers = initializers
        self._memory = Memory(db, cache or Cache(""), peer.name, forms=forms)
        self._lapsed = False
        self._said: KeyValue | None = None
        self._news = asyncio.Event()
        self._bad: dict[RecordKind, int] = {}
        self.runs = 0
        self.name = peer.name
        self.peer = peer
        self.card = Card(db, peer.name, now=now)
        self._standing = Standing(self.card, kinds=self._kinds, lifetime=lifetime, remark=self._remark, lost=self._lost)
        self._heartbeat = Heartbeat(self._standing.published, self._break)
        self._broken: asyncio.Future[str]
        self.card.say(endpoints=peer.endpoints)

    @property
    def said(self) -> bytes:
        """The configuration of a peer that is followed, as it published it; empty where it is not followed."""
        return self._said.value if self._said is not None and self._standing.config is not None else b""

    def __repr__(self) -> str:
        row = self.card.row
        return f"<Connection with {self.name}: {row.state} {row.reason}, run {self.runs} times>"

    async def run(self) -> None:
        """Connect, and follow what the peer says, until cancelled or, where its file is of no use, at once."""
        self.runs += 1
        self._standing.expect("config", *self._kinds)
        self.card.say(endpoints=self.peer.endpoints, connected=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._expire(), name=f"{self.name} lifetime")
            tasks.create_task(self._memory.run(fresh=lambda: self.card.row.state == "ready"), name=f"{self.name} cache")
            tasks.create_task(self._connect(), name=f"{self.name} session")

    def restore(self) -> None:
        """Begin with what an earlier process last knew of the peer, before the first connection."""
        known = self._memory.load()
        for found in known.values():
            if not found.config.refusal(most=self._most) and not self._ids.reserve(self.name, found.config.id):
                self._standing.config = found.config
        config = self._standing.config
        if config is None:
            return
        known = {kind: found for kind, found in known.items() if found.config == config}
        age = max(found.age for found in known.values())
        with self._db.write() as txn:
            for kind, found in known.items():
                for row in found.rows:
                    txn.put(self._forms[kind].table, row)
            reason = f"as it was {age:.0f} s ago, before this process started"
            enabled = config.capabilities.service_exports_enabled
            said = {"id": config.id, "exports_enabled": enabled, "synced": tuple(known)}
            since = format_time(self.card.now() - timedelta(seconds=age))
            self.card.say(txn, state="stale", since=since, reason=reason, **said)
        self._standing.absence.begin(ago=age)

    async def _connect(self) -> None:
        if self.peer.problem:
            self._standing.unreachable(self.peer.problem)
            return
        try:
            while why := await self._follow():
                log.warning("connection is made anew", cluster=self.name, why=why)
        except EtcdError as refused:
            self._standing.unreachable(str(refused))

    async def _follow(self) -> str:
        """Follow what the peer says over one session; gives why that session is not what it looks like."""
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._broken = broken
        async with self.peer.session() as session, asyncio.TaskGroup() as tasks:
            parts = {
                "config": self._follow_config(session),
                "description": self._follow_description(session),
                "records": self._follow_records(session),
                "rights": signs.let_in(
                    session, keys.config(self.name), standing=self._standing.heard, broken=self._break
                ),
            }
            running = [tasks.create_task(part, name=f"{self.name} {name}") for name, part in parts.items()]
            why = await broken
            for task in running:
                task.cancel()
        return why

    def _break(self, why: str) -> None:
        if not self._broken.done():
            self._broken.set_result(why)

    def drain(self) -> None:
        """The peer has left: nothing of it stays, and nobody waits for it."""
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            txn.delete(CLUSTERS, self.name)
        self._memory.forget()

    def reconsider(self) -> None:
        """Another cluster has left: what was refused for its sake may be had now."""
        if self.card.row.state == "refused" and self._said is not None:
            self._configured(self._said)

    async def _follow_config(self, session: Session) -> None:
        store = GatedStore(KeyStore(session, keys.config(self.name)))
        await self._reflect(store, sinks.OneKey(self._configured), name="config")

    async def _follow_description(self, session: Session) -> None:
        """Only clusters of Isthmus have one, and not every peer lets us read it: it does not count for its state."""
        store = GatedStore(KeyStore(session, keys.description(self.name)))
        await Reflector(store, sinks.OneKey(self._described), name=f"{self.name}/description", most_delay=60.0).run()

    async def _reflect(self, store: GatedStore, sink: Any, *, name: str) -> None:
        def told(state: State) -> None:
            self._standing.connected(name, state)

        reflector = Reflector(store, sink, name=f"{self.name}/{name}", most_delay=MOST_DELAY, on_state=told)
        await reflector.run()

    async def _follow_records(self, session: Session) -> None:
        """Follow every kind with the configuration that the peer has; with another one, start over."""
        while True:
            self._news.clear()
            config = self._standing.config
            if config is None:
                await self._news.wait()
                continue
            self._standing.expect(*self._kinds)
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._follow_kind(session, kind, config), name=f"{self.name} {kind}")
                    for kind in self._kinds
                ]
                running.append(tasks.create_task(self._follow_signs(session, config), name=f"{self.name} signs"))
                await self._news.wait()
                for task in running:
                    task.cancel()

    async def _follow_signs(self, session: Session, config: ClusterConfig) -> None:
        """Beside copies there is a mirror and no heartbeat of the peer."""
        if not config.capabilities.cached:
            self._standing.copied("")
            await self._heartbeat.follow(session, name=self.name)
        else:
            await signs.mirror(session, name=self.name, told=self._standing.copied)

    async def _follow_kind(self, session: Session, kind: RecordKind, config: ClusterConfig) -> None:
        capabilities = config.capabilities
        if kind == "serviceexports" and capabilities.service_exports_enabled is None:
            self._standing.dismiss(kind)
            with self._db.write() as txn:
                sinks.drain(txn, self._forms[kind], self.name)
                self._synced(txn, kind)
            return
        cached = capabilities.cached
        records = PrefixStore(session, keys.prefix(kind, self.name, cached=cached), limits=sinks.MOST)
        canary = KeyStore(session, keys.canary(kind, self.name, cached=cached))
        store = GatedStore(records, canary=canary if capabilities.synced_canaries else None)
        sink = sinks.RecordSink(
            self._db,
            self._forms[kind],
            cluster=self.name,
            cluster_id=config.id,
            listed=lambda txn: self._synced(txn, kind),
            told=lambda bad: self._told(kind, bad),
        )
        await self._reflect(store, sink, name=kind)

    def _configured(self, kv: KeyValue | None) -> None:
        """The peer said who it is. An absent or unreadable configuration changes nothing of what is followed."""
        if kv is None:
            self.card.say(reason="it has not published its configuration")
            return
        try:
            config = identity.decode_config(kv.value)
        except RecordError as why:
            self.card.say(reason=f"its configuration cannot be read: {why}")
            return
        self._said = kv
        reason = config.refusal(most=self._most) or self._ids.reserve(self.name, config.id)
        if reason:
            self._refuse(reason)
        elif config != self._standing.config:
            self._accept(config)
        else:
            self.card.say(reason=self._standing.remark)

    def _accept(self, config: ClusterConfig) -> None:
        before, self._standing.config = self._standing.config, config
        capabilities = config.capabilities
        with self._db.write() as txn:
            if before is not None and before.id != config.id:
                for kind in self._kinds:
                    sinks.drain(txn, self._forms[kind], self.name)
            self.card.say(
                txn,
                id=config.id,
                state="listing",
                synced=(),
                reason=self._standing.remark,
                cached=capabilities.cached,
                exports_enabled=capabilities.service_exports_enabled,
            )
        self._news.set()

    def _refuse(self, reason: str) -> None:
        self._standing.config = None
        self._ids.release(self.name)
        with self._db.write() as txn:
            self._drain(txn)
            self.card.say(txn, state="refused", reason=reason, synced=(), id=0)
        self._memory.forget()
        self._news.set()

    def _remark(self, config: ClusterConfig) -> str:
        """What people should know of a peer that is followed nevertheless."""
        if "services" in self._kinds and config.capabilities.endpoint_slices_export_mode == SLICES_ONLY:
            return "it publishes its endpoints as EndpointSlices only, which are not read"
        theirs = config.capabilities.max_connected_clusters
        return f"its maxConnectedClusters is {theirs}, ours {self._most}" if theirs not in (0, self._most) else ""

    def _described(self, kv: KeyValue | None) -> None:
        self._standing.described(identity.decode_description(kv.value) if kv is not None else None)

    def _synced(self, txn: WriteTxn, kind: RecordKind) -> None:
        """A list of a kind is whole."""
        self._complete(txn, kind)
        if kind == "services" and self._lapsed:
            self._lapsed = bool(self._standing.unheard)
            if self._lapsed:  # copies of what has lapsed
                self._lapse(txn)
        synced = tuple(each for each in self._kinds if each == kind or each in self.card.row.synced)
        ready = len(synced) == len(self._kinds) and self.card.row.state == "listing"
        self.card.say(txn, synced=synced, **({"state": "ready"} if ready else {}))

    def _told(self, kind: RecordKind, bad: int) -> None:
        """Rows of a kind changed, and so many records of it are not to be used."""
        self._bad[kind] = bad
        if self._standing.config is not None:
            self._memory.note(self._standing.config, kind)
        if self.card.row.dropped != (total := sum(self._bad.values())):
            self.card.say(dropped=total)

    def _lost(self) -> None:
        """What is known is all there is to know for now: nobody waits for more."""
        with self._db.write() as txn:
            for kind in self._kinds:
                if kind in self.card.row.synced:
                    self._complete(txn, kind)

    async def _expire(self) -> None:
        """Endpoints of a peer that has been away for the cache lifetime go; everything else of it stays.

        Where probes are made those endpoints stay that they find alive: the rows only say that they have lapsed.
        """
        while "services" in self._kinds:
            await self._standing.absence.outlasts_lifetime()
            log.warning("cache lifetime is over", cluster=self.name)
            self._lapsed = True
            with self._db.write() as txn:
                self._lapse(txn)
            await self._standing.absence.ends()
            if self._lapsed:  # it came back without a list: only what copied it was away
                self._lapsed = False
                self._news.set()

    def _lapse(self, txn: WriteTxn) -> None:
        end = sinks.lapse if PROBES.name in self._db.tables else sinks.drain
        end(txn, self._forms["services"], self.name)

    def _drain(self, txn: WriteTxn) -> None:
        for kind in self._kinds:
            sinks.drain(txn, self._forms[kind], self.name)
            self._complete(txn, kind)

    def _complete(self, txn: WriteTxn, kind: RecordKind) -> None:
        if kind in self._initializers:
            self._initializers[kind].complete(txn)
