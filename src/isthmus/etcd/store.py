"""The keys of a prefix, or one key, as a store that a reflector lists and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

from isthmus import bounds
from isthmus.etcd.errors import EtcdError
from isthmus.etcd.session import NO_LIMITS, Session
from isthmus.etcd.values import KeyValue, Limits
from isthmus.reflector import Batch, Event, Listing, Transient


class PrefixStore:
    """A ``reflector.Store`` of all keys with a prefix; the keys of its items have the prefix removed."""

    def __init__(self, session: Session, prefix: str, *, limits: Limits = NO_LIMITS) -> None:
        self._session = session
        self._limits = limits
        if (group := limits.group) is not None:
            self._limits = limits._replace(group=lambda key: group(key.removeprefix(prefix)))
        self._store_id = 0
        self._prefix = prefix
        self.left_out: Mapping[str, int] = {}
        """Keys of the last list beyond their group's share of the limits, by group."""

    def __repr__(self) -> str:
        return f"<PrefixStore {self._prefix}>"

    async def list(self) -> Listing[KeyValue]:
        """All keys."""
        with _refusals_are_transient():
            listing = await self._session.list(self._prefix, limits=self._limits)
        self._store_id, self.left_out = listing.store, listing.left_out
        items = {kv.key.removeprefix(self._prefix): kv for kv in listing.kvs}
        return Listing(items, str(listing.revision))

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """Changes after a revision."""
        with _refusals_are_transient():
            async for batch in self._session.watch(self._prefix, _following(revision), store=self._store_id):
                events = [Event(event.key.removeprefix(self._prefix), event.kv) for event in batch.events]
                yield Batch(events, str(batch.revision))


class KeyStore:
    """A ``reflector.Store`` of one key, under the empty name: needs permission for that key only."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._store_id = 0
        self._key = key

    def __repr__(self) -> str:
        return f"<KeyStore {self._key}>"

    async def list(self) -> Listing[KeyValue]:
        """The key, if it exists."""
        with _refusals_are_transient():
            listing = await self._session.read(self._key)
        self._store_id = listing.store
        return Listing({"": listing.kvs[0]} if listing.kvs else {}, str(listing.revision))

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """Its changes after a revision."""
        with _refusals_are_transient():
            async for batch in self._session.watch(self._key, _following(revision), store=self._store_id, exact=True):
                yield Batch([Event("", event.kv) for event in batch.events], str(batch.revision))


def _following(revision: str) -> int:
    """The revision after the one that a list or a watch gave."""
    return bounds.count(revision, most=bounds.MAX_INT64) + 1


@contextmanager
def _refusals_are_transient() -> Iterator[None]:
    """A refusal as Transient: a reflector retries, since an administrator may remove its cause."""
    try:
        yield
    except EtcdError as refused:
        raise Transient(str(refused)) from None
