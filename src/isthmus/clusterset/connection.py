"""One peer: a connection to its etcd, what it says of itself, and its records as rows.

States of its row in ``clusters``: connecting → listing → ready; stale when it was ready and cannot be reached, with
all rows kept; refused when what it says of itself cannot be (rows drained); leaving while its rows are taken away.
A connection is run anew when its file or certificates change, without touching a row; a peer whose id changes is
drained and read from scratch, since what it said was said by another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from isthmus import logs
from isthmus.clusterset import identity, keys, sinks
from isthmus.clusterset.cache import Cache, Memory
from isthmus.clusterset.card import Absence, Card, wall_clock
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.gate import GatedStore
from isthmus.clusterset.identity import SLICES_ONLY, ClusterConfig, Ids
from isthmus.clusterset.peers import Peer
from isthmus.clusterset.sinks import Forms
from isthmus.etcd import EtcdError, KeyStore, KeyValue, PrefixStore, Session
from isthmus.model.mcs import RecordKind
from isthmus.model.tables import CLUSTERS, PROBES
from isthmus.reflector import Event, Reflector, State
from isthmus.statedb import Database, Initializer, WriteTxn

log = logs.get("clusterset")

MOST_DELAY: Final = 3.0
DOWN: Final = State(synced=False, connected=False, lists=0, failures=0, last_failure="")


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
        self._absence = Absence(lifetime)
        self._config: ClusterConfig | None = None
        self._said: KeyValue | None = None
        self._news = asyncio.Event()
        self._states: dict[str, State] = {}
        self._bad: dict[RecordKind, int] = {}
        self._failures = 0
        self.runs = 0
        self.name = peer.name
        self.peer = peer
        self.card = Card(db, peer.name, now=now)
        self.card.say(endpoints=peer.endpoints)

    @property
    def said(self) -> bytes:
        """The configuration of a peer that is followed, as it published it; empty where it is not followed."""
        return self._said.value if self._said is not None and self._config is not None else b""

    def __repr__(self) -> str:
        row = self.card.row
        return f"<Connection with {self.name}: {row.state} {row.reason}, run {self.runs} times>"

    async def run(self) -> None:
        """Connect, and follow what the peer says, until cancelled or, where its file is of no use, at once."""
        self.runs += 1
        self._states = dict.fromkeys(("config", *self._kinds), DOWN)
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
                self._config = found.config
        config = self._config
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
            self.card.say(txn, state="stale", reason=reason, **said)
        self._absence.begin(ago=age)

    async def _connect(self) -> None:
        if self.peer.problem:
            self._unreachable(self.peer.problem)
            return
        try:
            async with self.peer.session() as session, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_config(session), name=f"{self.name} config")
                tasks.create_task(self._follow_description(session), name=f"{self.name} description")
                tasks.create_task(self._follow_records(session), name=f"{self.name} records")
        except EtcdError as why:
            self._unreachable(str(why))

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
        await self._reflect(store, _OneKey(self._configured), name="config")

    async def _follow_description(self, session: Session) -> None:
        """Only clusters of Isthmus have one, and not every peer lets us read it: it does not count for its state."""
        store = GatedStore(KeyStore(session, keys.description(self.name)))
        await Reflector(store, _OneKey(self._described), name=f"{self.name}/description", most_delay=60.0).run()

    async def _reflect(self, store: GatedStore, sink: Any, *, name: str) -> None:
        def told(state: State) -> None:
            self._connected(name, state)

        reflector = Reflector(store, sink, name=f"{self.name}/{name}", most_delay=MOST_DELAY, on_state=told)
        await reflector.run()

    async def _follow_records(self, session: Session) -> None:
        """Follow every kind with the configuration that the peer has; with another one, start over."""
        while True:
            self._news.clear()
            config = self._config
            if config is None:
                await self._news.wait()
                continue
            self._states |= dict.fromkeys(self._kinds, DOWN)
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(self._follow_kind(session, kind, config), name=f"{self.name} {kind}")
                    for kind in self._kinds
                ]
                await self._news.wait()
                for task in running:
                    task.cancel()

    async def _follow_kind(self, session: Session, kind: RecordKind, config: ClusterConfig) -> None:
        capabilities = config.capabilities
        if kind == "serviceexports" and capabilities.service_exports_enabled is None:
            del self._states[kind]
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
        elif config != self._config:
            self._accept(config)
        else:
            self.card.say(reason=self._remark(config))

    def _accept(self, config: ClusterConfig) -> None:
        before, self._config = self._config, config
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
                reason=self._remark(config),
                cached=capabilities.cached,
                exports_enabled=capabilities.service_exports_enabled,
            )
        self._news.set()

    def _refuse(self, reason: str) -> None:
        self._config = None
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
        said = identity.decode_description(kv.value) if kv else identity.Description()
        self.card.say(network=said.network, region=said.region, zone=said.zone)

    def _synced(self, txn: WriteTxn, kind: RecordKind) -> None:
        """The first list of a kind is whole."""
        self._complete(txn, kind)
        synced = tuple(each for each in self._kinds if each == kind or each in self.card.row.synced)
        ready = len(synced) == len(self._kinds) and self.card.row.state == "listing"
        self.card.say(txn, synced=synced, **({"state": "ready"} if ready else {}))

    def _told(self, kind: RecordKind, bad: int) -> None:
        """Rows of a kind changed, and so many records of it are not to be used."""
        self._bad[kind] = bad
        if self._config is not None:
            self._memory.note(self._config, kind)
        if self.card.row.dropped != (total := sum(self._bad.values())):
            self.card.say(dropped=total)

    def _connected(self, name: str, state: State) -> None:
        """A reflector tells how it does; the peer is connected when all of them are."""
        self._states[name] = state
        if name == "config" and state.connected != self.card.row.connected:
            self.card.say(connected=state.connected)
        if not state.connected and state.last_failure:
            self._unreachable(state.last_failure)
        elif all(each.connected for each in self._states.values()):
            self._reachable()

    def _unreachable(self, reason: str) -> None:
        self._absence.begin()
        self._failures += 1
        row = self.card.row
        with self._db.write() as txn:
            for kind in self._kinds:
                if kind in row.synced:  # what is known is all there is to know for now: nobody waits for more
                    self._complete(txn, kind)
        state = row.state if row.state in ("connecting", "refused") else "stale" if row.synced else "connecting"
        self.card.fail(reason, state=state, failures=self._failures)

    def _reachable(self) -> None:
        self._absence.end()
        if self.card.row.state in ("stale", "connecting") and (config := self._config) is not None:
            ready = len(self.card.row.synced) == len(self._kinds)
            self.card.say(state="ready" if ready else "listing", reason=self._remark(config))

    async def _expire(self) -> None:
        """Endpoints of a peer that has been away for the cache lifetime go; everything else of it stays.

        Where probes are made those endpoints stay that they find alive: the rows only say that they have lapsed.
        """
        while "services" in self._kinds:
            await self._absence.outlasts_lifetime()
            end = sinks.lapse if PROBES.name in self._db.tables else sinks.drain
            with self._db.write() as txn:
                ended = end(txn, self._forms["services"], self.name)
            log.warning("cache lifetime is over", cluster=self.name, endpoint_sets=ended)
            self._news.set()  # whatever comes back begins with a list
            await self._absence.ends()

    def _drain(self, txn: WriteTxn) -> None:
        for kind in self._kinds:
            sinks.drain(txn, self._forms[kind], self.name)
            self._complete(txn, kind)

    def _complete(self, txn: WriteTxn, kind: RecordKind) -> None:
        if kind in self._initializers:
            self._initializers[kind].complete(txn)


class _OneKey:
    """A sink for what a KeyStore brings."""

    def __init__(self, told: Callable[[KeyValue | None], None]) -> None:
        self._told = told

    def replace(self, items: Mapping[str, KeyValue], *, partial: bool) -> None:
        """What the key is."""
        self._told(items.get(""))

    def apply(self, events: Sequence[Event[KeyValue]]) -> None:
        """What became of it."""
        for _, kv in events:
            self._told(kv)
