"""The system calls a lab needs and Python 3.11 lacks: namespaces, mounts, capabilities. Each raises OSError by name.

Some of these run between fork and exec, so nothing here allocates threads, logs, or waits.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SHARED: Final = 1 << 20
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36

_SYS_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int = 0) -> None:
    """Enter a namespace."""
    _check(_libc.setns(descriptor, flags), "setns")


def mount(source: str | Path, target: str | Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        str(source).encode(), str(target).encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or source} on {target}")


def umount(target: str | Path, flags: int = MNT_DETACH) -> None:
    """umount2(2), lazily by default."""
    _check(_libc.umount2(str(target).encode(), flags), f"umount {target}")


def mounts() -> list[str]:
    """Mount points in mount order. os.path.ismount misses a bind mount within one file system."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), where) for where in points]


def pivot_root(new: str | Path, old: str | Path) -> None:
    """Change the root of this mount namespace."""
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(number, str(new).encode(), str(old).encode()), f"pivot_root {new}")


def sethostname(name: str) -> None:
    """Set the hostname of this UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def prctl(option: int, argument: int = 0) -> None:
    """prctl(2)."""
    _check(_libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0), "prctl")


def keep_namespace(kind: str, flag: int, file: Path) -> None:
    """Mount a new namespace of a kind, as /proc/PID/ns calls it, on a file. This process stays in the one it is in."""
    own = Path("/proc/thread-self/ns", kind)
    with own.open() as home:
        unshare(flag)
        try:
            mount(own, file, flags=MS_BIND)
        finally:
            setns(home.fileno(), flag)


@contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """This thread is in a network namespace for the body, which must not wait: no ``await`` in it."""
    with Path("/proc/thread-self/ns/net").open() as home, namespace.open() as target:
        setns(target.fileno(), CLONE_NEWNET)
        try:
            yield
        finally:
            setns(home.fileno(), CLONE_NEWNET)
