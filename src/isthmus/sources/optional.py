"""Kinds that a cluster may not serve or may forbid to list: these list as empty, so that no table waits for them."""

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
"""Seconds between checks for a definition that was installed or a permission that was granted since."""

log = logs.get("sources")


class Optional(Generic[T]):
    """A reflector's store of a kind that may be missing, or be installed and removed at run time.

    ``may_be_forbidden`` is false for rules of access, which an absent permission must not make disappear.
    """

    def __init__(
        self,
        client: kube.Client,
        kind: kube.Kind[Any],
        store: Store[T],
        *,
        look_again: float = LOOK_AGAIN,
        may_be_forbidden: bool = True,
    ) -> None:
        self._client = client
        self._kind = kind
        self._store = store
        self._look_again = look_again
        self._may_be_forbidden = may_be_forbidden
        self._listed = False
        self._logged = ""

    def __repr__(self) -> str:
        return f"<Optional {self._store!r}>"

    async def list(self) -> Listing[T]:
        """List all objects; a complete empty list if the kind is not served or was never permitted."""
        return await self._listing() or Listing({}, ABSENT)

    async def watch(self, revision: str) -> AsyncIterator[Batch[T]]:
        """Watch changes after a revision. For a kind that cannot be listed, wait until it can, then raise Expired."""
        if revision != ABSENT:
            async for batch in self._store.watch(revision):
                yield batch
            return
        yield Batch((), revision)
        while await self._listing() is None:  # noqa: ASYNC110 nothing local signals it
            await asyncio.sleep(self._look_again)
        raise Expired(f"{self._kind} can be listed now")

    async def _listing(self) -> Listing[T] | None:
        """Return the list; ``None`` if the kind is not served or forbidden.

        Once it has been listed, a forbidden kind is an error, so its rows stay. It always is for rules of access.
        """
        try:
            listing = await self._store.list() if await self._served() else None
        except Transient as error:
            kept = self._listed or not self._may_be_forbidden
            if kept or not isinstance(error.__cause__, kube.Forbidden):
                raise
            self._log(str(error))
            return None
        self._listed = listing is not None
        return listing

    def _log(self, reason: str) -> None:
        if reason != self._logged:
            log.warning("going on without a kind that we may not list", kind=str(self._kind), why=reason)
        self._logged = reason

    async def _served(self) -> bool:
        try:
            return await self._client.serves(self._kind)
        except kube.KubeError as error:
            raise Transient(str(error)) from error
