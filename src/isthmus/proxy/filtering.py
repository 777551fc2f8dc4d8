"""Drops packets from uplinks at Envoy's listeners, which serve only the pods of the node.

The filter is a socket option that holds a pointer, so Envoy cannot be configured to set it: it is set from outside, on
descriptors copied by pidfd_getfd(2), with the rights that steering.py needs, and CAP_NET_ADMIN for TCP sockets (Linux
6.18 requires it). Accepted race: a new listener is reachable until the next look.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from isthmus import logs, uplinks
from isthmus.netlink import sock_diag
from isthmus.proxy.steering import listening

log = logs.get("envoy")


class UplinkFilter:
    """Sets the filter once on each listener of some processes, and again when the uplinks change."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: interface names; ``auto`` for those with a default route. Empty drops nothing."""
        self._names = names
        self._interfaces: frozenset[int] = frozenset()
        self._due = 0.0
        self._reported = self._without_udp = False
        self._seen: set[int] = set()
        """Inodes of listeners that have the filter or belong to other processes."""

    def __repr__(self) -> str:
        return f"<UplinkFilter of {sorted(self._interfaces)}: {len(self._seen)} listeners seen>"

    def look(self, pids: Iterable[int]) -> None:
        """Filter the listeners that these processes have opened since the last look."""
        if not self._names:
            return
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + uplinks.REFRESH
            if (interfaces := uplinks.indexes(self._names)) != self._interfaces:
                self._interfaces, self._seen = interfaces, set()
        inodes = sock_diag.tcp_listeners() | self._udp_servers()
        if new := inodes - self._seen:
            with ExitStack() as stack:
                for listener in (interfaces for pid in pids for interfaces in listening(pid, stack, among=new)):
                    self._drop(listener)
        self._seen = inodes

    def _udp_servers(self) -> set[int]:
        """Return the inodes of UDP servers; empty if the kernel lacks udp_diag, then only TCP is filtered."""
        try:
            return sock_diag.udp_servers()
        except OSError as error:
            if not self._without_udp:
                log.warning("datagrams from uplinks reach Envoy: the kernel lists no UDP sockets", why=error.strerror)
            self._without_udp = True
            return set()

    def _drop(self, listener: socket.socket) -> None:
        """Set the filter on a listener. Without the right to, Envoy serves unfiltered."""
        try:
            uplinks.drop_from(listener, self._interfaces)
        except OSError as error:
            if not self._reported:
                log.warning("packets from uplinks reach Envoy: its sockets take no filter", why=error.strerror)
            self._reported = True
