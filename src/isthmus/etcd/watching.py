"""A watch of etcd: one stream, events in order, every way it ends as an error of its own.

What the server does, which the code relies on:

- A compacted start revision is answered by ``created``, then ``canceled`` with the compaction revision.
- A start revision in the future is no error. A store that lost its data is recognised by the revision in ``created``.
- While the server catches up, a response's header is ahead of its events; only the events' revisions show progress.
- Before 3.4.25 and 3.5.8 a progress response may overtake events, so it counts only once the next one arrives without
  an event in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import grpc.aio

from isthmus.etcd import wire
from isthmus.etcd.errors import Denied, denies
from isthmus.etcd.transport import Transport, reply
from isthmus.etcd.values import WatchBatch, WatchEvent, end_of, key_value, start_of
from isthmus.reflector import Expired, Transient


class Request(NamedTuple):
    """A watch: a prefix or one exact key, the first revision, and whether previous values are included."""

    prefix: str
    revision: int
    exact: bool
    previous: bool


async def watch(
    transport: Transport, request: Request, *, progress: float, store: int
) -> AsyncGenerator[WatchBatch, None]:
    """Batches from a revision on; bookmarks while idle, every ``progress`` seconds.

    Raises Expired on compaction, when the store went back or is another one, Denied when it may not be read, Transient
    when the stream breaks.
    """
    begun, token = False, transport.token
    try:
        async with aclosing(_watch_once(transport, request, progress=progress, store=store)) as batches:
            async for batch in batches:
                begun = True
                yield batch
    except Denied:
        # Some servers (3.5.1) answer a stale token with "permission denied" too. A token from just now is not stale.
        if begun or not token:
            raise
    transport.forget_token(token)
    async with aclosing(_watch_once(transport, request, progress=progress, store=store)) as batches:
        async for batch in batches:
            yield batch


async def _watch_once(
    transport: Transport, request: Request, *, progress: float, store: int
) -> AsyncGenerator[WatchBatch, None]:
    """One watch stream, which always ends by an exception."""
    prefix, revision, exact, previous = request
    stream, index = await transport.stream(wire.WATCH, leader=True)
    token = transport.token
    create = wire.WatchCreate(
        key=start_of(prefix),
        range_end=b"" if exact else end_of(prefix),
        start_revision=revision,
        progress_notify=True,
        prev_kv=previous,
        fragment=True,
    )
    requesting = None
    try:
        await stream.write(wire.WatchRequest(create=create))
        # reached: complete up to here. promised: revision of a progress response that the next one confirms.
        reached, promised = revision - 1, 0
        requesting = asyncio.ensure_future(_request_progress(stream, progress))
        while (response := await reply(stream)) is not None:
            _check(transport.endpoints[index], response, revision, store)
            if response.created:
                continue
            if response.events:
                events = [_event(each) for each in response.events]
                promised = 0
                if not response.fragment:  # events of one revision may be in several fragments: resume before them
                    reached = events[-1].revision
                yield WatchBatch(events, reached)
            else:
                if promised > reached:
                    reached = promised
                    yield WatchBatch([], reached)
                promised = response.header.revision
        transport.forget_token(token)
        raise Transient(f"etcd {transport.endpoints[index]}: the watch of {prefix} was closed")
    except grpc.aio.AioRpcError as error:
        raise transport.failed(error, index, token=token) from None
    except asyncio.InvalidStateError:  # it ended between its creation and the first write
        raise Transient(f"etcd {transport.endpoints[index]}: the watch of {prefix} did not begin") from None
    finally:
        if requesting is not None:
            requesting.cancel()
        stream.cancel()


async def _request_progress(stream: Any, every: float) -> None:
    """Request a bookmark every ``every`` seconds. The reader of the stream handles its end."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(every)
            await stream.write(wire.WatchRequest(progress=wire.WatchProgress()))


def _check(endpoint: str, response: Any, revision: int, store: int) -> None:
    if store not in (0, response.header.cluster_id):
        raise Expired(f"another store answers at {endpoint} than the one that was listed")
    if response.compact_revision:
        raise Expired(f"revision {revision} is compacted, up to {response.compact_revision}")
    if response.canceled:
        reason = response.cancel_reason
        raise (Denied if denies(reason) else Transient)(f"etcd {endpoint}: {reason or 'canceled'}")
    if response.created and response.header.revision < revision - 1:
        raise Expired(f"the store is at revision {response.header.revision}, before {revision}: it lost its data")


def _event(event: Any) -> WatchEvent:
    kv = key_value(event.kv)
    before = key_value(event.prev_kv) if event.HasField("prev_kv") else None
    return WatchEvent(kv.key, None if event.type == wire.DELETE_EVENT else kv, before, kv.mod_revision)
