"""The loop under every controller: changes → keys to look at → a look at each, retried later where it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from isthmus import logs
from isthmus.etcd import EtcdError
from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.storage import Change

log = logs.get("controllers")

INITIAL_RETRY_DELAY: Final = 0.02
MAX_RETRY_DELAY: Final = 5.0
MAX_BACKOFF: Final = 0.1
"""Longest pause after a round, in seconds. A controller pauses twice as long as the round took; a change meanwhile is
looked at once, so a thousand changes cost no thousand looks, and a single one does not wait."""

Keys = Callable[[Change], Iterable[str]]
Reconcile = Callable[[str], Awaitable[float | None]]
"""Makes true what the object with a key asks for; seconds after which to look again, or None."""


class Controller:
    """One controller. It looks at every key once at its start, and then at those that a change may concern."""

    def __init__(
        self, api: Api, *, name: str, follows: Iterable[Kind] | None, keys: Keys, reconcile: Reconcile
    ) -> None:
        self._api = api
        self._resources = None if follows is None else [kind.qualified for kind in follows]
        self._keys = keys
        self._reconcile = reconcile
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self.name = name

    def __repr__(self) -> str:
        return f"<Controller {self.name}: {len(self._due)} due, {len(self._failures)} failing>"

    async def run(self) -> None:
        """Work, until cancelled. A store that starts over is read anew."""
        while True:
            await self._api.store.ready.wait()
            try:
                await self._follow()
            except (Expired, Transient) as error:
                log.info("listing again", controller=self.name, why=str(error))
                await asyncio.sleep(INITIAL_RETRY_DELAY)

    async def _follow(self) -> None:
        store, clock = self._api.store, asyncio.get_running_loop().time
        async with store.follow(self._resources, revision=store.revision) as subscription:
            objects = store.everything()
            self._take(Change(i.resource, i.key, None, i, i.revision) for i in objects if self._follows(i.resource))
            while True:
                began = clock()
                for key in [key for key, when in self._due.items() if when <= began]:
                    del self._due[key]
                    await self._look(key)
                await asyncio.sleep(min(MAX_BACKOFF, 2 * (clock() - began)))
                wait = min(self._due.values()) - clock() if self._due else None
                self._take(await subscription.wait(timeout=None if wait is None else max(0.0, wait)))

    def _follows(self, resource: str) -> bool:
        return self._resources is None or resource in self._resources

    def _take(self, changes: Iterable[Change]) -> None:
        for change in changes:
            try:
                keys = list(self._keys(change))
            except Exception:
                log.exception("broken", controller=self.name, resource=change.resource, key=change.key)
                continue
            self._due.update(dict.fromkeys(keys, 0.0))

    async def _look(self, key: str) -> None:
        now = asyncio.get_running_loop().time()
        try:
            retry_in = await self._reconcile(key)
        except (ApiError, Transient, EtcdError) as error:
            retry_in = self._failed(key)
            log.info("failed", controller=self.name, key=key, why=str(error), retry_in=retry_in)
        except Exception:
            retry_in = self._failed(key)  # one object that we do not cope with must not stop the others
            log.exception("broken", controller=self.name, key=key, retry_in=retry_in)
        else:
            self._failures.pop(key, None)
        if retry_in is not None:
            self._due.setdefault(key, now + retry_in)

    def _failed(self, key: str) -> float:
        """Seconds until the next try: doubling, capped."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return min(MAX_RETRY_DELAY, INITIAL_RETRY_DELAY * 2.0 ** min(failures, 16))


def author(name: str) -> Author:
    """The author of a controller's writes, with its field manager name."""
    return Author(name)
