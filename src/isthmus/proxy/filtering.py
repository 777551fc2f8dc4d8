"""Packets that arrive on an uplink do not reach Envoy, which listens for the pods of its node alone.

The filter is a socket option that holds a pointer, so Envoy cannot be configured to set it: it is set from outside, on
descriptors copied by pidfd_getfd(2), with the rights that steering.py needs, and CAP_NET_ADMIN for TCP sockets (Linux
6.18 asks for it). Accepts a race: a new listener is reachable until the next look.
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
    """Puts the filter on the listeners of processes, once on each, and again when the uplinks change."""

    def __init__(self, names: Sequence[str]) -> None:
        """``names``: of interfaces; ``auto`` stands for those with a default route. None: nothing is dropped."""
        self._names = names
        self._interfaces: frozenset[int] = frozenset()
        self._due = 0.0
        self._reported = self._without_udp = False
        self._seen: set[int] = set()
        """Inodes of listeners that have the filter, or are of other processes."""

    def __repr__(self) -> str:
        return f"<UplinkFilter of {sorted(self._interfaces)}: {len(self._seen)} listeners seen>"

    def look(self, pids: Iterable[int]) -> None:
        """Filter the listeners that these processes have opened since the last look."""
        if not self._names:
            return
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + uplinks.REFRESH
            if (found := uplinks.indexes(self._names)) != self._interfaces:
                self._interfaces, self._seen = found, set()
        present = sock_diag.tcp_listeners() | self._udp_servers()
        if new := present - self._seen:
            with ExitStack() as stack:
                for each in (found for pid in pids for found in listening(pid, stack, among=new)):
                    self._drop(each)
        self._seen = present

    def _udp_servers(self) -> set[int]:
        """Without udp_diag in the kernel those of TCP are filtered all the same."""
        try:
            return sock_diag.udp_servers()
        except OSError as why:
            if not self._without_udp:
                log.warning("datagrams from uplinks reach Envoy: the kernel lists no UDP sockets", why=why.strerror)
            self._without_udp = True
            return set()

    def _drop(self, listener: socket.socket) -> None:
        """Without the right, Envoy serves all the same."""
        try:
            uplinks.drop_from(listener, self._interfaces)
        except OSError as why:
            if not self._reported:
                log.warning("packets from uplinks reach Envoy: its sockets take no filter", why=why.strerror)
            self._reported = True
