"""The keys below a prefix, or one key, as something the reflector can follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from isthmus.etcd.errors import EtcdError
from isthmus.etcd.session import NO_LIMITS, Session
from isthmus.etcd.values import KeyValue, Limits
from isthmus.reflector import Batch, Event, Listing, Transient


class PrefixStore:
    """A ``reflector.Store`` of everything below a prefix; its keys are relative to it."""

    def __init__(self, session: Session, prefix: str, *, limits: Limits = NO_LIMITS) -> None:
        self._session = session
        self._limits = limits
        self._listed = 0
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"<PrefixStore {self._prefix}>"

    async def list(self) -> Listing[KeyValue]:
        """Everything there is."""
        with _worth_another_try():
            listing = await self._session.list(self._prefix, limits=self._limits)
        self._listed = listing.store
        items = {kv.key.removeprefix(self._prefix): kv for kv in listing.kvs}
        return Listing(items, str(listing.revision))

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """What changes after a revision."""
        with _worth_another_try():
            async for batch in self._session.watch(self._prefix, int(revision) + 1, store=self._listed):
                events = [Event(event.key.removeprefix(self._prefix), event.kv) for event in batch.events]
                yield Batch(events, str(batch.revision))


class KeyStore:
    """A ``reflector.Store`` of one key, which has no name among the items: the right to read it is enough."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._listed = 0
        self._key = key

    def __repr__(self) -> str:
        return f"<KeyStore {self._key}>"

    async def list(self) -> Listing[KeyValue]:
        """The key, where it is there."""
        with _worth_another_try():
            listing = await self._session.read(self._key)
        self._listed = listing.store
        return Listing({"": listing.kvs[0]} if listing.kvs else {}, str(listing.revision))

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """What becomes of it after a revision."""
        with _worth_another_try():
            async for batch in self._session.watch(self._key, int(revision) + 1, store=self._listed, exact=True):
                yield Batch([Event("", event.kv) for event in batch.events], str(batch.revision))


@contextmanager
def _worth_another_try() -> Iterator[None]:
    """A reflector knows two failures: what the store refuses today it may take when somebody has mended it."""
    try:
        yield
    except EtcdError as refused:
        raise Transient(str(refused)) from None
