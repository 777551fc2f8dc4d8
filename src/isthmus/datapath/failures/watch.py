"""Keeps the table ``failures`` as the kernel's state is. An event of the ring buffer is a reason to look at that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from isthmus import logs
from isthmus.datapath.core.clock import BootTime
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.ring import RingBuffer
from isthmus.datapath.core.shapes import address_text
from isthmus.datapath.failures import codecs, rows
from isthmus.datapath.services.installed import State
from isthmus.model import tables
from isthmus.model.hosts import joined
from isthmus.statedb import Database

LOOK: Final = 2.0
"""Seconds between looks while something fails, for what no event came of (a full ring buffer)."""

CLOSING: Final = 60 * 10**9
"""ns without a packet until a moved connection whose socket is gone is forgotten: no FIN is sent again by then."""

log = logs.get("datapath")


class FailureWatch:
    """One per datapath. ``longest``: seconds after which a backend that went on to answer is forgiven; ``closing``:
    how long a moved connection without a socket is kept (:data:`CLOSING`)."""

    def __init__(self, maps: KernelMaps, state: State, db: Database, *, longest: float, closing: int = CLOSING) -> None:
        self._maps = maps
        self._state = state
        self._db = db
        self._keep = int(longest * 1e9)
        self._closing = closing
        self._boot = BootTime()
        self._changed = asyncio.Event()
        self._names: dict[int, str] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """Events by kind, cluster and reason."""
        self.moved = 0
        """Connections that are moved, as of the last look."""

    def __repr__(self) -> str:
        return f"<FailureWatch: {dict(self.counts)}>"

    async def run(self) -> None:
        """Follow, for ever."""
        ring = RingBuffer(self._maps.fd("events"), self._receive)
        loop = asyncio.get_running_loop()
        loop.add_reader(ring.fileno(), ring.consume)
        try:
            while True:
                self.step()
                self._changed.clear()
                try:
                    async with asyncio.timeout(LOOK):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            loop.remove_reader(ring.fileno())
            ring.close()

    def step(self) -> int:
        """Bring the table to the kernel's state, and delete entries without effect; returns how many are ejected."""
        [(_, counted)] = self._maps.items("gates")  # before the maps are: what is made after this keeps the gate open
        state = list(self._maps.items("failing"))
        snapshot = self._db.snapshot()
        backends = snapshot.all(tables.BACKENDS) if state else ()
        wanted = rows.failures(state, self._state.backends, backends, boot=self._boot.now())
        present = {row.key: row for row in snapshot.all(tables.FAILURES)}
        if wanted != present:
            with self._db.write() as txn:
                for key in present.keys() - wanted.keys():
                    txn.delete(tables.FAILURES, key)
                for key, row in wanted.items():
                    if present.get(key) != row:
                        txn.put(tables.FAILURES, row)
        self._tidy(state, codecs.GATE.named(counted))
        return len(wanted)

    def _tidy(self, state: list[tuple[bytes, bytes]], counted: Mapping[str, int]) -> None:
        """Delete entries without effect. Where no other is left, calls and packets need not look."""
        idle = rows.idle(state, self._state.backends, now=time.monotonic_ns(), keep=self._keep)
        for name in ("failing", "trials") if idle else ():
            self._maps.drop(name, idle)
        flows = list(self._maps.items("flows"))
        forgotten = rows.forgotten(flows, now=time.monotonic_ns(), keep=self._closing)
        if forgotten:
            self._maps.drop("flows", forgotten)
        gone = set(forgotten)
        self.moved = rows.moved(entry for entry in flows if entry[0] not in gone)
        [(key, value)] = self._maps.items("settled")
        settled = codecs.GATE.named(value)
        failing = rows.settled(counted["failing"], settled["failing"], left=len(state) - len(idle))
        moved = rows.settled(counted["moved"], settled["moved"], left=self.moved)
        if (failing, moved) != (settled["failing"], settled["moved"]):
            self._maps.put("settled", [(key, codecs.GATE.pack(failing, moved))])

    def _receive(self, raw: bytes) -> None:
        event = codecs.EVENT.named(raw)
        cluster = next((name for name, each in self._state.clusters.items() if each.id == event["cluster"]), "")
        kind, reason = codecs.KINDS[event["kind"]], codecs.REASONS[event["reason"]]
        self.counts[kind, cluster, reason] += 1
        backend = joined(address_text(event["address"]), int.from_bytes(event["port"], "big"))
        log.info(f"backend {kind}", backend=backend, cluster=cluster, reason=reason, failures=event["failures"])
        self._changed.set()
