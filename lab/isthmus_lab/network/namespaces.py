"""Named network namespaces, as ``ip netns`` keeps them, so that its commands work on those of a lab.

Where ``/run/netns`` did not exist before, it is made as iproute2 makes it, with a note, and the last namespace removes
it: a machine is as before after the last lab. An ordinary user's have a directory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from isthmus.host_user import RUN
from isthmus_lab import kernel, privileges

DIRECTORY: Final = RUN / "netns" if privileges.CONFINED else Path("/run/netns")
NOTE: Final = RUN / "made-run-netns"
"""Lies where the directory is ours to remove."""


def path(name: str) -> Path:
    """Path of a namespace."""
    return DIRECTORY / name


def place(name: str) -> Path | None:
    """Path by which a process enters a namespace; None if labs have no namespaces."""
    return None if privileges.on_loopback() else path(name)


def inside(name: str) -> AbstractContextManager[None]:
    """This thread is in a namespace for the body, which must not wait: no ``await`` in it."""
    return nullcontext() if (path := place(name)) is None else kernel.inside(path)


def create(name: str) -> None:
    """A new namespace with its loopback still down; this process stays where it is."""
    _prepare()
    target = path(name)
    target.touch(mode=0o444, exist_ok=True)
    kernel.keep_namespace("net", kernel.CLONE_NEWNET, target)


def names() -> list[str]:
    """Every named namespace of this machine."""
    return sorted(entry.name for entry in DIRECTORY.iterdir()) if DIRECTORY.is_dir() else []


def remove(name: str) -> None:
    """Remove a name, if it exists; the namespace ends with its last process."""
    target = path(name)
    while True:
        try:
            kernel.umount(target)
        except OSError:
            break  # not mounted, or not there: the name of a create() that was interrupted
    target.unlink(missing_ok=True)


def release() -> None:
    """Remove the directory if a lab made it and it has no namespace left."""
    if not NOTE.exists() or names():
        return
    _unmount_directory()
    try:
        DIRECTORY.rmdir()
    except OSError:
        return  # a namespace was made meanwhile
    NOTE.unlink(missing_ok=True)


def set_kernel_parameters(name: str, parameters: Iterable[tuple[str, str]]) -> None:
    """Set ``net/…`` parameters of one namespace, given as paths below /proc/sys."""
    with kernel.inside(path(name)):
        for parameter, value in parameters:
            Path("/proc/sys", parameter).write_text(value)


def _prepare() -> None:
    if not DIRECTORY.exists():
        NOTE.parent.mkdir(parents=True, exist_ok=True)
        NOTE.touch()
        DIRECTORY.mkdir(parents=True, exist_ok=True)
    if str(DIRECTORY) not in kernel.mounts():
        kernel.mount(DIRECTORY, DIRECTORY, flags=kernel.MS_BIND)
        kernel.mount("", DIRECTORY, flags=kernel.MS_SHARED)


def _unmount_directory() -> None:
    try:
        kernel.umount(DIRECTORY)
    except OSError:
        pass  # was no mount: the make of it was interrupted
