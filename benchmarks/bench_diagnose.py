"""How long `isthmus diagnose` takes to name each of twenty faults, in a lab of two clusters: make bench-diagnose.

Prints for each fault the time from its injection until a diagnosis names its hop and object (a cluster is silent after
20 s by definition), and how long the command itself takes then, as people start it; exit code 1 where that is not
below the target.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from labs.injected_faults import EXAMPLES, FAULTS, diagnose, healthy, is_named
from labs.lab_running import Running, in_own_process, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

TARGET: Final = 2.0
"""Seconds for the command, with the start of Python."""
TIMES: Final = 3
"""Runs of the command for each fault; the slowest counts."""


def once(lab: Running, fault: str) -> tuple[float, float]:
    """(seconds until the fault is named, seconds of the slowest command)."""
    inject, words, _ = FAULTS[fault]
    until(lambda: healthy(lab), what="the path is healthy before")
    with inject(lab):
        injected = time.monotonic()
        until(lambda: is_named(fault, diagnose(lab, *words)), what=f"{fault} is named")
        named, took = time.monotonic() - injected, 0.0
        for _ in range(TIMES):
            began = time.monotonic()
            done = in_own_process(["diagnose", *words, "--lab", lab.lab.name, "--cluster", "c2"])
            took = max(took, time.monotonic() - began)
            if done.returncode != 1:
                raise SystemExit(f"bench-diagnose: {fault}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return named, took


def main() -> int:
    """Bring a lab up, inject one fault after the other, take it down."""
    lab = Running(Lab(lab_name("b"), 2, 1))
    slowest = 0.0
    try:
        lab.cli("up", "--clusters", "2", "--from", str(EXAMPLES))
        lab.kubectl("apply", "-f", str(EXAMPLES / "export"), cluster="c1")
        print(f"{'fault':<40} {'named after':>12} {'command takes':>14}")
        for fault in FAULTS:
            named, took = once(lab, fault)
            slowest = max(slowest, took)
            print(f"{fault:<40} {named:>10.1f} s {took:>12.2f} s", flush=True)
    finally:
        removal.remove(lab.lab)
    print(f"{len(FAULTS)} faults, the slowest command {slowest:.2f} s, target {TARGET:g} s")
    return int(slowest >= TARGET)


if __name__ == "__main__":
    sys.exit(main())
