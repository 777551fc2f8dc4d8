"""Takes a lab away, whatever state it is in, and needs nothing but its name: not its supervisor, not its files.

Order matters: first stop all processes, so that nothing is recreated; then remove their resources.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from isthmus_lab import cgroups, confinement, kernel
from isthmus_lab.layout import STATE_ROOT, Lab
from isthmus_lab.network import namespaces


class StillThere(Exception):  # noqa: N818
    """Something of the lab could not be removed; the message names it."""


def exists(lab: Lab) -> bool:
    """True if anything of a lab is on this machine."""
    cgroup = cgroups.root() / lab.prefix
    return lab.directory.exists() or cgroup.exists() or any(lab.owns(name) for name in namespaces.names())


def names() -> list[str]:
    """Labs of which there is a state directory."""
    return sorted(entry.name for entry in STATE_ROOT.iterdir() if entry.is_dir()) if STATE_ROOT.is_dir() else []


def remove(lab: Lab) -> None:
    """Remove it without a trace; what is not there is no error."""
    cgroup = cgroups.root() / lab.prefix
    if not cgroups.end(cgroup, patience=60.0):
        raise StillThere(f"{cgroup}: processes do not end: {_named(cgroups.processes(cgroup))}")
    _unmount(lab.directory)
    for name in namespaces.names():
        if lab.owns(name):
            namespaces.remove(name)
    _delete(lab.directory)
    namespaces.release()
    confinement.forget(lab)


def _unmount(directory: Path) -> None:
    """Unmount everything below, the last first. StillThere, before a file is deleted, if something stays mounted."""
    for where in reversed(kernel.mounts()):
        if Path(where).is_relative_to(directory):
            try:
                kernel.umount(where)
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                raise StillThere(f"{where} stays mounted: {reason}{_users(Path(where))}") from None


def _delete(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    try:
        shutil.rmtree(directory)  # raises the reason where something is left
    except FileNotFoundError:
        return
    except OSError as error:
        mounts = [Path(where) for where in kernel.mounts()]
        inner = ", ".join(str(where) for where in mounts if where.is_relative_to(directory))
        outer = max((where for where in mounts if directory.is_relative_to(where)), key=lambda path: len(path.parts))
        mount = f"mounted below it: {inner}" if inner else f"in the file system mounted at {outer}"
        raise StillThere(f"{error.filename or directory}: {error.strerror}, {mount}{_users(directory)}") from None


def _users(directory: Path) -> str:
    """Processes with files open below a directory, or that are in it, as the rest of a sentence."""
    users = [pid for pid in cgroups.pids() if any(_is_below(link, directory) for link in _links(pid))]
    return f"; used by {_named(users)}" if users else ""


def _links(pid: int) -> Iterator[Path]:
    root = Path("/proc", str(pid))
    with suppress(OSError):  # has ended, or is another user's
        yield from (root / "cwd", root / "root", *(root / "fd").iterdir())


def _is_below(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except OSError:
        return False


def _named(pids: Iterable[int]) -> str:
    """Processes by their ids and programs."""
    return ", ".join(f"{pid} ({_program(pid)})" for pid in pids)


def _program(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return "ended"
