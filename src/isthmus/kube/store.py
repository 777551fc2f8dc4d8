"""List and watch of one kind, as the store of a reflector.

Paged lists, watches with bookmarks, events in the batches they came in. Lines are split here and not by the HTTP
library, whose own limit is below what an object may weigh. An object that cannot be decoded costs itself only: one
warning, and it counts as absent, in a list as in a watch, or is given as Unreadable where that is asked for.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from isthmus import bounds, logs
from isthmus.kube.errors import Invalid, KubeError, NotServed, Status, Unreachable, failure
from isthmus.kube.kind import Kind, Object, key_of
from isthmus.kube.objects.meta import ListMeta, Meta
from isthmus.kube.transport import Transport
from isthmus.reflector import Batch, Event, Expired, Listing, Transient, Unreadable

if TYPE_CHECKING:
    from isthmus.kube.client import Client

T = TypeVar("T", bound=Object)


class Limits(NamedTuple):
    """Bounds of lists and watches. Times are in seconds."""

    page: int = 500
    """Objects of a page of a list."""
    watch: float = 300.0
    """The server ends a watch after this long to twice as long, so that not all clients come back at once."""
    late: float = 15.0
    """Seconds by which a server may exceed the end of a watch before the stream is considered dead."""
    silent: float = 150.0
    """Time in which a server sends two bookmarks or more. A watch that ended without any may be one from a revision
    that the server has not reached yet, because its store was restored: it would stay silent for ever."""
    event: int = 64 * 1024 * 1024
    """Bytes of one event beyond which this is no API server; etcd takes objects of 1.5 MB."""


LIMITS: Final = Limits()

TURN_BYTES: Final = 1024 * 1024
"""Bytes of a list that are decoded in one turn of the loop: about 10 ms."""
_PUT: Final = frozenset({"ADDED", "MODIFIED"})

log = logs.get("kube")


class _Page(Struct, frozen=True, gc=False):
    metadata: ListMeta = ListMeta()
    items: list[Raw] | None = None


class _WatchEvent(Struct, frozen=True, gc=False):
    type: str
    object: Raw


class _OnlyMeta(Struct, frozen=True, gc=False):
    metadata: Meta


_page = msgspec.json.Decoder(_Page)
_event = msgspec.json.Decoder(_WatchEvent)
_only_meta = msgspec.json.Decoder(_OnlyMeta)
_status = msgspec.json.Decoder(Status)


class KubeStore(Generic[T]):
    """All objects of a kind, or those of a namespace or selector; see :class:`isthmus.reflector.Store`."""

    def __init__(
        self,
        client: Client,
        transport: Transport,
        kind: Kind[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limits: Limits = LIMITS,
        unreadable: bool = False,
    ) -> None:
        self._client = client
        self._transport = transport
        self._kind = kind
        self._namespace = namespace
        self._selectors = _selectors(label_selector, field_selector)
        self._decoder = msgspec.json.Decoder(kind.struct)
        self._limits = limits
        self._unreadable = unreadable
        """Deliver objects that cannot be decoded as Unreadable."""

    def __repr__(self) -> str:
        return f"<KubeStore of {self._kind}>"

    async def list(self) -> Listing[T]:
        """Everything, page by page, all of one revision."""
        try:
            served = await self._client.served(self._kind)
            path, size = served.path(self._namespace), self._limits.page
            items, revision = await pages(self._transport, served, path, size=size, **self._selectors)
        except NotServed as error:
            self._client.forget(self._kind)
            raise Transient(str(error)) from None
        except KubeError as error:
            raise _transient(error) from error
        return Listing(self._asked_for(items), revision)

    def _asked_for(self, items: dict[str, T | Unreadable]) -> dict[str, T]:
        return cast("dict[str, T]", items) if self._unreadable else readable(items, self._kind)

    async def watch(self, revision: str) -> AsyncIterator[Batch[T]]:
        """Yield the changes after a revision. The first batch is empty and signals that the watch is established."""
        seconds = math.floor(self._limits.watch * (1 + random.random()))
        try:
            served = await self._client.served(self._kind)
            what = f"watch {served.resource}"
            async with self._transport.stream(
                served.path(self._namespace),
                params=self._parameters(revision, seconds),
                silence=seconds + self._limits.late,
                what=what,
            ) as chunks:
                yield Batch((), revision)
                silent_since: float | None = asyncio.get_running_loop().time()
                async for lines in _lines(chunks, what, self._limits.event):
                    silent_since = None
                    batch, error = self._batch(lines, revision, what)
                    revision = batch.revision
                    yield batch
                    if error is not None:
                        raise error
                if silent_since is not None and asyncio.get_running_loop().time() - silent_since >= self._limits.silent:
                    raise Expired(f"{what}: silent from its start to its end")
        except (NotServed, Invalid) as error:
            self._client.forget(self._kind)
            raise Expired(str(error)) from None
        except KubeError as error:
            raise _transient(error) from None

    def _parameters(self, revision: str, seconds: int) -> dict[str, str]:
        return {
            "watch": "1",
            "resourceVersion": revision,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **_query(**self._selectors),
        }

    def _batch(self, lines: Iterable[bytes], revision: str, what: str) -> tuple[Batch[T], Exception | None]:
        """The events of some lines, up to the first that ends the watch, and that one as an error."""
        events: list[Event[Any]] = []
        for line in lines:
            try:
                change = bounds.json(line, _event)
                if change.type == "ERROR":
                    return Batch(events, revision), failure(what, bounds.json(change.object, _status))
                item = _read(self._decoder, change.object) if change.type in _PUT else None
                meta = _meta(change.object) if item is None or isinstance(item, Unreadable) else item.metadata
            except msgspec.MsgspecError as error:
                return Batch(events, revision), Expired(f"{what}: an event cannot be read: {error}")
            revision = meta.resource_version or revision
            if change.type != "BOOKMARK":
                given = item if self._unreadable else _readable(item, key_of(meta), self._kind)
                events.append(Event(key_of(meta), given))
        return Batch(events, revision), None


async def pages(
    transport: Transport,
    kind: Kind[T],
    path: str,
    *,
    label_selector: str = "",
    field_selector: str = "",
    size: int = LIMITS.page,
) -> tuple[dict[str, T | Unreadable], str]:
    """All objects under a path by key, and their revision. Pages that ran out are followed by one whole list.

    The revision is that of the first page: should a server not keep its word that all pages are of one, a watch from
    there makes good what later pages missed.
    """
    decoder = msgspec.json.Decoder(kind.struct)
    query = _query(label_selector=label_selector, field_selector=field_selector)
    items: dict[str, T | Unreadable] = {}
    limit, following, revision = size, "", ""
    while True:
        params = query | ({"limit": str(limit)} if limit else {}) | ({"continue": following} if following else {})
        try:
            page = await _fetch(transport, path, params, f"list {kind.resource}")
        except Expired:
            if not following:
                raise
            items, limit, following, revision = {}, 0, "", ""
            continue
        read = 0
        for raw in page.items or ():
            if (read := read + len(memoryview(raw))) > TURN_BYTES:
                read = 0
                await asyncio.sleep(0)
            item = _read(decoder, raw)
            items[_name(raw) if isinstance(item, Unreadable) else key_of(item.metadata)] = item
        revision = revision or page.metadata.resource_version
        following = page.metadata.continue_
        if not following:
            return items, revision


async def _fetch(transport: Transport, path: str, params: dict[str, str], what: str) -> _Page:
    answer = await transport.request("GET", path, params=params, what=what)
    try:
        return bounds.json(answer, _page)
    except msgspec.MsgspecError as error:
        raise Unreachable(f"{what}: the answer is no list: {error}") from None


async def _lines(chunks: AsyncIterator[bytes], what: str, longest: int = LIMITS.event) -> AsyncIterator[list[bytes]]:
    """The whole lines of each chunk; what is left when the stream ends was cut off and is dropped."""
    rest: list[bytes] = []
    size = 0
    async for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            size += len(chunk)
            if size > longest:
                raise Unreachable(f"{what}: an event of more than {longest} bytes; is this an API server?")
            continue
        whole = b"".join((*rest, head))
        rest, size = [tail], len(tail)
        if lines := [line for line in whole.split(b"\n") if line.strip()]:
            yield lines


def readable(items: Mapping[str, T | Unreadable], kind: Kind[Any]) -> dict[str, T]:
    """Objects without those that cannot be decoded, with a warning about each of these."""
    readable = ((key, _readable(item, key, kind)) for key, item in items.items())
    return {key: item for key, item in readable if item is not None}


def _readable(item: T | Unreadable | None, key: str, kind: Kind[Any]) -> T | None:
    if isinstance(item, Unreadable):
        log.warning("object cannot be read", kind=kind.kind, name=key, why=item.why)
        return None
    return item


def _read(decoder: msgspec.json.Decoder[T], raw: Raw) -> T | Unreadable:
    """The object, or why it cannot be decoded: at which field."""
    try:
        return bounds.json(raw, decoder)
    except msgspec.MsgspecError as error:
        return Unreadable(str(error), _uid(raw))


def _name(raw: Raw) -> str:
    try:
        return key_of(_meta(raw))
    except msgspec.MsgspecError:
        return "(without a readable name)"


def _uid(raw: Raw) -> str:
    try:
        return _meta(raw).uid
    except msgspec.MsgspecError:
        return ""


def _meta(raw: Raw) -> Meta:
    return bounds.json(raw, _only_meta).metadata


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    return {"label_selector": label_selector, "field_selector": field_selector}


def _query(*, label_selector: str, field_selector: str) -> dict[str, str]:
    return {k: v for k, v in (("labelSelector", label_selector), ("fieldSelector", field_selector)) if v}


def _transient(error: KubeError) -> Transient:
    """A refusal is no reason to give up either: a role or a definition may be on its way."""
    return error if isinstance(error, Transient) else Transient(str(error))
