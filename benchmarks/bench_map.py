"""Frames while the page's map is moved and zoomed, 500 services of 10 clusters, in Debian's Chromium: make bench-map.

With ``--base COMMIT`` each round also measures the map.js of that commit, in turn on the same machine. The agents and
the page's server run in this process and change all calls every two seconds, as they do in use.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from rows.ui_browser import Tab, fill, growing, opened, running_browser
from rows.ui_page import agents, served_page

STATIC: Final = "src/isthmus/cli/ui/static/map.js"
CLUSTERS: Final = [f"c{n}" for n in range(1, 11)]
SERVICES: Final = [f"team{n % 20}/service-{n}" for n in range(500)]
GESTURES: Final = {
    "move": "(picture, seconds) => picture.move(3, 1)",
    # In for a second, then out: four times as large at most.
    "zoom": "(picture, seconds) => picture.zoom(Math.floor(seconds) % 2 ? 0.98 : 1 / 0.98, 600, 400)",
}
"""One step for each frame, by the gesture's name."""
FRAMES: Final = """async ([gesture, duration]) => {
    const picture = globalThis.isthmusPicture, step = eval(gesture), gaps = [];
    picture.fit();
    await new Promise((done) => setTimeout(done, 500));
    const began = performance.now();
    let last = began;
    while (last - began < 1000 * duration) {
        step(picture, (last - began) / 1000);
        const now = await new Promise(requestAnimationFrame).then(() => performance.now());
        gaps.push(now - last);
        last = now;
    }
    gaps.sort((a, b) => a - b);
    return [1000 * gaps.length / (last - began), gaps[Math.floor(0.95 * gaps.length)], gaps.length];
}"""


async def main() -> None:
    """Measure and print frames per second, the 95th percentile between two frames, and the browser's CPU time a frame.

    The last one, of all processes of the browser, depends least on what else the machine does.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each gesture")
    parser.add_argument("--base", default="", help="commit whose map.js is measured, too")
    options = parser.parse_args()
    variants = {"this tree": Path(STATIC).read_text()}
    if options.base:
        variants = {options.base: _of_commit(options.base)} | variants
    found: defaultdict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    counters = growing(SERVICES[:100], CLUSTERS)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            agents(Path(folder), *CLUSTERS, counters=counters) as (processes, sources),
            served_page(sources) as served,
            running_browser() as browser,
        ):
            fill(processes, CLUSTERS, SERVICES)
            session = await browser.new_browser_cdp_session()
            for _ in range(options.rounds):
                for variant, text in variants.items():
                    async with opened(browser, served, bypass_csp=True) as tab:
                        await _replace(tab, text)
                        for name, gesture in GESTURES.items():
                            before = await _cpu(session)
                            rate, gap, frames = await tab.evaluate(FRAMES, [gesture, options.seconds])
                            cpu = 1000 * (await _cpu(session) - before) / frames
                            found[variant, name].append((rate, gap, cpu))
    print(f"{'':<14} {'gesture':<8} {'frames/s':>9} {'(each round)':<28} {'95 % within':>12} {'CPU/frame':>12}")
    for (variant, name), rows in found.items():
        rate, gap, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        each = " ".join(f"{row[0]:.0f}" for row in rows)
        print(f"{variant:<14} {name:<8} {rate:>9.1f} {f'({each})':<28} {gap:>9.0f} ms {cpu:>9.1f} ms")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}, no graphics processor, window of 1440 × 900")


async def _cpu(session: Any) -> float:
    """CPU seconds of all processes of the browser."""
    answer = await session.send("SystemInfo.getProcessInfo")
    return sum(float(each["cpuTime"]) for each in answer["processInfo"])


def _of_commit(commit: str) -> str:
    return subprocess.run(["git", "show", f"{commit}:{STATIC}"], check=True, capture_output=True, text=True).stdout


async def _replace(tab: Tab, text: str) -> None:
    """Open the page anew with another map.js, and wait until it has drawn everything."""

    async def answer(route: Any) -> None:
        await route.fulfill(body=text, content_type="text/javascript; charset=utf-8")

    await tab.page.route("**/map.js", answer)
    await tab.page.reload()
    await tab.until("() => document.querySelector('canvas')?.dataset.nodes === '5000'")
    await tab.shows(".legend", "kinds of calls are drawn")


if __name__ == "__main__":
    asyncio.run(main())
