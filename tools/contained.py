"""Run a command, and end all that it started when it ends: python3 tools/contained.py [--seconds N] COMMAND…

Also what has left its session and lost its parent: this process is the one that orphans below it fall to
(PR_SET_CHILD_SUBREAPER, prctl(2)). SIGINT, SIGTERM and the end of this process's parent end the command, too. Only
processes that became another's children by a subreaper of their own escape while that lives: it is ended as well.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
LATE: Final = 124
"""Exit code of a command that took longer than it may, as of timeout(1)."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: list[str], *, seconds: float | None) -> int:
    """The command's exit code, or 128 + signal if it was killed, as in shells."""
    try:
        code = subprocess.Popen(command).wait(seconds)
    except subprocess.TimeoutExpired:
        return LATE
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        end_descendants()
    return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """SIGKILL to all below this process, until there are none: what is killed may have forked."""
    while pids := list(_descendants(os.getpid())):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)  # one at a time: each makes its own children ours


def _descendants(pid: int) -> Iterator[int]:
    """The deepest first, so that none of them forks for one that was just killed."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield from _descendants(child)
                yield child


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    """Run the command of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, help="end the command after so long, with exit code 124")
    parser.add_argument("--parent", type=int, help="process that starts this one: end at once if it has ended already")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    parent = wanted.parent or os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in ENDING:
        signal.signal(number, _end)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it ended before that was set
    return run(wanted.command, seconds=wanted.seconds)


if __name__ == "__main__":
    sys.exit(main())
