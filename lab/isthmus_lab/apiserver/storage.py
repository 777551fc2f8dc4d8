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
from isthmus_lab.beside import in_background

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
    """One object put (``new``) or deleted (``new`` is None), and its previous version."""

    resource: str
    key: str
    old: Item | None
    new: Item | None
    revision: int


class Page(NamedTuple):
    """One page of a list, its continue key ('' on the last page), remaining count, and revision."""

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
        """True if the store feeds it directly: with an empty queue it is then at the store's revision."""

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

    def fail(self, error: Expired | Transient) -> None:
        """Say that there will be no more."""
        self.failure = error
        self._news.set()

    async def wait(self, *, timeout: float | None = None) -> list[Change]:
        """Wait for changes since the last call; [] on timeout. Raises the failure."""
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
        """Revision of the objects in memory."""
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
        objects = self._items.get(resource, {})
        keys = (key for key in objects if key.startswith(f"{namespace}/")) if namespace else objects
        return [objects[key] for key in sorted(keys)]

    def everything(self) -> list[Item]:
        """All objects there are."""
        return [item for items in self._items.values() for item in items.values()]

    async def page(self, resource: str, namespace: str, *, limit: int, after: str = "", revision: int = 0) -> Page:
        """At most ``limit`` objects after a key. Revision 0 is the current one; Expired if it is compacted."""
        prefix = f"{REGISTRY}{resource}/" + (f"{namespace}/" if namespace else "")
        start = f"{REGISTRY}{resource}/{after}\0" if after else prefix
        end = prefix[:-1] + chr(ord("/") + 1)
        result = await self._session.range(start, end, limit, revision)
        items = [item for kv in result.kvs if (item := _item(kv)) is not None]
        self.seen = max(self.seen, result.revision)
        more = _split(result.kvs[-1].key)[1] if result.more else ""
        return Page(items, more, result.count - len(items), revision or result.revision)

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
        if current := result.responses[0]:
            await self._until(lambda: self.revision >= current[0].mod_revision)
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
        """Subscribe to changes after a revision, of some or all resources. The subscription raises Expired."""
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
            async with in_background(self._pump(subscription, revision)):
                yield subscription

    async def _pump(self, subscription: Subscription, revision: int) -> None:
        """Feed one follower, who begins before the window, from a watch of its own."""
        try:
            async for batch in self._session.watch(REGISTRY, revision + 1, previous=True):
                subscription.push(_change(event) for event in batch.events)
            subscription.fail(Transient("etcd closed the watch"))
        except (Expired, Transient) as error:
            subscription.fail(error)

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
            except Expired as error:
                log.warning("starting over", why=str(error))
                self._start_over(error)
            except Transient as error:
                log.warning("etcd unavailable", why=str(error))
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

    def _start_over(self, error: Expired) -> None:
        """Forget: everybody who follows must list again."""
        self.ready.clear()
        self.lost.set()
        self._window.clear()
        self._leases.clear()
        self.seen = 0
        for subscription in self._subscriptions:
            subscription.fail(error)
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
        """Apply one event to memory; returns the change with the previous object."""
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
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        log.warning("not an object", key=kv.key, why=str(error))
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
