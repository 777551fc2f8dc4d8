"""Objects in etcd, and all of them in memory.

etcd decides: a write is a transaction on the revision the object was read at, and the revision it gets is the
object's resourceVersion. What is in memory is what one watch over the whole registry has brought, so it is never ahead
of etcd, always of one revision, and every change is decoded once for all who follow it. A write returns only after the
watch has brought it: whoever knows of a write reads it. An item is shared by everybody and never changed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from isthmus import logs
from isthmus.etcd import Compare, Delete, EtcdError, Get, KeyValue, Lease, Put, Session, WatchEvent
from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver import errors
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.beside import beside

log = logs.get("apiserver")

REGISTRY = "/isthmus/registry/"
"""Not where a kube-apiserver keeps its own: the two may be run over one etcd by mistake."""
WINDOW = 4096
"""Changes kept in memory for watches that begin a little in the past; older ones are asked of etcd."""
MAX_QUEUED_CHANGES = 20_000
"""Changes one follower may leave waiting."""
COMPACT_EVERY = 300.0
TIMEOUT = 10.0
"""Seconds a write waits for its own watch event before it fails: the watch of etcd is behind or broken."""


class Item(NamedTuple):
    """A stored object: ``key`` is ``namespace/name`` or ``name``; the body carries its resourceVersion."""

    resource: str
    key: str
    revision: int
    body: Object
    raw: bytes


class Change(NamedTuple):
    """One object put (``new``) or deleted (``new`` is None), and what was there before."""

    resource: str
    key: str
    old: Item | None
    new: Item | None
    revision: int


class Page(NamedTuple):
    """Part of a list: where it goes on ('' at the end), how many are left, and the revision of the whole."""

    items: list[Item]
    more: str
    remaining: int
    revision: int


class Subscription:
    """Changes queued for one follower, in order. ``failure`` is why there will be no more."""

    def __init__(self, resources: frozenset[str] | None) -> None:
        self._resources = resources
        self._changes: deque[Change] = deque()
        self._news = asyncio.Event()
        self.failure: Expired | Transient | None = None
        self.live = False
        """Whether it is fed by the store itself, so that with nothing waiting it is where the store is."""

    def push(self, changes: Iterable[Change]) -> None:
        """Hand over what happened. A follower that lets too much pile up is sent away: it may come back and read."""
        if self.failure is not None:
            return
        before = len(self._changes)
        self._changes.extend(c for c in changes if self._resources is None or c.resource in self._resources)
        if len(self._changes) > MAX_QUEUED_CHANGES:
            self._changes.clear()
            self.fail(Transient(f"more than {MAX_QUEUED_CHANGES} changes are waiting"))
        elif len(self._changes) > before:
            self._news.set()

    def fail(self, why: Expired | Transient) -> None:
        """Say that there will be no more."""
        self.failure = why
        self._news.set()

    async def wait(self, *, timeout: float | None = None) -> list[Change]:
        """What has happened since the last call, as soon as there is any; [] when time is up. Raises the failure."""
        if not self._changes and self.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
        if not self._changes and self.failure is not None:
            raise self.failure
        changes, self._changes = list(self._changes), deque()
        if self.failure is None:
            self._news.clear()
        return changes


class Store:
    """The registry. :meth:`run` keeps memory true to etcd; everything else may be called once :attr:`ready` is set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._items: dict[str, dict[str, Item]] = {}
        self._window: deque[Change] = deque(maxlen=WINDOW)
        self._floor = 0
        self._subscriptions: set[Subscription] = set()
        self._leases: dict[int, Lease] = {}
        self._echo = asyncio.Condition()
        self.revision = 0
        """Of what is in memory."""
        self.seen = 0
        """The highest revision that a response of this etcd has had."""
        self.ready = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when etcd is found not to be the one it was: nothing that was known of it holds."""

    def __repr__(self) -> str:
        objects = sum(map(len, self._items.values()))
        return f"<Store revision {self.revision}: {objects} objects, {len(self._subscriptions)} followers>"

    # ---- reading

    def get(self, resource: str, key: str) -> Item | None:
        """One object, or None."""
        return self._items.get(resource, {}).get(key)

    def items(self, resource: str, namespace: str = "") -> list[Item]:
        """All objects of a resource, or those of one namespace, by key."""
        found = self._items.get(resource, {})
        keys = (key for key in found if key.startswith(f"{namespace}/")) if namespace else found
        return [found[key] for key in sorted(keys)]

    def everything(self) -> list[Item]:
        """All objects there are."""
        return [item for items in self._items.values() for item in items.values()]

    async def page(self, resource: str, namespace: str, *, limit: int, after: str = "", revision: int = 0) -> Page:
        """At most ``limit`` objects after a key, as of a revision (0: now). Raises Expired where that is compacted."""
        prefix = f"{REGISTRY}{resource}/" + (f"{namespace}/" if namespace else "")
        start = f"{REGISTRY}{resource}/{after}\0" if after else prefix
        end = prefix[:-1] + chr(ord("/") + 1)
        found = await self._session.range(start, end, limit, revision)
        items = [item for kv in found.kvs if (item := _item(kv)) is not None]
        self.seen = max(self.seen, found.revision)
        more = _split(found.kvs[-1].key)[1] if found.more else ""
        return Page(items, more, found.count - len(items), revision or found.revision)

    # ---- writing

    async def create(self, resource: str, key: str, body: Object, *, lifetime: int = 0) -> Item | None:
        """Store a new object, for some seconds or (0) for good; None where the name is taken."""
        path = f"{REGISTRY}{resource}/{key}"
        return await self._put(path, body, Compare(path, "version", "==", 0), lifetime)

    async def update(self, item: Item, body: Object, *, lifetime: int = 0) -> Item | None:
        """Store an object anew; None where it is no longer the one that was read, which memory then knows."""
        path = f"{REGISTRY}{item.resource}/{item.key}"
        return await self._put(path, body, Compare(path, "mod_revision", "==", item.revision), lifetime)

    async def delete(self, item: Item) -> bool:
        """Remove an object; False where it is no longer the one that was read, which memory then knows."""
        path = f"{REGISTRY}{item.resource}/{item.key}"
        return bool(await self._write(path, Compare(path, "mod_revision", "==", item.revision), Delete(path)))

    async def _put(self, path: str, body: Object, compare: Compare, lifetime: int) -> Item | None:
        lease = await self._lease(lifetime) if lifetime else 0
        revision = await self._write(path, compare, Put(path, encode(body), lease=lease))
        if not revision:
            return None
        mine = self.get(*_split(path))
        if mine is not None and mine.revision == revision:
            return mine
        written = _item(KeyValue(path, encode(body), mod_revision=revision))
        assert written is not None, "what was just encoded can be decoded"
        return written

    async def _write(self, path: str, compare: Compare, operation: Put | Delete) -> int:
        """The revision of a write, 0 where the condition did not hold. Either way memory is as new as the answer."""
        before = self.get(*_split(path))
        result = await self._session.txn([compare], [operation], [Get(path)])
        self.seen = max(self.seen, result.revision)
        if result.succeeded:
            await self._until(lambda: self.revision >= result.revision)
            return result.revision
        if there := result.responses[0]:
            await self._until(lambda: self.revision >= there[0].mod_revision)
        elif before is not None:
            await self._until(lambda: self.get(*_split(path)) is not before)
        return 0

    async def _lease(self, lifetime: int) -> int:
        """A lease that ends a little after a lifetime, one for all that is written within a short time."""
        lease = self._leases.get(lifetime)
        if lease is None or lease.remaining < lifetime:
            lease = self._leases[lifetime] = await self._session.grant_lease(lifetime + max(1, lifetime // 10))
        return lease.id

    async def _until(self, true: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT), self._echo:
                await self._echo.wait_for(true)
        except TimeoutError:
            raise errors.unavailable("etcd took the write but does not say so: its watch is behind") from None

    # ---- following

    @asynccontextmanager
    async def follow(self, resources: Iterable[str] | None = None, *, revision: int) -> AsyncIterator[Subscription]:
        """What happens after a revision to some resources, or to all. Expired comes out of the subscription."""
        subscription = Subscription(None if resources is None else frozenset(resources))
        if revision > self.seen:
            subscription.fail(Expired(f"revision {revision} is not of this etcd, which is at {self.seen}"))
            yield subscription
        elif revision >= self._floor:
            subscription.push(change for change in self._window if change.revision > revision)
            subscription.live = True
            self._subscriptions.add(subscription)
            try:
                yield subscription
            finally:
                self._subscriptions.discard(subscription)
        else:
            async with beside(self._pump(subscription, revision)):
                yield subscription

    async def _pump(self, subscription: Subscription, revision: int) -> None:
        """Feed one follower, who begins before the window, from a watch of its own."""
        try:
            async for batch in self._session.watch(REGISTRY, revision + 1, previous=True):
                subscription.push(_change(event) for event in batch.events)
            subscription.fail(Transient("etcd closed the watch"))
        except (Expired, Transient) as why:
            subscription.fail(why)

    async def compact(self, *, every: float = COMPACT_EVERY) -> None:
        """Have etcd forget what is older than ``every`` seconds, again and again, as a kube-apiserver does."""
        while True:
            await self.ready.wait()
            before = self.revision
            await asyncio.sleep(every)
            with suppress(Transient, EtcdError, Expired):  # away, or an earlier process compacted more
                await self._session.compact(before)

    async def run(self) -> None:
        """Keep memory true to etcd, for ever."""
        delay = 0.05
        while True:
            try:
                if not self.ready.is_set():
                    await self._load()
                async for batch in self._session.watch(REGISTRY, self.revision + 1, previous=True):
                    delay = 0.05
                    await self._take([self._changed(event) for event in batch.events], batch.revision)
            except Expired as why:
                log.warning("starting over", why=str(why))
                self._start_over(why)
            except Transient as why:
                log.warning("etcd unavailable", why=str(why))
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2.0)

    async def _load(self) -> None:
        listing = await self._session.list(REGISTRY)
        self._items.clear()
        for item in filter(None, map(_item, listing.kvs)):
            self._items.setdefault(item.resource, {})[item.key] = item
        self.revision = self._floor = listing.revision
        self.seen = max(self.seen, listing.revision)
        self.lost.clear()
        self.ready.set()

    def _start_over(self, why: Expired) -> None:
        """Forget: everybody who follows must list again."""
        self.ready.clear()
        self.lost.set()
        self._window.clear()
        self._leases.clear()
        self.seen = 0
        for subscription in self._subscriptions:
            subscription.fail(why)
        self._subscriptions.clear()

    async def _take(self, changes: list[Change], revision: int) -> None:
        for change in changes:
            if len(self._window) == WINDOW:
                self._floor = self._window[0].revision
            self._window.append(change)
        self.revision = max(self.revision, revision)
        self.seen = max(self.seen, revision)
        for subscription in self._subscriptions:
            subscription.push(changes)
        async with self._echo:
            self._echo.notify_all()

    def _changed(self, event: WatchEvent) -> Change:
        """Take one event into memory; what was there before is known from it."""
        resource, key = _split(event.key)
        items = self._items.setdefault(resource, {})
        old = items.pop(key, None)
        new = _item(event.kv) if event.kv is not None else None
        if new is not None:
            items[key] = new
        return Change(resource, key, old, new, event.revision)


def encode(body: Object) -> bytes:
    """An object as it is stored: without the resourceVersion, which is etcd's."""
    metadata = {name: value for name, value in body.get("metadata", {}).items() if name != "resourceVersion"}
    return msgspec.json.encode(body | {"metadata": metadata})


def _item(kv: KeyValue) -> Item | None:
    """A stored object; None, and a warning, where another program has written something else."""
    resource, key = _split(kv.key)
    try:
        body: Object = msgspec.json.decode(kv.value, type=dict[str, Any])
        body["metadata"]["resourceVersion"] = str(kv.mod_revision)
    except (msgspec.MsgspecError, KeyError, TypeError) as why:
        log.warning("not an object", key=kv.key, why=str(why))
        return None
    return Item(resource, key, kv.mod_revision, body, msgspec.json.encode(body))


def _change(event: WatchEvent) -> Change:
    """An event by itself, for a follower of the past."""
    old = _item(event.prev_kv) if event.prev_kv is not None else None
    new = _item(event.kv) if event.kv is not None else None
    return Change(*_split(event.key), old, new, event.revision)


def _split(path: str) -> tuple[str, str]:
    resource, _, key = path.removeprefix(REGISTRY).partition("/")
    return resource, key
