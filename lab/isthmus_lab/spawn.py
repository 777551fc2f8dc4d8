"""A process in its place: network namespace, control group, own process ids, output to a file.

Everything happens between fork and exec, so the program is never anywhere but where it belongs. Ends are awaited by
pid descriptor: no signal handler, no thread.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import termios
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus_lab import cgroups, kernel

PREPARATION_FAILED: Final = 126
UNKNOWN: Final = 137
"""The exit code of a process whose own is not to be had."""
_own: Final[set[int]] = set()
"""Pids of children that are being waited for by those who started them."""


class Isolation(Struct, frozen=True):
    """Namespaces, control group and root of a process."""

    cgroup: Path
    namespace: Path | None = None
    """Network namespace; ``None`` for the caller's."""
    own_pids: bool = False
    """The process is number 1 of a PID namespace of its own."""
    pids_of: int | None = None
    """A process whose PID namespace is joined."""
    prepare: Callable[[], None] | None = None
    """Run last before exec, in the new process."""


class Process:
    """A running process. :meth:`wait` may be awaited by many. ``reap`` gives its exit code once it has ended."""

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        self._reap_it = reap
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        self.pid = pid
        self.born = born(pid)
        """Start time in the kernel's ticks, which with the pid identifies the process."""

    def __repr__(self) -> str:
        return f"<Process {self.pid}: {'running' if self.code is None else self.code}>"

    @property
    def code(self) -> int | None:
        """Exit code, 128 + signal as in shells; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """The exit code, when it has ended."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Send a signal; none is sent once it has ended, so no stranger is ever hit."""
        if not self._ended.done():
            signal.pidfd_send_signal(self._pidfd, number)

    async def stop(self, *, grace: float) -> int:
        """SIGTERM, and SIGKILL after the grace."""
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                return await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            return await self.wait()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        code = self._reap_it()
        _own.discard(self.pid)
        os.close(self._pidfd)
        self._ended.set_result(code if code >= 0 else 128 - code)


def start(
    command: Sequence[str],
    *,
    place: Isolation,
    environment: Mapping[str, str],
    output: Path,
    inherit: Sequence[int] = (),
    directory: str | None = None,
    stdin: int = subprocess.DEVNULL,
    terminal: bool = False,
) -> Process:
    """Run a program; OSError where it cannot be executed. What fails before that is in its output, code 126.

    ``terminal``: its input is one, is its output as well, and controls it.
    """
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        with pids(place):
            return watch(_fork(command, place, environment, (stdin, stdin if terminal else log), inherit, directory))
    finally:
        os.close(log)


def adopt(pid: int, *, start_time: int) -> Process | None:
    """A process that another program started and left behind, if it is still that one. Its exit code is unknown."""
    if born(pid) != start_time:
        return None
    try:
        process = Process(pid, lambda: UNKNOWN)
    except ProcessLookupError:
        return None
    return process if process.born == start_time else None


def watch(child: subprocess.Popen[bytes]) -> Process:
    """A child that was started elsewhere in this process."""
    _own.add(child.pid)
    return Process(child.pid, child.wait)


def claim(pid: int) -> Process:
    """A child of ours that we did not start ourselves."""

    def reap() -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return UNKNOWN  # it ended before it was claimed, and was fetched as a stranger

    _own.add(pid)
    return Process(pid, reap)


def born(pid: int) -> int:
    """Start time of a process in ticks since boot; 0 if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


@contextmanager
def pids(place: Isolation) -> Iterator[None]:
    """The next child has the PID namespace of a place: this process stays where it is."""
    if not place.own_pids and place.pids_of is None:
        yield
        return
    with Path("/proc/self/ns/pid").open() as home:
        if place.own_pids:
            kernel.unshare(kernel.CLONE_NEWPID)
        else:
            with Path(f"/proc/{place.pids_of}/ns/pid").open() as target:
                kernel.setns(target.fileno(), kernel.CLONE_NEWPID)
        try:
            yield
        finally:
            kernel.setns(home.fileno(), kernel.CLONE_NEWPID)


def _fork(
    command: Sequence[str],
    place: Isolation,
    environment: Mapping[str, str],
    streams: tuple[int, int],
    inherit: Sequence[int],
    directory: str | None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        env={**environment, **cgroups.environment(place.cgroup)},
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[1],
        pass_fds=tuple(inherit),
        start_new_session=True,
        preexec_fn=lambda: _enter(place, directory, terminal=streams[0] == streams[1]),
    )


def _enter(place: Isolation, directory: str | None, *, terminal: bool) -> None:
    try:
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        cgroups.enter(place.cgroup)
        if place.namespace is not None:
            with place.namespace.open() as target:
                kernel.setns(target.fileno(), kernel.CLONE_NEWNET)
        if place.prepare is not None:
            place.prepare()
        if directory is not None:
            os.chdir(directory)
    except OSError as error:
        print(f"isthmus lab: cannot be started: {error}", file=sys.stderr, flush=True)
        if not error.errno:
            traceback.print_exc()
        os._exit(PREPARATION_FAILED)


def reap_strangers() -> None:
    """Fetch the exit codes of processes that became ours when their parents died; those we started are left alone."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, _reap_strangers)


def _reap_strangers() -> None:
    for pid in _zombies():
        if pid not in _own:
            os.waitpid(pid, os.WNOHANG)


def _zombies() -> list[int]:
    """Children of this process that have ended. waitid(P_ALL) would show only one, and that may be one of our own."""
    pids = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state == "Z":
            pids.append(int(pid))
    return pids
