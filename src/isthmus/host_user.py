"""Whose processes these are, as the machine knows it, and where labs of that user are.

An ordinary user's lab runs in a user namespace in which that user is root (user_namespaces(7)): inside and outside
agree on who it is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

VARIABLE: Final = "_ISTHMUS_HOST_USER"
"""Of the environment of processes in a lab's own user namespace: who made it."""


def host_user() -> int:
    """The user id outside of the user namespace that this process is in, by ``/proc/self/uid_map``."""
    if VARIABLE in os.environ:
        return int(os.environ[VARIABLE])
    mine = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= mine < inside + count:
            return outside + mine - inside
    return mine


HOST_USER: Final = host_user()
RUN_OF_ROOT: Final = Path("/run/isthmus")
RUN: Final = RUN_OF_ROOT if HOST_USER == 0 else Path(f"/tmp/isthmus-{HOST_USER}")
"""What labs of this user have on this machine. Not in $XDG_RUNTIME_DIR: that goes when the user logs out."""
LABS: Final = RUN / "labs"
"""A directory for each lab."""


def refusal() -> str:
    """Why nothing in :data:`RUN` is to be trusted, or '': anyone may have made a directory of that name in /tmp."""
    if HOST_USER == 0:
        return ""  # in /run, where root alone makes directories
    try:
        status = RUN.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return ""
    return f"{RUN} is for your labs, but is not a directory that you alone may write: have it removed"
