"""The namespaces of a lab that an ordinary user makes: in them that user is root, of nothing outside.

They live as long as their first process, which does nothing but end what loses its parent. ``lab up`` makes them, and
every command about the lab joins them, and then does what it does for root. What they do not hide is the file system,
so sockets, logs and kubeconfig are where they are; API servers have a second listener, opened before on the host's
loopback.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from isthmus.host_user import HOST_USER, LABS, RUN, VARIABLE, refusal
from isthmus_lab import kernel, privileges
from isthmus_lab.cgroups import GROUPS
from isthmus_lab.layout import Lab
from isthmus_lab.spawn import born

NAMESPACES: Final = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWCGROUP  # which those of its groups (cgroups.py) are changed for, and back
)
OF_CHILDREN: Final = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID
"""Namespaces entered by the parent; its child enters the rest, so the parent still sees the host's processes."""
SIOCSIFFLAGS: Final = 0x8914
IFF_UP: Final = 1
KNOWN: Final = RUN / "namespaces"
"""A file for each lab that has some."""


class NotConfined(Exception):  # noqa: N818
    """The namespaces could not be made or joined; the message has what failed."""


class FirstProcess(Struct, frozen=True):
    """The process that keeps a lab's namespaces, as the host sees it."""

    pid: int
    born: int
    """Start time in ticks, which with the pid identifies the process."""

    @property
    def alive(self) -> bool:
        """True if it still runs."""
        return self.born != 0 and born(self.pid) == self.born


def begin(lab: Lab) -> list[socket.socket]:
    """Go on in new namespaces for a lab, and give a listener on the host's loopback for each of its clusters.

    None are made, and none given, for root, where the lab is there already, and where this machine allows none.
    NotConfined where another command that does this runs, too, or has failed here.
    """
    if not _outside():
        return []
    _distrust()
    if lab.directory.exists() or missing():
        return []
    claim = _claim(lab)
    if lab.directory.exists():
        return []
    _end_first(lab)  # of a command that was killed before it had made the lab
    doors = [loopback() for _ in lab.clusters]
    with _uninterrupted():
        try:
            first = _make()
            _file(lab).write_bytes(msgspec.json.encode(first))
            _go_on_inside(first, lab, claim)
        except NotConfined:
            os.close(claim)
            forget(lab)
            raise
    return doors


def join(lab: Lab) -> None:
    """Go on in the namespaces of a lab, if it has such and they still are; NotConfined where that is not allowed."""
    if _outside():
        _distrust()
        if (first := _first_of(lab)) is not None and first.alive:
            with _uninterrupted():
                _go_on_inside(first, lab)


def loopback(port: int = 0) -> socket.socket:
    """A listener on this namespace's 127.0.0.1, at a free port if none is given."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.bind(("127.0.0.1", port))
    made.listen(128)
    return made


def _outside() -> bool:
    """True if an ordinary user runs this process outside the namespaces of a lab."""
    return privileges.CONFINED and VARIABLE not in os.environ


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """For the body, no signal ends this process, nor those that it starts there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _distrust() -> None:
    """NotConfined unless what this user's labs have is in a directory that no other user can write."""
    if reason := refusal():
        raise NotConfined(reason)


def _claim(lab: Lab) -> int:
    """Open and lock the file about a lab's namespaces. Raises NotConfined if another command holds the lock.

    While it is open, no other process makes namespaces for that lab or removes their file.
    """
    while True:
        with suppress(FileExistsError):
            RUN.mkdir(mode=0o700)
        _distrust()
        try:
            for directory in (LABS, KNOWN):
                directory.mkdir(exist_ok=True)
            claim = os.open(_file(lab), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the last lab is removed meanwhile, with its directories
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(claim), _file(lab).stat()):
                return claim
        except BlockingIOError:
            os.close(claim)
            raise NotConfined(f"another command is about to make lab {lab.name}, or to remove it") from None
        except FileNotFoundError:
            pass  # the lab went between open and lock
        os.close(claim)


