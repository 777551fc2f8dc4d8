"""The lab's tree of control groups: where each process of a lab is, and how all of them are found and ended.

Cgroup v2 only, and no controller is asked for: the tree records what belongs where, and BPF attaches to it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path


class NoCgroups(Exception):  # noqa: N818
    """This machine has no cgroup v2 hierarchy."""


@cache
def found() -> Path | None:
    """Where cgroup v2 is mounted: alone, or beside v1."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def root() -> Path:
    """The same where there has to be one."""
    if (where := found()) is None:
        raise NoCgroups("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup/unified")
    return where


def make(path: Path) -> Path:
    """A group, and those above it."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def enter(path: Path) -> None:
    """Move this process into a group; allowed between fork and exec."""
    with (path / "cgroup.procs").open("w") as procs:
        procs.write("0")


def processes(path: Path) -> list[int]:
    """Pids of a group and of all below it."""
    found: list[int] = []
    for directory, _, files in os.walk(path):
        if "cgroup.procs" in files:
            try:
                found += map(int, (Path(directory) / "cgroup.procs").read_text().split())
            except OSError:
                continue  # went away between being seen and being read
    return found


def groups(path: Path, *, depth: int) -> Iterator[Path]:
    """Groups that are so many levels below one. A group that goes meanwhile is left out, where a glob would fail."""
    for directory, below, _ in os.walk(path):
        found = Path(directory)
        if len(found.relative_to(path).parts) == depth:
            below.clear()
            yield found


def kill(path: Path) -> None:
    """SIGKILL to everything in a group and below; what forks meanwhile is hit too."""
    try:
        (path / "cgroup.kill").write_text("1")
    except FileNotFoundError:
        if path.exists():  # a kernel before 5.14
            for pid in processes(path):
                send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """A signal to a process that may have gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def remove(path: Path) -> bool:
    """Remove a group and those below it; False while something is still in one of them."""
    if not path.exists():
        return True
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            Path(directory).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def end(path: Path, *, patience: float = 5.0) -> bool:
    """Kill everything in a group, wait until it is empty, and remove it."""
    deadline = time.monotonic() + patience
    while not remove(path):
        kill(path)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
