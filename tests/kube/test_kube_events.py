"""Events: recorded once, counted when recorded again, never waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from clusters.fake_apiserver import FakeApiServer, running, status

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.events import WAITING_LIMIT, Recorder
from isthmus.kube.objects.mcs import SERVICE_EXPORT
from isthmus.kube.transport import Transport

pytestmark = pytest.mark.looptime

EVENTS = "/api/v1/namespaces/demo/events/"


def record(recorder: Recorder, message: str, *, kind: Literal["Normal", "Warning"] = "Normal") -> None:
    recorder.record(
        SERVICE_EXPORT, namespace="demo", name="echo", uid="u1", reason="Exported", message=message, type=kind
    )


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[FakeApiServer, Recorder]]:
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
        recorder = Recorder(client, component="isthmus-operator", instance="node-1")
        task = asyncio.create_task(recorder.run())
        yield server, recorder
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def events(server: FakeApiServer) -> list[dict[str, Any]]:
    return [obj for path, obj in server.objects.items() if path.startswith(EVENTS)]


async def test_an_event_says_who_what_and_why() -> None:
    async with recording() as (server, recorder):
        record(recorder, "in use by 2 clusters", kind="Warning")
        await asyncio.sleep(0.5)
        [event] = events(server)
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"]) == ("multicluster.x-k8s.io/v1beta1", "ServiceExport")
    assert (about["namespace"], about["name"], about["uid"]) == ("demo", "echo", "u1")
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Exported", "in use by 2 clusters")
    assert event["source"] == {"component": "isthmus-operator"}
    assert event["count"] == 1
    assert event["metadata"]["name"].startswith("echo.")


async def test_the_same_event_again_is_counted_in_one_request() -> None:
    async with recording() as (server, recorder):
        record(recorder, "exported")
        await asyncio.sleep(0.5)
        for _ in range(100):
            record(recorder, "exported")
        await asyncio.sleep(5)
        [event] = events(server)
        assert event["count"] == 101
        assert [request.method for request in server.asked] == ["POST", "POST", "GET", "PATCH"]
        assert recorder.sent == 101


async def test_a_restarted_process_goes_on_counting() -> None:
    async with running() as server, kube.Client(Transport(Access(server=server.url))) as client:
        for _ in range(2):
            recorder = Recorder(client, component="isthmus-operator", instance="node-1")
            task = asyncio.create_task(recorder.run())
            record(recorder, "exported")
            await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        [event] = events(server)
        assert event["count"] == 2


async def test_a_server_that_refuses_costs_the_event_and_nothing_else() -> None:
    async with recording() as (server, recorder):
        server.fail(status(403, "Forbidden"))
        record(recorder, "first")
        record(recorder, "second")
        await asyncio.sleep(0.5)
        assert [event["message"] for event in events(server)] == ["second"]
        assert (recorder.sent, recorder.dropped) == (1, 1)


async def test_a_flood_is_dropped_and_counted() -> None:
    async with recording() as (_, recorder):
        for n in range(WAITING_LIMIT + 7):
            record(recorder, f"number {n}")
        assert recorder.dropped == 7
