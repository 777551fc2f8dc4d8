"""A peer's records as a store to follow: not before its canary, and never resumed over a lost connection.

What answers after a break may be another store: wiped, restored from a backup, another replica. Revisions of one mean
nothing in the other, so the list is read again, behind the canary again: a store that is being refilled has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from isthmus.clusterset.admission import Pace
from isthmus.etcd import KeyStore, KeyValue
from isthmus.reflector import Batch, Expired, Listing, Store


class GatedStore:
    """A ``reflector.Store`` whose ``canary`` is a key that is there once it may be listed; None: it may at once.

    ``pace`` limits how fast changes are read; a list is limited by its size.
    """

    def __init__(self, store: Store[KeyValue], *, canary: KeyStore | None = None, pace: Pace | None = None) -> None:
        self._store = store
        self._canary = canary
        self._pace = pace
        self._listed = False

    async def list(self) -> Listing[KeyValue]:
        """Everything there is, once the canary is there: before that it may be half of it."""
        if self._canary is not None:
            await _appearance(self._canary)
        listing = await self._store.list()
        self._listed = True
        return listing

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """What changes after the list; Expired when there was a break since."""
        if not self._listed:
            raise Expired("the connection was lost since the last list")
        self._listed = False
        async for batch in self._store.watch(revision):
            if self._pace is not None:
                await self._pace.take(len(batch.events))
            yield batch


async def _appearance(canary: KeyStore) -> None:
    """Return when the key exists."""
    listing = await canary.list()
    if listing.items:
        return
    async for batch in canary.watch(listing.revision):
        if any(event.item is not None for event in batch.events):
            return
