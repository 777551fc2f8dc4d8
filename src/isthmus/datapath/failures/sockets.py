"""Moves UDP sockets whose service no longer has their backend to another one.

Those that cannot be moved are destroyed, so that applications connect again, and so are TCP sockets if configured.

A UDP socket that is connected to a deleted backend would send there for ever. A TCP socket notices by itself, but only
after its time-outs. What counts is the service that a socket called (``calls.py``): the backend may still answer for
another one, and a socket that called the backend by its own address is left alone. A service has a backend
while a row of ``backends`` names it; a terminating pod still has its row.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Set
from functools import cache, partial
from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.namespaces import inside, one_of_each_namespace
from isthmus.datapath.failures import datagrams
from isthmus.datapath.failures.calls import (
    PROTOCOLS,
    ConnectedCall,
    ConnectedCalls,
    Peer,
    peer,
    still_answers,
    target_of,
)
from isthmus.datapath.failures.datagrams import DatagramMover
from isthmus.model import tables
from isthmus.model.balancing import Target
from isthmus.model.services import Protocol
from isthmus.netlink import sock_diag
from isthmus.statedb import Database

SETTLE: Final = 0.5
"""Seconds after the grace period; no connect uses the backend any more."""
AGAIN: Final = 1.0
"""Seconds between two looks, while sockets wait for a backend of their service, whether any row has changed."""
PRUNE: Final = 30.0
"""Seconds between two looks for moved sockets that were closed."""

log = logs.get("datapath")


class GoneSockets:
    """Moves or destroys sockets of deleted backends. One per datapath; run its ``run()`` as a task.

    ``moves``: UDP sockets of pods with our programs on their link are moved to another backend (``datagrams.py``).
    """

    def __init__(self, maps: KernelMaps, cgroup: Path, db: Database, *, tcp: bool, grace: float, moves: bool) -> None:
        self._maps = maps
        self._cgroup = cgroup
        self._db = db
        self._protocols: tuple[Protocol, ...] = ("UDP", "TCP") if tcp else ("UDP",)
        self._grace = grace
        self._moves = moves
        self._waiting: set[Target] = set()
        """Former backends of sockets whose service has had none since."""
        self._skipped = False
        """True if some pod could not be looked at the last time."""
        self.destroyed = 0
        self.moved = 0

    def __repr__(self) -> str:
        return f"<GoneSockets: {self.destroyed} destroyed, {self.moved} moved>"

    async def run(self) -> None:
        """Follow the table of backends, for ever."""
        changes, seen, pruned = self._db.changes(tables.BACKENDS), list[int](), time.monotonic()
        try:
            changes.next()  # skip earlier changes: only deletions from here on count
            self._waiting = await asyncio.to_thread(datagrams.waiting, self._maps)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN if self._waiting else PRUNE):
                        await changes.wait()
                _, changed = changes.next()
                targets = {target_of(change.key) for change in changed if change.old and not change.new}
                targets = {target for target in targets if target.protocol in self._protocols}
                if targets:
                    await asyncio.sleep(self._grace + SETTLE)
                revisions = self._revisions()
                if targets or (self._waiting and (self._skipped or revisions != seen)):
                    seen = revisions
                    await asyncio.to_thread(self.destroy, targets | self._waiting)
                if time.monotonic() >= pruned + PRUNE:
                    await asyncio.to_thread(datagrams.prune, self._maps)
                    pruned = time.monotonic()
        finally:
            changes.close()

    def _revisions(self) -> list[int]:
        snapshot = self._db.snapshot()
        return [snapshot.revision(table) for table in (tables.BACKENDS, tables.FRONTENDS, tables.PLANS)]

    def destroy(self, targets: Set[Target]) -> int:
        """Move the pods' sockets that called a service which has none of these targets any more, and destroy those that
        cannot be moved. Returns the number of destroyed sockets."""
        snapshot, count, self._skipped = self._db.snapshot(), 0, False
        for protocol in self._protocols:
            peers = {peer(target): target for target in targets if target.protocol == protocol}
            if not peers:
                continue
            calls = ConnectedCalls(self._maps, protocol)
            is_gone = partial(_is_gone, cache(partial(still_answers, snapshot, protocol=protocol)), peers.keys())
            mover = DatagramMover(self._maps, snapshot) if self._moves and protocol == "UDP" else None
            count += self._everywhere(partial(self._end_calls, calls, is_gone), mover)
            if mover is not None:
                self.moved += mover.moved
                if mover.moved:
                    log.info("moved UDP sockets whose backend has gone", sockets=mover.moved, backends=len(peers))
        self._waiting = datagrams.waiting(self._maps)
        return self._counted(count, targets)

    def disconnect(self, targets: Set[Target]) -> int:
        """Destroy the pods' UDP sockets that are connected to these targets, whatever they called. Returns their
        number."""
        peers = {peer(each) for each in targets}
        return self._counted(self._everywhere(lambda _: _destroy_connected(peers)), targets)

    def _end_calls(
        self, calls: ConnectedCalls, is_gone: Callable[[ConnectedCall], bool], mover: DatagramMover | None
    ) -> int:
        """Move or destroy the sockets of a network namespace whose backend has gone."""
        count = 0
        for call in calls.read():
            if not is_gone(call):
                if call.dropped:
                    datagrams.release(self._maps, call)
            elif mover is None or not mover.move(call):
                count += sock_diag.destroy(call.socket)
        return count

    def _everywhere(self, act: Callable[[DatagramMover | None], int], mover: DatagramMover | None = None) -> int:
        """Call a function in each network namespace of the pods, with the mover where datagrams can be rewritten.
        Returns the sum of its results."""
        count = 0
        for process in one_of_each_namespace(self._cgroup):
            try:
                count += inside(process.pid, partial(act, mover if mover and mover.begin(process.pid) else None))
            except OSError as error:
                self._skipped = True
                log.warning("cannot destroy sockets of a pod", pid=process.pid, error=str(error))
        return count

    def _counted(self, count: int, targets: Set[Target]) -> int:
        self.destroyed += count
        if count:
            log.info("destroyed sockets whose backend has gone", sockets=count, backends=len(targets))
        return count


def _is_gone(answers: Callable[[Peer, Peer], bool], peers: Collection[Peer], call: ConnectedCall) -> bool:
    """True if the backend of a call was deleted, and the service that was called does not have it."""
    return call.backend in peers and not answers(call.called, call.backend)


def _destroy_connected(peers: Set[Peer]) -> int:
    connected = sock_diag.connected(PROTOCOLS["UDP"])
    return sum(sock_diag.destroy(each) for each in connected if (each.remote, each.remote_port) in peers)
