"""A netlink socket in a namespace.

Opened here and handed to pyroute2: its own way forks a helper that shares the event loop's signal pipe, and ends it
with a signal, which then arrives here.
"""

from __future__ import annotations

import socket
from typing import Any

from pyroute2 import AsyncIPRoute

from isthmus_lab.network import namespaces


def within(namespace: str) -> Any:
    """An AsyncIPRoute of a namespace, to be used with ``async with``. The socket is open when this returns."""
    with namespaces.inside(namespace):
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    return AsyncIPRoute(fileno=opened.detach())
