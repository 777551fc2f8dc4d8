"""A kind that a cluster may not have, or not let us list: then it has no objects, and no table waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

from isthmus import kube, logs
from isthmus.reflector import Batch, Expired, Listing, Store, Transient

T = TypeVar("T")

ABSENT: Final = "absent"
"""The revision of a list of a kind that is not served."""
LOOK_AGAIN: Final = 30.0
"""Seconds between looks whether its definition has been installed since, or the right to list it been given."""

log = logs.get("sources")


class Optional(Generic[T]):
    """A reflector's store of a kind that may be missing, and may come and go while we run."""

    def __init__(
        self, client: kube.Client, kind: kube.Kind[Any], store: Store[T], *, look_again: float = LOOK_AGAIN
    ) -> None:
        self._client = client
        self._kind = kind
        self._store = store
        self._look_again = look_again
        self._listed = False
        self._logged = ""

    def __repr__(self) -> str:
        return f"<Optional {self._store!r}>"

    async def list(self) -> Listing[T]:
        """Everything there is; nothing, and no more to come, where the kind is not served or was never ours to see."""
        return await self._found() or Listing({}, ABSENT)

    async def watch(self, revision: str) -> AsyncIterator[Batch[T]]:
        """What changes after a revision; for a kind that cannot be listed, until it can."""
        if revision != ABSENT:
            async for batch in self._store.watch(revision):
                yield batch
            return
        yield Batch((), revision)
        while await self._found() is None:  # noqa: ASYNC110 nothing local signals it
            await asyncio.sleep(self._look_again)
        raise Expired(f"{self._kind} can be listed now")

    async def _found(self) -> Listing[T] | None:
        """The list, or None where there is none. Once listed, a kind that is forbidden is an error: its rows stay."""
        try:
            found = await self._store.list() if await self._served() else None
        except Transient as why:
            if self._listed or not isinstance(why.__cause__, kube.Forbidden):
                raise
            self._log(str(why))
            return None
        self._listed = found is not None
        return found

    def _log(self, why: str) -> None:
        if why != self._logged:
            log.warning("going on without a kind that we may not list", kind=str(self._kind), why=why)
        self._logged = why

    async def _served(self) -> bool:
        try:
            return await self._client.serves(self._kind)
        except kube.KubeError as why:
            raise Transient(str(why)) from why
