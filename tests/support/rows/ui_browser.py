"""The page in Debian's Chromium, and clustersets for it to show."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from machine import programs
from rows.admin_world import Process
from rows.ui_page import Served
from rows.ui_world import backend, backend_key, imported, peer

from isthmus.model import tables
from isthmus.model.balancing import Failure
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName

PATIENCE: Final = 60_000
"""Milliseconds for what a busy machine may delay."""
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@asynccontextmanager
async def running_browser() -> AsyncIterator[Any]:
    """Debian's Chromium, driven by Playwright."""
    api = pytest.importorskip("playwright.async_api", reason="playwright is missing: tools/setup ui installs it")
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=programs.path("chromium"), args=[*FLAGS])
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """A tab of the browser on the page."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        """What the browser complains of: exceptions, and what the policies of the page forbid."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    async def until(self, script: str, *arguments: Any) -> Any:
        """The first true value of a script's function."""
        handle = await self.page.wait_for_function(script, *([{"arg": arguments[0]}] if arguments else []))
        return await handle.json_value()

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element has a text."""
        await self.page.locator(selector, has_text=text).first.wait_for()

    async def text(self, selector: str) -> str:
        """The text of an element."""
        found: str = await self.page.locator(selector).first.inner_text()
        return found


@asynccontextmanager
async def opened(browser: Any, served: Served, *, fragment: str = "", **options: Any) -> AsyncIterator[Tab]:
    """The page in a window of its own, with the first view. The browser may have complained of nothing at the end."""
    window = await browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
    window.set_default_timeout(PATIENCE)
    tab = Tab(await window.new_page())
    try:
        await tab.page.goto(f"{served.url}&{fragment}")
        await tab.page.locator("main .map canvas, main table").first.wait_for()
        yield tab
        assert tab.errors == []
    finally:
        await window.close()


def fill(processes: list[Process], clusters: list[str], services: list[str]) -> None:
    """Rows of agents of clusters, each of which has a backend of every service."""
    for name, process in zip(clusters, processes, strict=True):
        process.put(
            tables.CLUSTERS,
            Cluster(name=ClusterName(name), own=True, state="ready", region="east", version="0.1.0"),
            *(peer(each, region="east", version="0.1.0") for each in clusters if each != name),
        )
        process.put(tables.IMPORTS, *(imported(each, *clusters) for each in services))
        process.put(
            tables.BACKENDS,
            *(
                backend(cluster, f"10.{number}.{index // 250}.{index % 250 + 1}", service)
                for number, cluster in enumerate(clusters)
                for index, service in enumerate(services)
            ),
        )


def ejected(cluster: str, address: str, service: str) -> Failure:
    """A backend that a node's calls avoid."""
    return Failure(backend_key(cluster, address, service), "3 connects: silent", "silent", 3, 1.0, 2.0)


def growing(services: list[str], clusters: list[str]) -> Any:
    """Counters of calls that grow with each reading, as an agent serves them."""
    readings: Iterator[int] = itertools.count(1)

    def calls() -> list[dict[str, Any]]:
        number = next(readings)
        return [
            {"service": f"{service}:80", "cluster": cluster, "verdict": "called", "calls": number * (10 + index)}
            for index, service in enumerate(services)
            for cluster in clusters
        ]

    return {"calls": calls}


def spoiled(row: Any, text: str, but: frozenset[str]) -> Any:
    """A row with a text in front of every string that may have any, except in some fields."""
    for field in row.__struct_fields__:
        value = getattr(row, field)
        new: Any = value
        if field in but:
            continue
        if isinstance(value, str):
            new = text + value
        elif isinstance(value, msgspec.Struct):
            new = spoiled(value, text, but)
        elif isinstance(value, tuple):
            new = tuple(
                text + each
                if isinstance(each, str)
                else spoiled(each, text, but)
                if hasattr(each, "__struct_fields__")
                else each
                for each in value
            )
        try:
            changed = msgspec.structs.replace(row, **{field: new})
            row = msgspec.convert(msgspec.to_builtins(changed), type(row))
        except msgspec.ValidationError:
            pass  # a closed set of words, which nobody else can write
    return row
