"""The unix socket itself: for its owner only, in the place of one that a dead process left, never of a living one's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from isthmus.config import ConfigError

LONGEST = 107
"""Bytes of a path that fit into sockaddr_un."""


def listen(path: Path) -> socket.socket:
    """A listening socket at a path, mode 0600; ConfigError where it cannot be made."""
    temporary = path.with_name(path.name + "~")
    if len(os.fsencode(temporary)) > LONGEST:
        raise ConfigError(f"admin.socket = '{path}': longer than the {LONGEST - 1} bytes a socket's path may have")
    if answers(path):
        raise ConfigError(f"admin.socket = '{path}': another process serves there; stop it or choose another path")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary.unlink(missing_ok=True)
        listener.bind(str(temporary))
        temporary.chmod(0o600)  # no client can have connected before: it listens from the next line on
        listener.listen(128)
        temporary.rename(path)
    except OSError as error:
        listener.close()
        where = f" ({error.filename})" if error.filename else ""
        raise ConfigError(f"admin.socket = '{path}': {error.strerror}{where}") from None
    listener.setblocking(False)
    return listener


def answers(path: Path) -> bool:
    """True if a living process listens at the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return path.is_socket()
        return True


def forget(path: Path, inode: int) -> None:
    """Take the socket's name away, unless another process has put its own there since."""
    try:
        if path.stat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass
