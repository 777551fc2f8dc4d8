"""Closes connections to drained backends at the drain's deadline, so that applications connect again; UDP sockets are
moved where that is possible (``datagrams.py``).

A socket is closed if it called a service and is connected to a backend that a closing drain covers for that service,
unless a plan of the service still has the backend: if a drain leaves no other backend, calls continue. Connections to
the backend's own address or through another service stay open (``calls.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.namespaces import inside, one_of_each_namespace
from isthmus.datapath.failures.calls import PROTOCOLS, ConnectedCalls, Peer, peer, target_of
from isthmus.datapath.failures.datagrams import DatagramMover
from isthmus.datapath.failures.sockets import SETTLE
from isthmus.loadbalancer.drains import Drained
from isthmus.model.balancing import Target
from isthmus.model.tables import BACKENDS, DRAINING, FRONTENDS, PLANS
from isthmus.netlink import sock_diag
from isthmus.statedb import Database, Snapshot

LOOK: Final = 1.0
"""Seconds between checks while a drain is closing: a plan may drop a backend later."""
Call = tuple[Peer, Target]
"""The called address and port, and the backend."""

log = logs.get("datapath")


def to_close(snapshot: Snapshot) -> set[Call]:
    """Calls whose connections must be closed now."""
    rows = [row for row in snapshot.all(DRAINING) if row.closing]
    if not rows:
        return set()
    drained = Drained(rows)
    calls: set[Call] = set()
    for backend in snapshot.all(BACKENDS):
        target, service = target_of(backend.key), backend.key.service
        if drained.closing(backend) and not _still_called(snapshot, target, service):
            for frontend in snapshot.by(FRONTENDS, "service", service):
                if frontend.key.protocol == target.protocol:
                    calls.add(((shapes.address(frontend.key.address), shapes.port(frontend.key.port)), target))
    return calls


def _still_called(snapshot: Snapshot, target: Target, service: str) -> bool:
    plans = snapshot.by(PLANS, "service", service)
    return any(target in group.targets for plan in plans for group in plan.groups)


class DrainedSockets:
    """Closes connections to drained backends. One per datapath; run its ``run()`` as a task."""

    def __init__(self, maps: KernelMaps, cgroup: Path, db: Database, *, grace: float, moves: bool) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._db = db
        self._grace = grace
        self._moves = moves
        self.destroyed = 0

    def __repr__(self) -> str:
        return f"<DrainedSockets: {self.destroyed} destroyed>"

    async def run(self) -> None:
        """Follow drains and plans, for ever."""
        done: set[Call] = set()
        seen: list[int] = []
        while True:
            await self._db.until(lambda snapshot: any(row.closing for row in snapshot.all(DRAINING)))
            snapshot = self._db.snapshot()
            revisions = [snapshot.revision(table) for table in (DRAINING, BACKENDS, PLANS)]
            if revisions != seen:
                seen, closing = revisions, to_close(snapshot)
                del snapshot
                if closing - done:
                    await asyncio.sleep(self._grace + SETTLE)
                    closing &= to_close(self._db.snapshot())
                    await asyncio.to_thread(self.destroy, closing)
                done = closing
            await asyncio.sleep(LOOK)

    def destroy(self, calls: Set[Call]) -> int:
        """Destroy the pods' sockets of these calls. Returns their number."""
        count, processes = 0, one_of_each_namespace(self._cgroup)
        for protocol in PROTOCOLS:
            pairs = {(frontend, peer(backend)) for frontend, backend in calls if backend.protocol == protocol}
            if not pairs:
                continue
            drained = ConnectedCalls(self._maps, protocol)
            mover = None
            if self._moves and protocol == "UDP":
                mover = DatagramMover(self._maps, self._db.snapshot(), hold=False)
            for process in processes:
                reached = mover if mover and mover.begin(process.pid) else None
                try:
                    count += inside(process.pid, partial(_close, pairs, drained, reached))
                except OSError as error:
                    log.warning("cannot close connections of a pod", pid=process.pid, error=str(error))
        self.destroyed += count
        if count:
            log.info("closed connections to what is drained", sockets=count)
        return count


def _close(drained: Set[tuple[Peer, Peer]], calls: ConnectedCalls, mover: DatagramMover | None) -> int:
    ended = [call for call in calls.read() if (call.called, call.backend) in drained]
    return sum(sock_diag.destroy(call.socket) for call in ended if mover is None or not mover.move(call))
