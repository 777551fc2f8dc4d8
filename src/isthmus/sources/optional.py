"""A kind that a cluster may not have: then there are no objects of it, which is no trouble and keeps nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

from isthmus import kube
from isthmus.reflector import Batch, Expired, Listing, Store, Transient

T = TypeVar("T")

ABSENT: Final = "absent"
"""The revision of a list of a kind that is not served."""
LOOK_AGAIN: Final = 30.0
"""Seconds between looks whether its definition has been installed since."""


class Optional(Generic[T]):
    """A reflector's store of a kind that may be missing, and may come and go while we run."""

    def __init__(
        self, client: kube.Client, kind: kube.Kind[Any], store: Store[T], *, look_again: float = LOOK_AGAIN
    ) -> None:
        self._client = client
        self._kind = kind
        self._store = store
        self._look_again = look_again

    def __repr__(self) -> str:
        return f"<Optional {self._store!r}>"

    async def list(self) -> Listing[T]:
        """Everything there is; nothing, and that is all of it, where the kind is not served."""
        return await self._store.list() if await self._served() else Listing({}, ABSENT)

    async def watch(self, revision: str) -> AsyncIterator[Batch[T]]:
        """What changes after a revision; for a missing kind, until it is served."""
        if revision != ABSENT:
            async for batch in self._store.watch(revision):
                yield batch
            return
        yield Batch((), revision)
        while not await self._served():  # noqa: ASYNC110 a server far away sets no event
            await asyncio.sleep(self._look_again)
        raise Expired(f"{self._kind} is served now")

    async def _served(self) -> bool:
        try:
            return await self._client.serves(self._kind)
        except kube.KubeError as why:
            raise Transient(str(why)) from None
