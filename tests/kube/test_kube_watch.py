"""List and watch of a store, and of a reflector on it, against the ways in which API servers fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from clusters.fake_apiserver import FakeApiServer, Request, reset, running, status

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.kube.store import Limits
from isthmus.kube.transport import Transport
from isthmus.reflector import Batch, Event, Expired, Reflector, Transient

SERVICES = "/api/v1/namespaces/demo/services"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[kube.Client]:
    async with kube.Client(Transport(Access(server=server.url))) as client:
        yield client


class Names:
    """A sink: the names it holds."""

    def __init__(self) -> None:
        self.items: dict[str, Service] = {}
        self.replaced = 0

    async def replace(self, items: Mapping[str, Service], *, partial: bool) -> None:
        self.items = dict(items)
        self.replaced += 1

    def apply(self, events: Sequence[Event[Service]]) -> None:
        for key, item in events:
            if item is None:
                self.items.pop(key, None)
            else:
                self.items[key] = item

    async def become(self, *names: str) -> None:
        await until(lambda: self.items.keys() == {f"demo/{name}" for name in names})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def reflecting(client: kube.Client) -> AsyncIterator[tuple[Reflector[Service], Names]]:
    sink = Names()
    reflector = Reflector(client.store(SERVICE), sink, name="services", first_delay=0.01)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, sink
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def watches(server: FakeApiServer) -> list[Request]:
    return [request for request in server.asked if request.is_watch]


def is_watch(request: Request) -> bool:
    return request.is_watch


async def test_changes_are_followed(server: FakeApiServer, client: kube.Client) -> None:
    server.put(f"{SERVICES}/a")
    async with reflecting(client) as (_, sink):
        await sink.become("a")
        await server.watcher()
        server.put(f"{SERVICES}/b")
        await sink.become("a", "b")
        server.remove(f"{SERVICES}/a")
        await sink.become("b")
        server.put(f"{SERVICES}/b", spec={"clusterIP": "10.96.0.1"})
        await until(lambda: sink.items["demo/b"].spec.cluster_ip == "10.96.0.1")
    [watch] = watches(server)
    assert watch.query["allowWatchBookmarks"] == "true"
    assert watch.query["resourceVersion"] == "101"
    assert 300 <= int(watch.query["timeoutSeconds"]) <= 600


async def test_a_watch_stands_when_its_first_empty_batch_comes(server: FakeApiServer, client: kube.Client) -> None:
    watch = client.store(SERVICE).watch("100")
    assert await anext(watch) == Batch((), "100")
    server.put(f"{SERVICES}/a")
    batch = await anext(watch)
    assert [event.key for event in batch.events] == ["demo/a"]
    assert batch.revision == "101"
    await watch.aclose()  # type: ignore[attr-defined]
    await until(lambda: not server.connections)


async def test_a_stream_that_the_server_closes_is_resumed_without_a_list(
    server: FakeApiServer, client: kube.Client
) -> None:
    async with reflecting(client) as (_, sink):
        (await server.watcher()).end()
        server.put(f"{SERVICES}/a")
        await sink.become("a")
        (await server.watcher()).end()
        server.remove(f"{SERVICES}/a")
        await sink.become()
    assert sink.replaced == 1
    assert [w.query["resourceVersion"] for w in watches(server)] == ["100", "100", "101"]


async def test_410_on_reconnect_relists_and_drops_vanished_objects(server: FakeApiServer, client: kube.Client) -> None:
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/b")
    async with reflecting(client) as (reflector, sink):
        stream = await server.watcher()
        server.streams.clear()
        server.remove(f"{SERVICES}/a")
        server.expire()
        stream.end()
        await sink.become("b")
        assert sink.replaced == 2
        assert reflector.state.failures == 0


async def test_410_in_the_stream_relists_and_drops_vanished_objects(server: FakeApiServer, client: kube.Client) -> None:
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/b")
    async with reflecting(client) as (_, sink):
        stream = await server.watcher()
        server.streams.clear()
        server.remove(f"{SERVICES}/a")
        server.put(f"{SERVICES}/c")
        stream.event("ADDED", server.objects[f"{SERVICES}/c"])
        stream.event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
        await sink.become("b", "c")
        assert sink.replaced == 2


async def test_what_came_before_an_error_in_one_chunk_is_not_lost(server: FakeApiServer, client: kube.Client) -> None:
    watch = client.store(SERVICE).watch("100")
    await anext(watch)
    stream = await server.watcher()
    stream.send(
        b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"demo","resourceVersion":"7"}}}\n'
        b'{"type":"ERROR","object":{"code":500,"reason":"InternalError","message":"etcd is away"}}\n'
    )
    assert [event.key for event in (await anext(watch)).events] == ["demo/a"]
    with pytest.raises(Transient, match="watch services: 500 InternalError: etcd is away"):
        await anext(watch)


async def test_a_bookmark_moves_the_revision(server: FakeApiServer, client: kube.Client) -> None:
    async with reflecting(client) as (_, sink):
        stream = await server.watcher()
        stream.event("BOOKMARK", {"kind": "Service", "metadata": {"resourceVersion": "4711"}})
        stream.end()
        await until(lambda: len(watches(server)) > 1)
    assert watches(server)[1].query["resourceVersion"] == "4711"
    assert sink.items == {}


async def test_a_reset_resumes_where_it_was(server: FakeApiServer, client: kube.Client) -> None:
    async with reflecting(client) as (reflector, sink):
        server.put(f"{SERVICES}/a")
        await sink.become("a")
        (await server.watcher()).reset()
        server.put(f"{SERVICES}/b")
        await sink.become("a", "b")
        assert reflector.state.failures >= 1
        assert reflector.state.connected
    assert sink.replaced == 1


async def test_a_reset_on_connect_is_tried_again(server: FakeApiServer, client: kube.Client) -> None:
    async def fault(request: Request, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    for _ in range(3):
        server.fail(fault)
    server.put(f"{SERVICES}/a")
    async with reflecting(client) as (_, sink):
        await sink.become("a")


async def test_an_event_of_one_and_a_half_megabytes_comes_through(server: FakeApiServer, client: kube.Client) -> None:
    async with reflecting(client) as (_, sink):
        await server.watcher()
        server.put(f"{SERVICES}/big", metadata={"annotations": {"weight": "x" * 1_500_000}})
        server.put(f"{SERVICES}/small")
        await sink.become("big", "small")
        annotations = sink.items["demo/big"].metadata.annotations
        assert annotations is not None
        assert len(annotations["weight"]) == 1_500_000


async def test_lines_may_be_cut_anywhere(server: FakeApiServer, client: kube.Client) -> None:
    line = b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"demo","resourceVersion":"7"}}}\n'
    async with reflecting(client) as (_, sink):
        stream = await server.watcher()
        for byte in line + line.replace(b'"a"', b'"b"'):
            stream.send(bytes([byte]))
            await asyncio.sleep(0)
        await sink.become("a", "b")


async def test_half_an_event_at_the_end_is_dropped(server: FakeApiServer, client: kube.Client) -> None:
    async with reflecting(client) as (_, sink):
        stream = await server.watcher()
        stream.send(b'{"type":"ADDED","object":{"metadata":{"name":"ghost","names')
        stream.end()
        await until(lambda: len(watches(server)) > 1)
        assert sink.items == {}


async def test_garbage_in_the_stream_leads_to_a_list(server: FakeApiServer, client: kube.Client) -> None:
    watch = client.store(SERVICE).watch("100")
    await anext(watch)
    (await server.watcher()).send(b"<html>\n")
    await anext(watch)
    with pytest.raises(Expired, match="watch services: an event cannot be read"):
        await anext(watch)


async def test_an_object_that_can_no_longer_be_read_counts_as_gone(server: FakeApiServer, client: kube.Client) -> None:
    server.put(f"{SERVICES}/a")
    server.put(f"{SERVICES}/b")
    async with reflecting(client) as (_, sink):
        await server.watcher()
        server.put(f"{SERVICES}/a", spec={"ports": "none"})
        await sink.become("b")
        server.put(f"{SERVICES}/a", spec={"ports": None})
        await sink.become("a", "b")


async def test_a_stream_of_a_dead_server_breaks_when_silence_is_too_long(
    server: FakeApiServer, client: kube.Client
) -> None:
    watch = client.store(SERVICE, limits=Limits(watch=0, late=0.05)).watch("100")
    await anext(watch)
    with pytest.raises(Transient, match="does not answer"):
        await anext(watch)


async def test_a_watch_that_was_silent_all_its_time_is_not_trusted(server: FakeApiServer, client: kube.Client) -> None:
    store = client.store(SERVICE, limits=Limits(silent=0))
    watch = store.watch("999999999")
    await anext(watch)
    (await server.watcher()).end()
    with pytest.raises(Expired, match="silent from its start to its end"):
        await anext(watch)
    watch = store.watch("100")
    await anext(watch)
    stream = await server.watcher()
    stream.event("BOOKMARK", {"metadata": {"resourceVersion": "101"}})
    stream.end()
    assert [batch.revision async for batch in watch] == ["101"]


@pytest.mark.parametrize("code", [403, 401, 500, 429])
async def test_a_watch_that_is_refused_is_transient(server: FakeApiServer, client: kube.Client, code: int) -> None:
    server.fail(status(code, "No"), on=is_watch)
    with pytest.raises(Transient, match=f"watch services: {code} No"):
        await anext(client.store(SERVICE).watch("100"))


async def test_a_revision_that_the_server_cannot_read_expires(server: FakeApiServer, client: kube.Client) -> None:
    server.fail(status(400, "BadRequest", "invalid resource version"), on=is_watch)
    with pytest.raises(Expired, match="invalid resource version"):
        await anext(client.store(SERVICE).watch("100"))


async def test_a_list_that_is_refused_is_said_and_tried_again(server: FakeApiServer, client: kube.Client) -> None:
    server.fail(status(403, "Forbidden", "services is forbidden"))
    async with reflecting(client) as (reflector, _):
        await until(lambda: reflector.state.synced)
        assert reflector.state.failures == 1
        assert reflector.state.last_failure == "list services: 403 Forbidden: services is forbidden"


async def test_a_kind_that_comes_later_is_found(server: FakeApiServer, client: kube.Client) -> None:
    server.served = {"/apis/multicluster.x-k8s.io/v1beta1": []}
    sink: Any = Names()
    reflector = Reflector(client.store(SERVICE_IMPORT), sink, name="imports", first_delay=0.01)
    task = asyncio.create_task(reflector.run())
    await until(lambda: reflector.state.failures > 1)
    assert "CustomResourceDefinition" in reflector.state.last_failure
    assert not reflector.state.synced
    server.served = {"/apis/multicluster.x-k8s.io/v1alpha1": ["serviceimports"]}
    await until(lambda: reflector.state.synced)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_abandoned_watches_leave_no_connection_open(server: FakeApiServer, client: kube.Client) -> None:
    tasks = [asyncio.create_task(_follow(client)) for _ in range(20)]
    await until(lambda: len(server.streams) == 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: not server.connections)


async def _follow(client: kube.Client) -> None:
    async for _ in client.store(SERVICE).watch("100"):
        pass
