"""From `kubectl apply` of a ServiceExport in c1 to the first answer in c2, in a lab of two clusters: make bench-export.

Prints the median and the 95th percentile; exit code 1 where the 95th percentile is not below the target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from labs.lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.demo.stage import IMPORT_NAME
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER

ECHO: Final = Path(__file__).parents[1] / "examples" / "echo"
EXPORT: Final = str(ECHO / "export")
TARGET: Final = 1.0
"""Seconds, for 95 of 100 exports."""


def caller(lab: Running, *words: str) -> subprocess.Popen[str]:
    """A client pod of c2 that calls the import, and prints a line of JSON for each call."""
    inside = IN_CONTAINER.command("caller.py", IMPORT_NAME, "80", *words)
    command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, "c2", "demo/client", "--"]
    return subprocess.Popen([*command, *inside], stdout=subprocess.PIPE, text=True)


def answered(calling: subprocess.Popen[str]) -> dict[str, float]:
    """The last call of a caller."""
    last: dict[str, float] = json.loads(calling.communicate(timeout=120)[0].splitlines()[-1])
    return last


def once(lab: Running) -> float:
    """Seconds from the export to the end of the first call that was answered."""
    calling = caller(lab, "--count", "3000", "--pause", "0.005", "--until-ok")
    lab.kubectl("get", "ns", "demo")  # the caller is inside by then
    began = time.time()
    lab.kubectl("apply", "-f", EXPORT)
    last = answered(calling)
    lab.kubectl("delete", "-f", EXPORT)
    until(lambda: not answered(caller(lab, "--count", "1"))["ok"], what="the import is gone")
    if not last["ok"]:
        raise SystemExit("bench-export: the import was never answered")
    return last["at"] + last["took"] - began


def main() -> int:
    """Bring a lab up, export again and again, take it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=40)
    times = parser.parse_args().times
    lab = Running(Lab(lab_name("e"), 2, 1))
    try:
        lab.cli("up", "--clusters", "2", "--from", str(ECHO))
        for cluster in ("c1", "c2"):
            lab.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=60s", cluster=cluster)
        took = sorted(once(lab) for _ in range(times))
    finally:
        removal.remove(lab.lab)
    high = took[max(0, -(-times * 95 // 100) - 1)]
    print(f"{times} exports: median {statistics.median(took):.2f} s, 95th percentile {high:.2f} s, target {TARGET:g} s")
    return int(high >= TARGET)


if __name__ == "__main__":
    sys.exit(main())
