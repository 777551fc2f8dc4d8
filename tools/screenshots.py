"""Screenshots of the page of ``isthmus ui`` for the documentation: the failover story in a lab, in Debian's Chromium.

A lab of three clusters, calls from each, c2 cut off from the others: `make screenshots` writes docs/images/ui-*.png.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from labs.lab_running import Running
from rows.ui_browser import opened, running_browser
from rows.ui_page import served_page

from isthmus.cli.ui.command import _of_lab
from isthmus.cli.ui.sources import Source
from isthmus_lab import examples, removal
from isthmus_lab.layout import Lab

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
SETTLED: Final = 60
"""Seconds of calls before the fault, so that the time line has some."""
SINCE: Final = 25
"""Seconds after the fault: what probes and peers find of it is known."""
CALLS: Final = """
import socket, sys, time
while True:
    try:
        with socket.create_connection(("echo.demo.svc.clusterset.local", 80), 10) as call:
            call.sendall(b"x\\n")
            call.recv(100)
    except OSError:
        pass
    time.sleep(1 / float(sys.argv[1]))
"""


async def main() -> None:
    """Take the screenshots."""
    running = Running(Lab("screenshots", 3, 1))
    places = [f"--place={each}" for each in ("c1=east/east-1", "c2=east/east-2", "c3=west/west-1")]
    try:
        await asyncio.to_thread(running.cli, "up", "--clusters", "3", *places, "--from", str(examples.path("failover")))
        with calling(running):
            await watch(running)
    finally:
        removal.remove(running.lab)


async def watch(running: Running) -> None:
    """Open the page, cut a cluster off and take what is seen."""
    chosen = list(_of_lab(running.lab.name, None))
    sources = [
        Source(socket, cluster=cluster, name=name, words=words, changed=lambda: None)
        for cluster, name, socket, words, _ in chosen
    ]
    kubectl = {cluster: command for cluster, _, _, _, command in chosen}
    async with served_page(sources, kubectl=kubectl) as served, running_browser() as browser:
        await asyncio.sleep(SETTLED)
        for other in ("c1", "c3"):
            await asyncio.to_thread(running.cli, "cut", "c2", other)
        await asyncio.sleep(SINCE)
        await take(browser, served, "ui-failover", "", "aside li")
        fragment = "service=demo/echo&tab=diagnose"
        await take(browser, served, "ui-diagnose-dark", fragment, ".hops li.failing", color_scheme="dark")


async def take(browser: Any, served: Any, name: str, fragment: str, there: str, **options: Any) -> None:
    """Write a screenshot of the page once an element is there, and the time line is drawn."""
    async with opened(browser, served, fragment=fragment, **options) as tab:
        await tab.locator(there).first.wait_for()
        await tab.locator(".plot canvas").first.wait_for()
        await asyncio.sleep(2)
        await tab.screenshot(path=IMAGES / f"{name}.png")


@contextmanager
def calling(running: Running) -> Iterator[None]:
    """Calls of demo/echo by a pod of each cluster, most by c1's, while the block runs."""
    words = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", running.lab.name]
    children = [
        subprocess.Popen(
            [*words, cluster, "demo/client", "--", "python3", "-c", CALLS, rate], stdout=subprocess.DEVNULL
        )
        for cluster, rate in (("c1", "40"), ("c2", "8"), ("c3", "8"))
    ]
    try:
        yield
    finally:
        for child in children:
            child.terminate()
            child.wait()


if __name__ == "__main__":
    asyncio.run(main())
