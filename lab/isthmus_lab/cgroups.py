"""The lab's tree of groups of processes: where each process is, and how all of them are found and ended.

Root's are control groups v2, and no controller is asked for: the tree records what belongs where, and BPF attaches to
it. Others may not make those. Theirs are directories with a cgroup namespace each (cgroup_namespaces(7)), which a
process keeps, and all that it starts, as long as nothing in the lab makes another; what it shows is not used. Where
there are no namespaces (:func:`privileges.on_loopback`), a process is in the group that its environment names, as is
what it starts (proc_pid_environ(5)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from isthmus.host_user import RUN
from isthmus_lab import kernel, privileges

GROUPS: Final = RUN / "groups"
"""The tree where there is no cgroup v2 for this user."""
MARK: Final = "namespace"
"""File on which a group's namespace is mounted, where cgroup v2 is missing."""
VARIABLE: Final = "_ISTHMUS_GROUP"
"""Environment variable with the group of a process, where there are no namespaces."""
LONGEST: Final = 250
"""Characters of a group's path: of a lab, cluster, pod and container with the longest names."""
NONE: Final = (0, 0)
"""The identity of what is no namespace."""
PASSES: Final = 100
"""Passes over a group that forks while it is killed."""


class NoCgroups(Exception):  # noqa: N818
    """This machine has no cgroup v2 hierarchy."""


class StillForking(OSError):  # noqa: N818
    """Not all of a group got a signal: it starts processes faster than they are found."""


@cache
def mount_point() -> Path | None:
    """Mount point of cgroup v2, alone or beside v1. Without privileges, a directory of this user."""
    if privileges.CONFINED:
        return GROUPS
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def root() -> Path:
    """Mount point of cgroup v2. Raises NoCgroups if there is none."""
    if (where := mount_point()) is None:
        raise NoCgroups("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none /sys/fs/cgroup/unified")
    return where


def make(path: Path) -> Path:
    """A group, and those above it."""
    path.mkdir(parents=True, exist_ok=True)
    if _namespaces() and not _marked(path / MARK):
        (path / MARK).touch()
        kernel.keep_namespace("cgroup", kernel.CLONE_NEWCGROUP, path / MARK)
    return path


def _namespaces() -> bool:
    """True if groups are cgroup namespaces."""
    return privileges.CONFINED and not privileges.on_loopback()


def _marked(mark: Path) -> bool:
    """True if a namespace is mounted there. An interrupted make leaves a plain file of the same file system."""
    try:
        return mark.lstat().st_dev != mark.parent.lstat().st_dev
    except FileNotFoundError:
        return False


def enter(path: Path) -> None:
    """Move this process into a group; allowed between fork and exec. What it executes has :func:`environment`."""
    if privileges.on_loopback():
        return
    if privileges.CONFINED:
        with (path / MARK).open() as group:
            kernel.setns(group.fileno(), kernel.CLONE_NEWCGROUP)
    else:
        (path / "cgroup.procs").write_text("0")


def environment(path: Path) -> dict[str, str]:
    """Additional environment variables of a group's processes."""
    return {VARIABLE: str(path)} if privileges.on_loopback() else {}


def room(path: Path) -> dict[str, str]:
    """Additional environment variables of a process whose forks change group by :func:`move`."""
    return {name: value.ljust(LONGEST, "/") for name, value in environment(path).items()}


def move(path: Path) -> int:
    """Move this process, which executes nothing new: /proc shows its environment overwritten. The address of that.

    ENAMETOOLONG where there is no room.
    """
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])  # env_start, env_end
    content, entry = ctypes.string_at(start, end - start), f"{VARIABLE}={path}".encode()
    position = content.index(f"{VARIABLE}=".encode())
    length = content.index(b"\0", position) - position
    if len(entry) > length:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    ctypes.memmove(start + position, entry.ljust(length, b"/"), length)
    return start + position


