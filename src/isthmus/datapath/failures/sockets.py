"""Sockets whose backend has gone are destroyed, so that applications call again: UDP always, TCP where that is wanted.

A UDP socket that is connected to a backend that has gone would send there for ever. A TCP socket finds out by itself,
but only when its time-outs are over. Gone: no row of ``backends`` has the address, port, protocol and cluster any more;
while a pod is terminating, its row is there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.namespaces import inside, processes_below
from isthmus.datapath.failures import codecs
from isthmus.model import tables
from isthmus.model.balancing import BackendKey, Target
from isthmus.netlink import sock_diag
from isthmus.netlink.sock_diag import Socket
from isthmus.statedb import Database, Snapshot

SETTLE: Final = 0.5
"""Seconds after the grace period: connects do not go there any more."""
PROTOCOLS: Final = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP}
Peer = tuple[bytes, bytes]
"""Address and port."""
Tuple = tuple[bytes, bytes, bytes, bytes]
"""Local address and port, remote address and port."""

log = logs.get("datapath")


class GoneSockets:
    """One per datapath; ``run()`` is a task of the process."""

    def __init__(self, maps: Maps, cgroup: Path, db: Database, *, tcp: bool, grace: float) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._db = db
        self._wanted = ("UDP", "TCP") if tcp else ("UDP",)
        self._grace = grace
        self.destroyed = 0

    def __repr__(self) -> str:
        return f"<GoneSockets: {self.destroyed} destroyed>"

    async def run(self) -> None:
        """Follow the table of backends, for ever."""
        changes = self._db.changes(tables.BACKENDS)
        try:
            while True:
                await changes.wait()
                _, found = changes.next()
                left = {
                    target for change in found if change.old and not change.new for target in [target_of(change.key)]
                }
                left = {target for target in left if target.protocol in self._wanted}
                if not left:
                    continue
                await asyncio.sleep(self._grace + SETTLE)
                if gone := left - present(self._db.snapshot()):
                    await asyncio.to_thread(self.destroy, gone)
        finally:
            changes.close()

    def destroy(self, gone: Set[Target]) -> int:
        """Destroy the sockets of all pods that talk to these; how many there were."""
        peers = {protocol: {peer(each) for each in gone if each.protocol == protocol} for protocol in self._wanted}
        moved = {four_tuple(key): value for key, value in self._maps.items("flows")} if peers.get("TCP") else {}
        count = 0
        for process in {process.namespace: process for process in processes_below(self._cgroup)}.values():
            for protocol, of in peers.items():
                if of:
                    try:
                        count += inside(process.pid, partial(_destroy, PROTOCOLS[protocol], of, moved))
                    except OSError as why:
                        log.warning("cannot destroy sockets of a pod", pid=process.pid, error=str(why))
        self.destroyed += count
        if count:
            log.info("destroyed sockets whose backend has gone", sockets=count, backends=len(gone))
        return count


def to_destroy(sockets: Iterable[Socket], peers: Set[Peer], moved: dict[Tuple, bytes]) -> list[Socket]:
    """Those that talk to one of these peers; a moved connection talks to the one that it was moved to."""
    return [each for each in sockets if talks_to(each, moved) in peers]


def present(snapshot: Snapshot) -> set[Target]:
    """Every target that some row has."""
    return {target_of(row.key) for row in snapshot.all(tables.BACKENDS)}


def talks_to(of: Socket, moved: dict[Tuple, bytes]) -> Peer:
    entry = moved.get((of.local, of.local_port, of.remote, of.remote_port))
    if entry is None:
        return of.remote, of.remote_port
    raw = codecs.FLOW.named(entry)
    return raw["peer"], raw["peer_port"]


def _destroy(protocol: int, peers: Set[Peer], moved: dict[Tuple, bytes]) -> int:
    found: Sequence[Socket] = to_destroy(sock_diag.connected(protocol), peers, moved)
    return sum(sock_diag.destroy(each) for each in found)


def four_tuple(key: bytes) -> Tuple:
    raw = codecs.FLOW_KEY.named(key)
    if raw["reverse"]:
        return b"", b"", b"", b""
    return raw["pod"], raw["pod_port"], raw["peer"], raw["peer_port"]


def peer(target: Target) -> Peer:
    return shapes.address(target.address), shapes.port(target.port)


def target_of(key: BackendKey) -> Target:
    return Target(key.address, key.port, key.protocol, key.cluster)
