"""A watch over HTTP: one JSON object per line, for as long as the client stays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, Protocol

import msgspec
from aiohttp import web

from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver import errors, requests, tables
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.apiserver.replies import ResponseFormat
from isthmus_lab.apiserver.requests import ObjectPath
from isthmus_lab.apiserver.selectors import Predicate
from isthmus_lab.apiserver.storage import Change, Item, Store, Subscription

BOOKMARK_EVERY = 10.0
"""Seconds without an event after which a client that asked for bookmarks gets one."""

Type = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class Output(Protocol):
    """Where lines go: a response over HTTP, or what stands for one."""

    async def write(self, data: bytes, /) -> object:
        """Send some lines."""
        ...


class Watch:
    """One client that follows one kind, or a part of it."""

    def __init__(self, request: web.Request, store: Store, target: ObjectPath) -> None:
        self._store = store
        self._target = target
        self._form = ResponseFormat(request, target)
        self._selected: Predicate | None = requests.selector(request, target.name)
        self._bookmarks = requests.truth(request, "allowWatchBookmarks")
        self._initial = requests.truth(request, "sendInitialEvents")
        self._prefix = f"{target.namespace}/" if target.namespace else ""
        self._start = request.query.get("resourceVersion", "")
        timeout = request.query.get("timeoutSeconds")
        self._timeout = requests.number(timeout, "timeoutSeconds") if timeout else random.uniform(1800, 3600)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send events until the timeout ends or the client disconnects."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await self.feed(response, begin=lambda: response.prepare(request))
        await response.write_eof()
        return response

    async def feed(self, response: Output, *, begin: Callable[[], Awaitable[object]]) -> None:
        """Write events to anything until the timeout ends; ``begin`` is called once the watch is known to be valid."""
        fresh = self._start in ("", "0") or self._initial
        start = self._store.revision if fresh else requests.number(self._start, "resourceVersion")
        items = self._store.items(self._target.kind.qualified, self._target.namespace) if fresh else []
        async with self._store.follow([self._target.kind.qualified], revision=start) as subscription:
            await begin()
            first = [self._line("ADDED", item.body, item) for item in items if self._has(item)]
            if self._initial and self._bookmarks:
                first.append(self._bookmark(start, initial=True))
            if first:
                await response.write(b"".join(first))
            await self._follow(response, subscription, start)

    async def _follow(self, response: Output, subscription: Subscription, revision: int) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout
        try:
            while (remaining := end - loop.time()) > 0:
                changes = await subscription.wait(timeout=min(remaining, BOOKMARK_EVERY))
                lines = [line for change in changes for line in self._lines(change)]
                if changes:
                    revision = max(revision, changes[-1].revision)
                elif subscription.live:
                    revision = max(revision, self._store.revision)
                if not changes and self._bookmarks:
                    lines = [self._bookmark(revision)]
                if lines:
                    await response.write(b"".join(lines))
        except Expired as error:
            await response.write(self._line("ERROR", errors.expired(f"too old resource version: {error}").status()))
        except Transient:
            pass  # the client watches again from its last revision

    def _lines(self, change: Change) -> Iterator[bytes]:
        """Events of a change for this client: an object may enter or leave its selection."""
        if not change.key.startswith(self._prefix):
            return
        old, new = self._if_selected(change.old), self._if_selected(change.new)
        if new is not None:
            yield self._line("MODIFIED" if old is not None else "ADDED", new.body, new)
        elif old is not None:
            last = change.new or old
            removed = last.body | {"metadata": last.body["metadata"] | {"resourceVersion": str(change.revision)}}
            yield self._line("DELETED", removed)

    def _if_selected(self, item: Item | None) -> Item | None:
        return item if item is not None and self._has(item) else None

    def _has(self, item: Item) -> bool:
        return self._selected is None or self._selected(item.body)

    def _line(self, kind: Type, body: Object, item: Item | None = None) -> bytes:
        raw = msgspec.json.encode(body) if kind == "ERROR" else self._form.event(body, item)
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)

    def _bookmark(self, revision: int, *, initial: bool = False) -> bytes:
        meta: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind = self._target.kind
        body = {"kind": kind.kind, "apiVersion": kind.api_version(self._target.version), "metadata": meta}
        if self._form.table:
            body = tables.table(kind, [], include="None", meta=meta, header=False)
        return b'{"type":"BOOKMARK","object":%s}\n' % msgspec.json.encode(body)
