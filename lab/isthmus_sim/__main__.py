"""The command: ``python -m isthmus_sim run|replay``.

It starts itself anew with a fixed seed of hashes, without which sets of texts have another order in each process.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from isthmus_sim import cases, events
from isthmus_sim.cases import Case
from isthmus_sim.run import NAMES, Result, run
from isthmus_sim.shrinking import shrunk

EVENTS = 40
SECONDS = 300.0
"""Events of a story, and the seconds within which they happen."""


def main(arguments: Sequence[str]) -> int:
    """The command; gives its exit code: 1 if an invariant is broken."""
    parser = argparse.ArgumentParser(prog="isthmus_sim", description=__doc__)
    parser.add_argument("--log", default="critical", help="least severe level of the processes' log")
    commands = parser.add_subparsers(required=True, dest="command")
    hunt = commands.add_parser("run", help="run stories of new seeds, one after the other")
    hunt.add_argument("--seed", type=int, default=1, help="seed of the first story")
    hunt.add_argument("--stories", type=int, default=0, help="number of stories; 0: as many as there is time for")
    hunt.add_argument("--hours", type=float, default=0.0, help="hours to simulate; 0: no such limit")
    hunt.add_argument("--minutes", type=float, default=0.0, help="minutes to run for; 0: no such limit")
    hunt.add_argument("--events", type=int, default=EVENTS, help="events of each story")
    hunt.add_argument("--cases", type=Path, help="directory that failing stories are written to")
    hunt.add_argument("--keep-on", action="store_true", help="go on after a failure")
    replay = commands.add_parser("replay", help="run the stories of files")
    replay.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    level = getattr(logging, options.log.upper())
    if options.command == "replay":
        return max([_replay(file, level) for file in options.files])
    return _hunt(options, level)


def _replay(file: Path, level: int) -> int:
    result = run(*cases.read(file), level=level)
    print(f"{file}: {_outcome(result)}")
    return bool(result.broken)


def _hunt(options: argparse.Namespace, level: int) -> int:
    began, simulated, told, failures = time.monotonic(), 0.0, 0, 0
    while True:
        seed = options.seed + told
        result = run(seed, story(seed, options.events), level=level)
        simulated, told = simulated + result.simulated, told + 1
        if result.broken:
            failures += 1
            print(f"seed {seed}: {_outcome(result)}", flush=True)
            print(report(result, options.cases), flush=True)
        spent = time.monotonic() - began
        if (
            (failures and not options.keep_on)
            or told == options.stories
            or (options.hours and simulated >= options.hours * 3600)
            or (options.minutes and spent >= options.minutes * 60)
        ):
            break
    print(
        f"{told} stories from seed {options.seed}, {failures} failed: {simulated / 3600:.2f} hours in {spent:.0f} s",
        end="",
    )
    print(f"; {simulated / time.process_time():.0f} simulated hours per hour of a core")
    return bool(failures)


def story(seed: int, count: int = EVENTS) -> list[events.Event]:
    """The story of a seed."""
    return events.story(random.Random(seed), NAMES, count=count, seconds=SECONDS)


def report(result: Result, folder: Path | None) -> str:
    """Shrink a failing story, and write it to a folder if there is one. The text of its file."""
    first = min(result.broken, key=lambda each: float(each.split()[0])).split()[1].rstrip(":")

    def fails(fewer: Sequence[events.Event]) -> bool:
        return first in run(result.seed, fewer, until=first).invariants

    fewest = shrunk(result.events, fails)
    again = run(result.seed, fewest)
    text = cases.text(Case(result.seed, fewest), comments=again.broken)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{first}-{result.seed}.txt").write_text(text)
    return text


def _outcome(result: Result) -> str:
    texts = "\n  ".join(result.broken) or "all invariants hold"
    return f"{result.simulated:.0f} s in {result.took:.1f} s, {result.writes} writes, {result.digest:08x}: {texts}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "isthmus_sim", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
