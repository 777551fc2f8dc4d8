"""The page's server in the test's own process, before processes that are databases behind real admin sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rows.admin_world import Process, serving
from rows.ui_world import TOKEN

from isthmus.admin.query import Socket
from isthmus.cli.ui.server import Page, serve
from isthmus.cli.ui.sources import AGENT_TABLES, Source
from isthmus.statedb import Database


class Served:
    """A page that is served."""

    def __init__(self, port: int, page: Page) -> None:
        self.port = port
        self.page = page

    @property
    def url(self) -> str:
        """The URL that a person opens."""
        return f"http://127.0.0.1:{self.port}/#token={TOKEN}"

    async def get(
        self, path: str, *, token: str | None = TOKEN, method: str = "GET", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers of an answer."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://127.0.0.1:{self.port}{path}", headers=headers) as response,
        ):
            return response.status, await response.text(), dict(response.headers)


@asynccontextmanager
async def served_page(sources: Sequence[Source], **more: Any) -> AsyncIterator[Served]:
    """Serve a page about sources until the block ends."""
    page = Page(sources, token=TOKEN, **more)
    for source in sources:
        source._changed = page.changed
        source.start()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(page, port=0, ready=ready.set_result))
    try:
        yield Served(await ready, page)
    finally:
        for source in sources:
            source.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def agents(folder: Path, *names: str, **more: Any) -> AsyncIterator[tuple[list[Process], list[Source]]]:
    """Databases behind admin sockets, a cluster's agent each, and sources that follow them."""
    async with AsyncExitStack() as stack:
        processes = []
        for name in names:
            db = Database(*AGENT_TABLES)
            processes.append(await stack.enter_async_context(serving(folder / f"{name}.sock", db=db, **more)))
        sources = [
            Source(
                Socket(folder / f"{name}.sock"),
                cluster=name,
                name="agent",
                words=("--socket", str(folder / f"{name}.sock")),
                changed=lambda: None,
            )
            for name in names
        ]
        try:
            yield processes, sources
        finally:
            for source in sources:
                source.stop()
            await until(_nobody_asks)  # a connection that is accepted while the server closes would stay open


async def _nobody_asks() -> bool:
    return not any(thread.name.startswith("status of ") for thread in threading.enumerate())


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """The first true value, for a minute at most."""
    async with asyncio.timeout(60):
        while not (value := await holds()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return value
