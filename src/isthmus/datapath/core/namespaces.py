"""To look into namespaces of processes: from a thread or a process of its own, which does not come back from there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
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
    """The processes in a cgroup and below. One that ends meanwhile, with its cgroup or without, is left out."""
    for _, pid in _numbers_below(cgroup):
        with contextlib.suppress(OSError):
            yield Process.look(pid)


def _numbers_below(cgroup: Path) -> Iterator[tuple[Path, int]]:
    """Each process in a cgroup and below, with the file that names it.

    ``os.walk`` passes over a directory that goes before it is entered; ``Path.rglob`` ends with FileNotFoundError then.
    """
    for directory, _, _ in os.walk(cgroup):
        path = Path(directory, "cgroup.procs")
        try:
            found = path.read_text().split()
        except OSError:
            continue
        yield from ((path, int(line)) for line in found)


def inside(pid: int, act: Callable[[], T]) -> T:
    """What a function gives in the network namespace of a process; OSError where that is gone or may not be entered."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_enter, namespace, act).result()
    finally:
        os.close(namespace)


def inside_pod(pods: Path, pid: int, act: Callable[[], T]) -> T:
    """What a function gives in the network namespace and the control group of a process below the cgroup ``pods``.

    So the hooks of pods apply to it. In a child process, since all threads of one have one control group. OSError as of
    ``inside``, or the function's own.
    """
    group = next((path for path, number in _numbers_below(pods) if number == pid), None)
    if group is None:
        raise ProcessLookupError(f"process {pid} is not below {pods}")
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            try:
                group.write_text("0")
                result: T | OSError = _enter(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), act)
            except OSError as why:
                result = why
            os.write(writer, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    found: T | OSError = pickle.loads(sent) if sent else ChildProcessError("the process in the pod gave no result")
    if isinstance(found, OSError):
        raise found
    return found


def _enter(namespace: int, act: Callable[[], T]) -> T:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return act()
