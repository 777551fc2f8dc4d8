"""What the page's server gives to whom, and what it says of processes that it follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rows.ui_page import Served, agents, served_page, until
from rows.ui_world import ECHO, TOKEN, backend, imported, peer

from isthmus.admin.protocol import ProcessStatus
from isthmus.cli.ui import server
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName

API = ("/api/stream", "/api/timeline", f"/api/service?name={ECHO}", "/api/explain", "/api/diagnose", "/api/events")


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Served]:
    async with agents(tmp_path, "c1") as ([process], sources), served_page(sources) as served:
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True, state="ready"), peer("c2"))
        process.put(tables.IMPORTS, imported(ECHO, "c1"))
        process.put(tables.BACKENDS, backend("c1", "10.1.0.1"))
        yield served


async def first_events(page: Served, count: int) -> list[dict[str, Any]]:
    """The first events of a stream."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"http://127.0.0.1:{page.port}/api/stream") as response,
    ):
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = await response.content.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line.removeprefix(b"data: ")))
        return found


# Who gets something


async def test_without_the_token_nothing_is_told(page: Served) -> None:
    for path in API:
        for token in (None, "", "x", TOKEN[:-1], f"{TOKEN}x", "é"):
            status, body, _ = await page.get(path, token=token)
            assert (path, token, status, "demo" in body) == (path, token, 401, False)


async def test_a_name_that_is_not_loopbacks_gets_nothing(page: Served) -> None:
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "x:y"):
        for path in ("/", "/api/timeline"):
            status, body, _ = await page.get(path, Host=host)
            assert (host, status, "demo" in body, "script" in body) == (host, 403, False, False)


async def test_loopback_is_served_by_any_port_since_it_may_be_forwarded(page: Served) -> None:
    for host in ("localhost", "127.0.0.1:9000", "LOCALHOST:1", "[::1]:8080"):
        assert (host, (await page.get("/api/timeline", Host=host))[0]) == (host, 200)


async def test_nothing_but_get_is_served(page: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        for path in ("/", "/api/timeline"):
            status, _, headers = await page.get(path, method=method)
            assert (method, status) == (method, 405)
            assert "Access-Control-Allow-Origin" not in headers


async def test_every_answer_forbids_scripts_of_others_and_text_as_html(page: Served) -> None:
    for path in ("/", "/app.js", "/vendor.js", "/nothing", "/api/timeline", "/api/x"):
        _, _, headers = await page.get(path)
        assert {name: headers.get(name) for name in server.HEADERS} == server.HEADERS, path
    policy = server.HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy


async def test_files_of_the_page_alone_are_served(page: Served) -> None:
    for path in ("/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd", "/static/app.js"):
        status, body, _ = await page.get(path)
        assert (path, status, "import" in body) == (path, 404, False)


async def test_the_page_itself_has_no_data_and_no_token(page: Served) -> None:
    for path in ("/", "/app.js", "/style.css"):
        status, body, _ = await page.get(path, token=None)
        assert (status, TOKEN in body) == (200, False)


# The stream


async def test_a_stream_begins_with_everything_and_goes_on_with_changes(tmp_path: Path) -> None:
    async with agents(tmp_path, "c1") as ([process], sources), served_page(sources) as page:
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True, state="ready"))

        async def is_well() -> bool:
            return page.page._view.clusters.get("c1") is not None and page.page._view.clusters["c1"].level == "ok"

        await until(is_well)
        changes = asyncio.create_task(first_events(page, 2))
        await until(lambda: asyncio.sleep(0, page.page.streams == 1))
        process.put(tables.IMPORTS, imported(ECHO, "c1"))
        first, second = await changes
        assert first["put"]["clusters"]["c1"]["level"] == "ok"
        assert "services" not in first["put"]
        assert set(second["put"]["services"]) == {ECHO}
        assert "clusters" not in second["put"]


async def test_a_process_that_ends_is_shown_as_one_that_does_not_answer_and_its_rows_stay(tmp_path: Path) -> None:
    async with AsyncExitStack() as running:
        [process], sources = await running.enter_async_context(agents(tmp_path, "c1"))
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True, state="ready"))
        process.put(tables.BACKENDS, backend("c1", "10.1.0.1"))
        async with served_page(sources) as page:

            async def level(wanted: str) -> bool:
                found = page.page._view.services.get(ECHO)
                return found is not None and found.cells["c1"].level == wanted

            await until(lambda: level("ok"))
            await running.aclose()
            await until(lambda: level("unknown"))
            assert page.page._view.clusters["c1"].level == "unknown"
            assert page.page._view.services[ECHO].cells["c1"].backends == 1


async def test_a_process_of_an_earlier_release_is_told_as_such(tmp_path: Path, monkeypatch: Any) -> None:
    from aiohttp import web

    from isthmus.admin import server as admin

    def app(self: Any) -> Any:
        app = web.Application()
        app.router.add_get("/v1/status", self._process_status)
        app.router.add_get("/v1/tables", self._tables)
        return app

    monkeypatch.setattr(admin.Server, "_app", app)
    async with agents(tmp_path, "c1") as (_, sources), served_page(sources) as page:

        async def told() -> bool:
            return any("earlier release" in each.error for each in page.page._view.processes.values())

        await until(told)
        assert page.page._view.clusters["c1"].level == "unknown"


@pytest.mark.parametrize(
    ("counters", "status"),
    [
        (lambda: [{}], None),
        (lambda: [{"service": "demo/echo:80", "cluster": "c2", "verdict": "called", "calls": "many"}], None),
        (lambda: 7, None),
        (list, ProcessStatus(problems=None)),  # type: ignore[arg-type]
    ],
    ids=["no fields", "no number", "no list", "no problems"],
)
async def test_a_process_whose_answer_cannot_be_read_is_unknown_and_the_page_goes_on(
    tmp_path: Path, counters: Any, status: Any
) -> None:
    more = {"counters": {"calls": counters}, "status": status}
    async with agents(tmp_path, "c1", **more) as (_, sources), served_page(sources) as page:

        async def unreadable() -> bool:
            return any("cannot be read" in each.error for each in page.page._view.processes.values())

        await until(unreadable)
        assert page.page._view.clusters["c1"].level == "unknown"


async def test_more_streams_than_there_is_room_for_are_refused(page: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STREAMS", 0)
    status, body, _ = await page.get("/api/stream")
    assert (status, "close one" in body) == (503, True)


# Details


async def test_a_name_that_the_page_does_not_show_reaches_no_command(page: Served) -> None:
    for kind in ("service", "explain", "diagnose", "events"):
        for name in ("", "demo/other", "--help", "-x/y", "demo/echo;id"):
            status, body, _ = await page.get(f"/api/{kind}?name={name}&cluster=c1")
            assert (name, status, json.loads(body)["error"]) == (name, 404, "there is no such service")


async def test_details_have_backends_of_the_service(page: Served) -> None:
    async def answer() -> Any:
        status, body, _ = await page.get(f"/api/service?name={ECHO}")
        return status == 200 and json.loads(body)

    found = await until(answer)
    assert [(each["address"], each["state"]) for each in found["backends"]] == [("10.1.0.1", "ready")]


async def test_events_without_a_kubeconfig_are_unknown_and_not_none(page: Served) -> None:
    async def answer() -> Any:
        status, body, _ = await page.get(f"/api/events?name={ECHO}&cluster=c1")
        return status == 200 and json.loads(body)

    assert "no kubeconfig" in (await until(answer))["error"]
