"""To look into network namespaces of processes: from a thread of its own, which does not come back from there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

CLONE_NEWNET: Final = 0x40000000
T = TypeVar("T")


class Process(Struct, frozen=True):
    """A process and its network namespace. Inodes of namespaces and pids are reused at once; all three together not."""

    pid: int
    started: int
    """Clock ticks after boot."""
    namespace: int
    """Inode."""

    @classmethod
    def look(cls, pid: int) -> Process:
        """The process of a number; OSError where there is none."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return cls(pid, int(fields[19]), Path(f"/proc/{pid}/ns/net").stat().st_ino)

    def still_runs(self) -> bool:
        """Whether it has not ended, nor gone to another namespace."""
        try:
            return Process.look(self.pid) == self
        except OSError:
            return False


def processes_below(cgroup: Path) -> Iterator[Process]:
    """The processes in a cgroup and below."""
    for path in cgroup.rglob("cgroup.procs"):
        try:
            for line in path.read_text().split():
                yield Process.look(int(line))
        except OSError:
            continue  # it went as we looked; the next time there is another, or none


def inside(pid: int, act: Callable[[], T]) -> T:
    """What a function gives in the network namespace of a process; OSError where that is gone or may not be entered."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_enter, namespace, act).result()
    finally:
        os.close(namespace)


def _enter(namespace: int, act: Callable[[], T]) -> T:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return act()
