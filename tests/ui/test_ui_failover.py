"""A failover watched live: in a lab, a cluster is cut off under load, and the page says which one and why."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from labs.lab_running import Running, lab_name
from rows.ui_browser import opened, running_browser
from rows.ui_page import served_page

from isthmus.cli.ui.command import _of_lab
from isthmus.cli.ui.sources import Source
from isthmus_lab import examples, removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.ui, pytest.mark.lab, pytest.mark.slow]
CALLS: Final = """
import socket, time
while True:
    try:
        with socket.create_connection(("echo.demo.svc.clusterset.local", 80), 10) as call:
            call.sendall(b"x\\n")
            call.recv(100)
    except OSError:
        pass
    time.sleep(0.05)
"""


@contextmanager
def failover_lab() -> Iterator[Running]:
    """A lab of three clusters that export demo/echo."""
    running = Running(Lab(lab_name("u"), 3, 1))
    try:
        running.cli("up", "--clusters", "3", "--from", str(examples.path("failover")))
        yield running
    finally:
        removal.remove(running.lab)


@contextmanager
def calling(running: Running) -> Iterator[None]:
    """Calls of demo/echo by a pod of c1 while the block runs."""
    words = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", running.lab.name, "c1", "demo/client"]
    child = subprocess.Popen([*words, "--", "python3", "-c", CALLS], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait()


async def test_the_cluster_that_is_cut_off_fails_on_the_page_and_is_well_again_when_it_is_back() -> None:
    with failover_lab() as running, calling(running):
        chosen = list(_of_lab(running.lab.name, None))
        sources = [
            Source(socket, cluster=cluster, name=name, words=words, changed=lambda: None)
            for cluster, name, socket, words, _ in chosen
        ]
        kubectl = {cluster: command for cluster, _, _, _, command in chosen}
        async with (
            served_page(sources, kubectl=kubectl) as served,
            running_browser() as browser,
            opened(browser, served) as tab,
        ):
            await tab.shows("header .pill", "all is well")
            await tab.until("() => Number(document.querySelector('canvas').dataset.edges) >= 3")
            for other in ("c1", "c3"):
                await asyncio.to_thread(running.cli, "cut", "c2", other)
            await tab.shows("aside li", "Cluster c2 fails")
            await tab.shows("aside li", ", and uses what it last knew of it")
            await tab.shows("aside li", "its probes fail")
            assert await tab.locator("aside li", has_text="Cluster c1").count() == 0
            assert await tab.locator("aside li", has_text="Cluster c3").count() == 0
            await tab.get_by_role("button", name="Service demo/echo").click()
            await tab.shows("#tabpanel .hops li.failing", "peer")
            await asyncio.to_thread(running.cli, "heal", "c2")
            await tab.shows("header .pill", "all is well")
            await tab.shows(".marks li", "well again")
