"""Removes a world of nodes once the process that made it is gone, however it ended. Standard library only.

It reads a pipe whose other end that process holds and never writes to. No other code removes anything of a world.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def hierarchies(*types: str) -> list[Path]:
    """Return where hierarchies of control groups are mounted: ``cgroup`` (version 1), ``cgroup2``."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(path) for _, path, kind, *_ in mounts if kind in types]


def remove(name: str, folder: Path) -> None:
    """End the processes of a world, then remove its control groups, network namespaces and files."""
    for hierarchy in hierarchies("cgroup2"):
        _kill(hierarchy / name)
    for namespace in Path("/run/netns").glob(f"{name}-*"):
        subprocess.run(["ip", "netns", "delete", namespace.name], check=False)
    for hierarchy in hierarchies("cgroup", "cgroup2"):
        for group, _, _ in os.walk(hierarchy / name, topdown=False):
            _rmdir(Path(group))
    for _ in range(50):
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False, stderr=subprocess.DEVNULL)
        if not folder.exists():
            return
        time.sleep(0.2)


def _kill(group: Path) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        if not group.exists() or "populated 0" in (group / "cgroup.events").read_text():
            return
        time.sleep(0.1)


def _rmdir(path: Path) -> None:
    for _ in range(20):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # the kernel has not yet let go of it, or it is somebody else's
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the tests is not to end this before its work is done
    sys.stdin.read()
    remove(sys.argv[1], Path(sys.argv[2]))
