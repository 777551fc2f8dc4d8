"""Connections to what is drained are closed when the drain's deadline is over, so that applications call again.

Closed is a socket that called a service and talks to a backend which a closing drain means for that service, unless
some plan of the service still has the backend: where a drain leaves nothing else, its calls go on. Which service a TCP
socket called is in ``call_places`` or in its storage, so a connection to the backend's own address, or by way of
another service, stays. The kernel shows the storage of TCP sockets only (inet_sk_diag_fill): a UDP socket counts by
the backend it is connected to.
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
from isthmus.datapath.core.namespaces import inside, processes_below
from isthmus.datapath.failures.places import calls as calls_in_places
from isthmus.datapath.failures.sockets import PROTOCOLS, SETTLE, Peer, Tuple, four_tuple, peer, talks_to, target_of
from isthmus.loadbalancer.drains import Drained
from isthmus.model.balancing import Target
from isthmus.model.tables import BACKENDS, DRAINING, FRONTENDS, PLANS
from isthmus.netlink import sock_diag
from isthmus.statedb import Database, Snapshot

LOOK: Final = 1.0
"""Seconds between looks while connections are to be closed: plans may leave a backend later."""
STORAGE: Final = "tcp_calls"
"""The map of socket storage with what a TCP socket called that found no place."""
ENTRY: Final = 48
"""Bytes of the struct orig_dst that a value begins with: address called, backend's address, port called, backend's
port, three ids."""

Call = tuple[Peer, Target]
"""The address and port that are called, and the backend that answers."""

log = logs.get("datapath")


def to_close(snapshot: Snapshot) -> set[Call]:
    """The calls whose connections are to end now."""
    rows = [row for row in snapshot.all(DRAINING) if row.closing]
    if not rows:
        return set()
    drained = Drained(rows)
    found: set[Call] = set()
    for backend in snapshot.all(BACKENDS):
        target, service = target_of(backend.key), backend.key.service
        if drained.closing(backend) and not _still_called(snapshot, target, service):
            for frontend in snapshot.by(FRONTENDS, "service", service):
                if frontend.key.protocol == target.protocol:
                    found.add(((shapes.address(frontend.key.address), shapes.port(frontend.key.port)), target))
    return found


def _still_called(snapshot: Snapshot, target: Target, service: str) -> bool:
    plans = snapshot.by(PLANS, "service", service)
    return any(target in group.targets for plan in plans for group in plan.groups)


class DrainedSockets:
    """One per datapath; ``run()`` is a task of the process."""

    def __init__(self, maps: KernelMaps, cgroup: Path, db: Database, *, grace: float) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._db = db
        self._grace = grace
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
                seen, wanted = revisions, to_close(snapshot)
                del snapshot
                if wanted - done:
                    await asyncio.sleep(self._grace + SETTLE)
                    wanted &= to_close(self._db.snapshot())
                    await asyncio.to_thread(self.destroy, wanted)
                done = wanted
            await asyncio.sleep(LOOK)

    def destroy(self, calls: Set[Call]) -> int:
        """Destroy the sockets of all pods that made these calls; how many there were."""
        tcp = any(to.protocol == "TCP" for _, to in calls)
        moved = {four_tuple(key): value for key, value in self._maps.items("flows")} if tcp else {}
        places = {cookie: call for cookie, (_, call) in calls_in_places(self._maps).items()} if tcp else {}
        count = 0
        for process in {process.namespace: process for process in processes_below(self._cgroup)}.values():
            for protocol in PROTOCOLS:
                of = {(called, peer(to)) for called, to in calls if to.protocol == protocol}
                if of:
                    act = (
                        partial(_close_tcp, of, moved, places, self._maps.fd(STORAGE))
                        if protocol == "TCP"
                        else partial(_close_udp, of)
                    )
                    try:
                        count += inside(process.pid, act)
                    except OSError as why:
                        log.warning("cannot close connections of a pod", pid=process.pid, error=str(why))
        self.destroyed += count
        if count:
            log.info("closed connections to what is drained", sockets=count)
        return count


def _close_tcp(calls: Set[tuple[Peer, Peer]], moved: dict[Tuple, bytes], places: dict[int, bytes], storage: int) -> int:
    return sum(
        sock_diag.destroy(each)
        for each in sock_diag.connected(PROTOCOLS["TCP"], storage=storage)
        if len(stored := places.get(each.cookie, each.storage)) >= ENTRY
        and (_called(stored), talks_to(each, moved)) in calls
    )


def _close_udp(calls: Set[tuple[Peer, Peer]]) -> int:
    backends = {to for _, to in calls}
    connected = sock_diag.connected(PROTOCOLS["UDP"])
    return sum(sock_diag.destroy(each) for each in connected if (each.remote, each.remote_port) in backends)


def _called(stored: bytes) -> Peer:
    return stored[:16], stored[32:34]