def forget(lab: Lab) -> None:
    """No lab of that name is left: end its namespaces and remove their record; with the last lab, all there is.

    Inside of the namespaces this is left to the process that waits outside.
    """
    if VARIABLE in os.environ:
        return
    if privileges.CONFINED:
        try:
            claim = _claim(lab)
        except NotConfined:
            return  # who makes it anew does the rest
        if not lab.directory.exists():
            _end_first(lab)
            _file(lab).unlink()
        os.close(claim)
    for directory in (KNOWN, GROUPS, LABS, RUN):
        try:
            directory.rmdir()
        except OSError:
            pass  # another lab's, or not there


def _end_first(lab: Lab) -> None:
    """End the namespaces that a lab had, and wait for it."""
    first = _first_of(lab)
    if first is None or not first.alive:
        return
    with suppress(ProcessLookupError):
        process = os.pidfd_open(first.pid)
        if first.alive:  # so the descriptor is of that process and no other
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
        os.close(process)


def _file(lab: Lab) -> Path:
    return KNOWN / f"{lab.name}.json"


def _first_of(lab: Lab) -> FirstProcess | None:
    try:
        return msgspec.json.decode(_file(lab).read_bytes(), type=FirstProcess)
    except (OSError, msgspec.MsgspecError):
        return None


def _make() -> FirstProcess:
    """Start the first process of new namespaces, and wait until they are set up."""
    reading, writing = os.pipe()
    if (between := os.fork()) == 0:
        _be_first(writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as reports:
        report = reports.read().decode()
    os.waitpid(between, 0)
    if not report.isdigit():
        raise NotConfined(f"no namespaces for a lab: {report or 'their first process ended'}")
    first = FirstProcess(int(report), born(int(report)))
    if not first.alive:
        raise NotConfined("no namespaces for a lab: their first process has ended")
    return first


def _be_first(report: int) -> NoReturn:
    """Report this process's pid once all is set up, or what failed."""
    try:
        _detach(report)
        _unshare()
        if os.fork() == 0:
            pid = str(Path("/proc/self").readlink())  # still that of the host, where pids are the host's
            _set_up()
            os.write(report, pid.encode())
            os.close(report)
            _reap()
    except OSError as error:
        os.write(report, str(error).encode())
    finally:
        os._exit(1)


def _detach(report: int) -> None:
    """Keep nothing of the command: whoever reads its output is not to wait for this process."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, report)
    os.closerange(report + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(NAMESPACES)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def missing() -> list[str]:
    """Missing features for a lab without privileges, each with its remedy; a child process tries them."""
    with _uninterrupted():
        if (child := os.fork()) == 0:
            try:
                os._exit(_try())
            finally:
                os._exit(errno.EPERM)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [privileges.sentence(code, privileges.setting)] if code else []


def _try() -> int:
    """The error number of what a lab's namespaces, or those of its containers, are refused with, or 0; in a child."""
    try:
        _unshare()
        if (inner := os.fork()) != 0:
            return os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
        _set_up()
        kernel.unshare(kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


def _set_up() -> None:
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _reap() -> None:
    """For ever: fetch the exit codes of all whose parents have ended, as process 1 has to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait({signal.SIGCHLD})


def _go_on_inside(first: FirstProcess, lab: Lab, claim: int | None = None) -> None:
    """Returns in a child that is in the namespaces; this process ends as that does, and ends what is left of no lab.

    ``claim`` is the child's from then on.
    """
    here = _working_directory()
    descriptor = os.pidfd_open(first.pid)
    try:
        kernel.setns(descriptor, OF_CHILDREN)
    except OSError as error:
        raise NotConfined(f"lab {lab.name} cannot be joined from here, as from where it was made: {error}") from None
    sys.stdout.flush()
    if (child := os.fork()) != 0:
        if claim is not None:
            os.close(claim)
        _end_as(child, lab)
    kernel.setns(descriptor, NAMESPACES & ~OF_CHILDREN)
    os.close(descriptor)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    os.environ[VARIABLE] = str(HOST_USER)
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # of nft and tc: only root's has these
    try:
        os.chdir(here)
    except OSError:
        pass  # stays at the root: the directory was entered before its modes forbade that


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


def _end_as(child: int, lab: Lab) -> NoReturn:
    """Wait for the child, which receives keyboard signals itself, and exit with its code."""
    if signal.SIGINT in signal.sigpending():
        os.kill(child, signal.SIGINT)  # which came before there was a child
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not lab.directory.exists():
        forget(lab)
    os._exit(code if code >= 0 else 128 - code)
