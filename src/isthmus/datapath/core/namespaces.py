"""Run functions in the namespaces of other processes: in a thread or child process that ends there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

CLONE_NEWNET: Final = 0x40000000
T = TypeVar("T")


class Process(Struct, frozen=True):
    """A process and its network namespace. Pids and inodes are reused soon; all three fields together are not."""

    pid: int
    started: int
    """Clock ticks after boot."""
    namespace: int
    """Inode."""

    @classmethod
    def look(cls, pid: int) -> Process:
        """The process with a pid. Raises OSError if there is none."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return cls(pid, int(fields[19]), Path(f"/proc/{pid}/ns/net").stat().st_ino)

    def still_runs(self) -> bool:
        """True if the process still runs, in the same network namespace."""
        try:
            return Process.look(self.pid) == self
        except OSError:
            return False


def processes_below(cgroup: Path) -> Iterator[Process]:
    """Processes in a cgroup and below, without those that end during the search."""
    return (process for _, process in processes_by_group(cgroup))


def one_of_each_namespace(cgroup: Path) -> Collection[Process]:
    """A process of each network namespace in a cgroup and below."""
    return {process.namespace: process for process in processes_below(cgroup)}.values()


def processes_by_group(cgroup: Path) -> Iterator[tuple[Path, Process]]:
    """Processes in a cgroup and below, each with its own cgroup."""
    for listing, pid in _numbers_below(cgroup):
        with contextlib.suppress(OSError):
            yield listing.parent, Process.look(pid)


def _numbers_below(cgroup: Path) -> Iterator[tuple[Path, int]]:
    """Each pid in a cgroup and below, with the file that lists it.

    ``os.walk`` skips a directory that is deleted before it is entered; ``Path.rglob`` raises FileNotFoundError.
    """
    for directory, _, _ in os.walk(cgroup):
        path = Path(directory, "cgroup.procs")
        try:
            pids = path.read_text().split()
        except OSError:
            continue
        yield from ((path, int(line)) for line in pids)


def inside(pid: int, act: Callable[[], T]) -> T:
    """Run a function in the network namespace of a process. Raises OSError if that cannot be entered."""
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_enter, namespace, act).result()
    finally:
        os.close(namespace)


def inside_pod(pods: Path, pid: int, act: Callable[[], T]) -> T:
    """Run a function in the network namespace and the cgroup of a process below the cgroup ``pods``.

    So the hooks of pods apply to it. It runs in a child process, because threads share their process's cgroup. Raises
    OSError as ``inside`` does, or that of the function.
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
            except OSError as error:
                result = error
            os.write(writer, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        sent = pipe.read()
    os.waitpid(child, 0)
    outcome: T | OSError = pickle.loads(sent) if sent else ChildProcessError("the process in the pod gave no result")
    if isinstance(outcome, OSError):
        raise outcome
    return outcome


def _enter(namespace: int, act: Callable[[], T]) -> T:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return act()