def processes(path: Path) -> list[int]:
    """Pids of a group and of all below it."""
    if privileges.on_loopback():
        return [pid for pid in pids() if _is_below(_named(pid), path)]
    if privileges.CONFINED:
        marks = (Path(directory, MARK) for directory, _, _ in os.walk(path))
        own = _identity(
            Path("/proc/self/ns/cgroup")
        )  # of whoever asks, and of no group: what is sent must not reach it
        return _members({_identity(mark) for mark in marks if _marked(mark)} - {NONE, own})
    members: list[int] = []
    for directory, _, files in os.walk(path):
        if "cgroup.procs" in files:
            try:
                members += map(int, (Path(directory) / "cgroup.procs").read_text().split())
            except OSError:
                continue  # ended between being listed and being read
    return members


def pids() -> Iterator[int]:
    """Every process of this PID namespace."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _named(pid: int) -> str:
    """The group that a process's environment names; empty where it names none, has ended, or is another user's."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    named = (each for each in content.split(b"\0") if each.startswith(f"{VARIABLE}=".encode()))
    return os.fsdecode(next(named, b"").partition(b"=")[2].rstrip(b"/"))


def _is_below(named: str, path: Path) -> bool:
    return named == str(path) or named.startswith(f"{path}/")


def _members(marks: set[tuple[int, int]]) -> list[int]:
    """Pids of those that are in one of some namespaces; one that has ended and waits for its parent is in none."""
    return [pid for pid in pids() if _identity(Path(f"/proc/{pid}/ns/cgroup")) in marks] if marks else []


def _identity(namespace: Path) -> tuple[int, int]:
    """Identity of a namespace (device, inode); NONE if it is gone or another user's."""
    try:
        stat = namespace.stat()
    except OSError:
        return NONE
    return stat.st_dev, stat.st_ino


def groups(path: Path, *, depth: int) -> Iterator[Path]:
    """Groups exactly ``depth`` levels below one. Skips a group that is removed meanwhile; a glob would fail."""
    for directory, directories, _ in os.walk(path):
        cgroup = Path(directory)
        if len(cgroup.relative_to(path).parts) == depth:
            directories.clear()
            yield cgroup


def kill(path: Path) -> None:
    """SIGKILL to everything in a group and below; what forks meanwhile is hit too."""
    at_once = path / "cgroup.kill"  # since 5.14
    if privileges.CONFINED or not at_once.exists():
        _signal(path, signal.SIGKILL)
        return
    with suppress(FileNotFoundError):  # removed between being listed and being written
        at_once.write_text("1")


def freeze(path: Path, *, frozen: bool) -> None:
    """Stop everything in a group where it is, or let it run again."""
    if privileges.CONFINED:
        _signal(path, signal.SIGSTOP if frozen else signal.SIGCONT)
    else:
        (path / "cgroup.freeze").write_text("1" if frozen else "0")


def _signal(path: Path, number: int) -> None:
    """A signal to everything in a group and below, also to what forks meanwhile: until a look finds nothing new.

    StillForking where no look does.
    """
    hit: set[int] = set()
    for _ in range(PASSES):
        if not (new := set(processes(path)) - hit):
            return
        for pid in new:
            send(pid, number)
        hit |= new
    raise StillForking(f"{path} starts processes faster than they are found")


def send(pid: int, number: int) -> None:
    """Send a signal to a process, which may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def remove(path: Path) -> bool:
    """Remove a group and those below it; False while something is still in one of them."""
    if not path.exists():
        return True
    if privileges.CONFINED and processes(path):
        return False
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            _unmark(Path(directory, MARK))
            Path(directory).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _unmark(mark: Path) -> None:
    if not privileges.CONFINED or not mark.exists():
        return
    try:
        kernel.umount(mark)
    except OSError:
        pass  # the namespace it was mounted in has ended
    mark.unlink()


def end(path: Path, *, patience: float = 5.0) -> bool:
    """Kill everything in a group, wait until it is empty, and remove it."""
    deadline = time.monotonic() + patience
    while not remove(path):
        with suppress(StillForking):
            kill(path)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
