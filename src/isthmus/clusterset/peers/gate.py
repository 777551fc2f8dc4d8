"""A peer's records as a store to follow: listed after its canary exists, and listed again after a lost connection.

The store that answers after a break may be another one: wiped, restored from a backup, another replica. Revisions are
not comparable, so the list is read again, and waits for the canary again, which a store that is being refilled lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from isthmus.clusterset.records.admission import Pace
from isthmus.etcd import KeyStore, KeyValue
from isthmus.reflector import Batch, Expired, Listing, Store

LIST_AGAIN: Final = 5.0
"""Minimum seconds between two lists that are read to admit refused records: each list decodes all records."""


class GatedStore:
    """A ``reflector.Store`` that is listed once the key ``canary`` exists; ``None`` lists at once.

    ``pace`` limits how fast changes are read; a list is limited by its size. :meth:`list_again` ends a watch, so that a
    list is read: after the next change, and no sooner than LIST_AGAIN after the last one.
    """

    def __init__(self, store: Store[KeyValue], *, canary: KeyStore | None = None, pace: Pace | None = None) -> None:
        self._store = store
        self._canary = canary
        self._pace = pace
        self._listed = False
        self._listed_at = 0.0
        self._list_again = False

    def list_again(self) -> None:
        """Request a new list soon."""
        self._list_again = True

    async def list(self) -> Listing[KeyValue]:
        """Wait for the canary, then list all records: before it exists, the list may be incomplete."""
        if self._canary is not None:
            await _appearance(self._canary)
        listing = await self._store.list()
        self._listed, self._listed_at, self._list_again = True, _loop_time(), False
        return listing

    async def watch(self, revision: str) -> AsyncIterator[Batch[KeyValue]]:
        """Yield the changes after the list; Expired if the connection broke since."""
        if not self._listed:
            raise Expired("the connection was lost since the last list")
        self._listed = False
        async for batch in self._store.watch(revision):
            if self._pace is not None:
                await self._pace.take(len(batch.events))
            yield batch
            if self._list_again and _loop_time() >= self._listed_at + LIST_AGAIN:
                raise Expired("there is room for records that were refused")


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _appearance(canary: KeyStore) -> None:
    """Return when the key exists."""
    listing = await canary.list()
    if listing.items:
        return
    async for batch in canary.watch(listing.revision):
        if any(event.item is not None for event in batch.events):
            return
