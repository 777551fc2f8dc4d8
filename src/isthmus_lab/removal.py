"""Takes a lab away, whatever state it is in, and needs nothing but its name: not its supervisor, not its files.

Order matters: first no process runs any more, so that nothing comes back; then what they held.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from isthmus_lab import cgroups, confinement, kernel
from isthmus_lab.layout import STATE_ROOT, Lab
from isthmus_lab.network import namespaces


class StillThere(Exception):  # noqa: N818
    """Something of the lab could not be removed; the message names it."""


def exists(lab: Lab) -> bool:
    """Whether anything of a lab is on this machine."""
    cgroup = cgroups.root() / lab.prefix
    return lab.directory.exists() or cgroup.exists() or any(lab.owns(name) for name in namespaces.names())


def names() -> list[str]:
    """Labs of which there is a state directory."""
    return sorted(entry.name for entry in STATE_ROOT.iterdir() if entry.is_dir()) if STATE_ROOT.is_dir() else []


def remove(lab: Lab) -> None:
    """Remove it without a trace; what is not there is no error."""
    cgroup = cgroups.root() / lab.prefix
    if not cgroups.end(cgroup, patience=60.0):
        raise StillThere(f"processes {cgroups.processes(cgroup)} of {cgroup} do not end")
    _unmount(lab.directory)
    for name in namespaces.names():
        if lab.owns(name):
            namespaces.remove(name)
    shutil.rmtree(lab.directory, ignore_errors=True)
    if lab.directory.exists():
        raise StillThere(f"{lab.directory} cannot be removed")
    namespaces.release()
    confinement.forget(lab)


def _unmount(directory: Path) -> None:
    """Everything mounted below, the last first."""
    for where in reversed(kernel.mounts()):
        if Path(where).is_relative_to(directory):
            kernel.umount(where)
