"""Whatever an API server does between, in the end the sink holds what the server holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from clusters.fake_apiserver import FakeApiServer, Fault, Reply, Request, reset, running, status

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.objects.core import SERVICE, Service
from isthmus.kube.transport import Transport
from isthmus.reflector import Event, Reflector

SERVICES = "/api/v1/namespaces/demo/services"


class Held:
    """A sink: address by name."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}

    async def replace(self, items: Mapping[str, Service], *, partial: bool) -> None:
        self.items = {key: item.spec.cluster_ip for key, item in items.items()}

    def apply(self, events: Sequence[Event[Any]]) -> None:
        for key, item in events:
            if item is None:
                self.items.pop(key, None)
            else:
                self.items[key] = item.spec.cluster_ip


def truth(server: FakeApiServer) -> dict[str, str]:
    return {f"demo/{path.rpartition('/')[2]}": obj["spec"]["clusterIP"] for path, obj in server.objects.items()}


async def break_off(request: Request, writer: asyncio.StreamWriter) -> None:
    reset(writer)


def disturb(server: FakeApiServer, dice: random.Random) -> None:
    """One event."""
    path = f"{SERVICES}/s{dice.randrange(6)}"
    streams = [stream for _, stream in server.streams if stream.open]
    stream = dice.choice(streams) if streams else None
    match dice.randrange(12):
        case 0 | 1 | 2 | 3:
            server.put(path, spec={"clusterIP": f"10.96.0.{dice.randrange(1, 250)}"})
        case 4 | 5 if path in server.objects:
            server.remove(path)
        case 6:
            server.expire()
        case 7 if stream:
            stream.end()
        case 8 if stream:
            stream.reset()
        case 9 if stream:
            stream.event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
        case 10:
            faults: list[Fault | Reply] = [break_off, status(410, "Expired"), status(500, "InternalError")]
            server.fail(dice.choice(faults))
        case 11 if stream:
            stream.send(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % server.revision)


@pytest.mark.parametrize("seed", range(8))
async def test_the_sink_ends_as_the_server_is(seed: int) -> None:
    dice = random.Random(seed)
    sink = Held()
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
        server.page_limit = 2
        reflector = Reflector(client.store(SERVICE), sink, name="services", first_delay=0.001, max_delay=0.01)
        task = asyncio.create_task(reflector.run())
        for _ in range(200):
            disturb(server, dice)
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0.001)
        server.faults.clear()
        async with asyncio.timeout(60):
            while sink.items != truth(server):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert reflector.state.lists > 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
