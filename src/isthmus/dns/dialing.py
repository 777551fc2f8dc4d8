"""Sockets by which the name server asks the cluster DNS.

On a node its pod is below the cgroup whose questions the datapath steers to the name server, so its own would come back
to it, for ever. These sockets have a priority by which the datapath leaves them alone. A mark would do as well, but
routes and packet filters read marks; a priority of this size selects a class of a qdisc with that handle.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

OWN_QUESTION: Final = 0x6973_0035
"""SO_PRIORITY of these sockets: ``OWN_QUESTION`` of bpf/maps.h."""


def opened(host: str, kind: socket.SocketKind) -> socket.socket:
    """Return a socket for questions to a host, not connected yet. It does not block."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind | socket.SOCK_NONBLOCK)
    with contextlib.suppress(PermissionError):  # without CAP_NET_ADMIN; where none is given, nothing is steered
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, OWN_QUESTION)
    return sock
