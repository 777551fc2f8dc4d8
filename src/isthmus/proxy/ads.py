"""Serves Envoy's aggregated discovery service (delta ADS) on a unix socket, from a table of resources.

All decisions of the protocol are in :mod:`isthmus.proxy.delta`. A row is sent as soon as it is in the table; resources
that are refused, here or by an Envoy, are rows of another table.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
from msgspec import Struct

from isthmus import logs
from isthmus.model.tables import XDS, XDS_REFUSED, XDS_SERVED
from isthmus.model.xds import ResourceKey, ServedListener
from isthmus.proxy.delta import BY_URL, URLS, Request, Resources, Response, Stream
from isthmus.proxy.messages import message
from isthmus.proxy.serving import serving
from isthmus.statedb import Database

RETRY: Final = 30.0
"""Seconds between retries of listeners that Envoy refused."""
SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
METHOD: Final = "DeltaAggregatedResources"
MAX_STREAMS: Final = 16
"""Concurrent streams: one or two Envoys, and people who debug."""
ANSWER_WAIT: Final = 2.0
"""Seconds that a response waits for an answer on which it depends. A cluster that cannot be warmed, for example because
it lacks a certificate, delays others by as much."""

log = logs.get("ads")


class AdsStats(Struct, frozen=True, gc=False):
    """Open streams, responses sent and refused, and refused resources."""

    streams: int
    responses: int
    nacks: int
    refused: int


class AdsServer:
    """Serves the table ``xds`` to every Envoy that connects; writes ``xds_refused`` and ``xds_served``."""

    def __init__(self, database: Database, socket: Path, *, retry: float = RETRY) -> None:
        self._database = database
        self._socket = socket
        self._retry = retry
        self._resources = Resources()
        self._streams: dict[Stream, asyncio.Event] = {}
        self._responses = 0
        self._nacks = 0
        self._served: set[str] = set()

    def __repr__(self) -> str:
        return f"<AdsServer {self._socket}, {len(self._streams)} streams, {self._resources!r}>"

    def stats(self) -> AdsStats:
        """Return the counts since the server was created."""
        return AdsStats(len(self._streams), self._responses, self._nacks, len(self._resources.refused))

    async def run(self) -> None:
        """Serve until cancelled. Only this user can connect."""
        changes = self._database.changes(XDS)
        try:
            self._take(changes.next()[1])
            self._forget_removed()
            async with serving(self._socket, SERVICE, METHOD, _handler(self), max_streams=MAX_STREAMS):
                due = time.monotonic() + self._retry
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, due - time.monotonic())):
                            await changes.wait()
                    self._take(changes.next()[1])
                    if time.monotonic() >= due:
                        due += self._retry
                        if self._streams:  # without an Envoy to answer, refusals would be lost
                            self._changed(self._resources.retry())
        finally:
            changes.close()

    def _forget_removed(self) -> None:
        """Delete resources of an earlier run that are no longer in the table."""
        snapshot = self._database.snapshot()
        removed = [key for key in self._resources.all_keys() if snapshot.get(XDS, key) is None]
        for key in removed:
            self._resources.delete(key)
        self._changed(removed)

    def _take(self, changes: Iterable[Any]) -> None:
        changed: list[ResourceKey] = []
        for key, _, new in changes:
            if new is None:
                self._resources.delete(key)
                changed.append(key)
            elif self._resources.put(new):
                changed.append(key)
        self._changed(changed)

    def _changed(self, keys: Sequence[ResourceKey]) -> None:
        for stream, wake in self._streams.items():
            stream.changed(keys)
            wake.set()
        self._publish()

    def _publish(self) -> None:
        """Write the table of refusals."""
        with self._database.write() as txn:
            refused = self._resources.refused
            for key in [key for row in txn.all(XDS_REFUSED) if (key := XDS_REFUSED.key(row)) not in refused]:
                txn.delete(XDS_REFUSED, key)
            for row in refused.values():
                if txn.get(XDS_REFUSED, (row.type, row.name)) != row:
                    log.warning("not in force", type=row.type, name=row.name, owner=row.owner, why=row.error)
                    txn.put(XDS_REFUSED, row)

    def _publish_served(self) -> None:
        """Write the table of listeners that the streams have accepted."""
        served = {name for stream in self._streams for name in stream.serves()}
        if served == self._served:
            return
        with self._database.write() as txn:
            for name in self._served - served:
                txn.delete(XDS_SERVED, name)
            for name in served - self._served:
                txn.put(XDS_SERVED, ServedListener(name))
        self._served = served

    async def serve(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Serve one Envoy's stream until it ends."""
        stream, wake = Stream(self._resources), asyncio.Event()
        self._streams[stream] = wake
        reading = asyncio.create_task(self._read(requests, stream, wake))
        try:
            while True:
                response = stream.next()
                if response is not None:
                    self._responses += 1
                    log.debug(
                        "response",
                        type=response.type,
                        nonce=response.nonce,
                        rows=len(response.rows),
                        removed=len(response.removed),
                    )
                    yield _encoded(response)
                    continue
                if reading.done():
                    return
                await _woken(wake, ANSWER_WAIT if stream.waiting else None)
                if not wake.is_set():
                    stream.overdue()
                wake.clear()
        finally:
            reading.cancel()
            del self._streams[stream]
            self._publish_served()

    async def _read(self, requests: AsyncIterator[Any], stream: Stream, wake: asyncio.Event) -> None:
        try:
            async for raw in requests:
                if raw.type_url not in BY_URL:
                    continue  # a type that this bootstrap does not make Envoy request
                request = _decoded(raw)
                if request.error:
                    self._nacks += 1
                    log.debug("refused by Envoy", type=request.type, nonce=request.nonce, why=request.error)
                before = len(self._resources.refused)
                stream.received(request)
                if request.type in ("listener", "routes"):
                    self._publish_served()
                if request.error or len(self._resources.refused) != before:
                    self._changed_by_refusal(stream)
                wake.set()
        finally:
            wake.set()

    def _changed_by_refusal(self, refusing: Stream) -> None:
        """Publish refusals and withdraw the refused versions from other streams."""
        self._publish()
        keys = list(self._resources.refused)
        for stream, wake in self._streams.items():
            if stream is not refusing:
                stream.changed(keys)
                wake.set()


async def _woken(wake: asyncio.Event, timeout: float | None) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await wake.wait()


def _handler(server: AdsServer) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.stream_stream_rpc_method_handler(
        server.serve,
        request_deserializer=message("envoy.service.discovery.v3.DeltaDiscoveryRequest").FromString,
        response_serializer=lambda response: response.SerializeToString(),
    )


def _decoded(raw: Any) -> Request:
    return Request(
        type=BY_URL[raw.type_url],
        subscribe=tuple(raw.resource_names_subscribe),
        unsubscribe=tuple(raw.resource_names_unsubscribe),
        initial=dict(raw.initial_resource_versions),
        nonce=raw.response_nonce,
        error=raw.error_detail.message if raw.HasField("error_detail") else "",
    )


def _encoded(response: Response) -> Any:
    url = URLS[response.type]
    return message("envoy.service.discovery.v3.DeltaDiscoveryResponse")(
        type_url=url,
        nonce=response.nonce,
        resources=[
            {"name": row.name, "version": row.version, "resource": {"type_url": url, "value": row.body}}
            for row in response.rows
        ],
        removed_resources=response.removed,
    )
