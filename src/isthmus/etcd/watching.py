"""A watch: one stream, events in order, and what the server does not say clearly said clearly.

Facts this rests on. A stale start revision is answered by ``created`` and then ``canceled`` with the compaction
revision. A start revision in the future is not answered by an error: a store that lost its data is recognised by the
revision in ``created``. While the server catches up, a response's header is ahead of its events: only the events'
own revisions say how far we are. A progress response may overtake events on servers before 3.4.25 and 3.5.8: it is
believed when the next one comes and no event came between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import grpc.aio

from isthmus.etcd import wire
from isthmus.etcd.errors import NOT_ALLOWED, STALE_TOKEN, Denied
from isthmus.etcd.transport import Transport, reply
from isthmus.etcd.values import WatchBatch, WatchEvent, end_of, key_value, start_of
from isthmus.reflector import Expired, Transient


class Asked(NamedTuple):
    """What is watched: below a prefix or one exact key, from which revision on, and whether with what was before."""

    prefix: str
    revision: int
    exact: bool
    previous: bool


async def watch(transport: Transport, asked: Asked, *, progress: float, store: int) -> AsyncIterator[WatchBatch]:
    """Batches from a revision on; bookmarks while idle, every ``progress`` seconds.

    Raises Expired on compaction, when the store went back or is another one, Denied when it may not be read, Transient
    when the stream breaks.
    """
    begun, token = False, transport.token
    try:
        async with aclosing(_watch_once(transport, asked, progress=progress, store=store)) as batches:
            async for batch in batches:
                begun = True
                yield batch
    except Denied:
        # Servers such as 3.5.1 say "permission denied" for a stale token too. One that was given just now is not stale.
        if begun or not token:
            raise
    transport.forget_token(token)
    async with aclosing(_watch_once(transport, asked, progress=progress, store=store)) as batches:
        async for batch in batches:
            yield batch


async def _watch_once(
    transport: Transport, asked: Asked, *, progress: float, store: int
) -> AsyncGenerator[WatchBatch, None]:
    """One watch of the server's, which ends by an exception."""
    prefix, revision, exact, previous = asked
    stream, at = await transport.stream(wire.WATCH, leader=True)
    create = wire.WatchCreate(
        key=start_of(prefix),
        range_end=b"" if exact else end_of(prefix),
        start_revision=revision,
        progress_notify=True,
        prev_kv=previous,
        fragment=True,
    )
    asking = None
    try:
        await stream.write(wire.WatchRequest(create=create))
        reached, held = revision - 1, 0
        asking = asyncio.ensure_future(_ask_for_progress(stream, progress))
        while (response := await reply(stream)) is not None:
            _check(transport, response, revision, store)
            if response.created:
                continue
            if response.events:
                events = [_event(each) for each in response.events]
                held = 0
                if not response.fragment:  # events of one revision may be in several fragments: resume before them
                    reached = events[-1].revision
                yield WatchBatch(events, reached)
            else:
                if held > reached:
                    reached = held
                    yield WatchBatch([], reached)
                held = response.header.revision
        raise Transient(f"etcd {transport.endpoints[at]}: the watch of {prefix} was closed")
    except grpc.aio.AioRpcError as error:
        raise transport.failed(error, at) from None
    except asyncio.InvalidStateError:  # it ended between being made and being written to
        raise Transient(f"etcd {transport.endpoints[at]}: the watch of {prefix} did not begin") from None
    finally:
        if asking is not None:
            asking.cancel()
        stream.cancel()


async def _ask_for_progress(stream: Any, every: float) -> None:
    """Ask for a bookmark now and then; the reader of the stream hears of its end."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(every)
            await stream.write(wire.WatchRequest(progress=wire.WatchProgress()))


def _check(transport: Transport, response: Any, revision: int, store: int) -> None:
    if store not in (0, response.header.cluster_id):
        raise Expired(f"another store answers at {transport.endpoint} than the one that was listed")
    if response.compact_revision:
        raise Expired(f"revision {revision} is compacted, up to {response.compact_revision}")
    if response.canceled:
        reason = response.cancel_reason
        refused = any(text in reason for text in (*STALE_TOKEN, *NOT_ALLOWED))
        raise (Denied if refused else Transient)(f"etcd {transport.endpoint}: {reason or 'canceled'}")
    if response.created and response.header.revision < revision - 1:
        raise Expired(f"the store is at revision {response.header.revision}, before {revision}: it lost its data")


def _event(event: Any) -> WatchEvent:
    kv = key_value(event.kv)
    before = key_value(event.prev_kv) if event.HasField("prev_kv") else None
    return WatchEvent(kv.key, None if event.type == wire.DELETE_EVENT else kv, before, kv.mod_revision)
