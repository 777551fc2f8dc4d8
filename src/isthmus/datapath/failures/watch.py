"""Keeps the tables ``failures``, ``caller_failures`` and ``denials`` equal to the kernel's state.

An event of the ring buffer triggers a comparison.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from isthmus import logs
from isthmus.datapath.core.clock import BootTime
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.core.ring import RingBuffer
from isthmus.datapath.core.shapes import address_text
from isthmus.datapath.failures import codecs, rows
from isthmus.datapath.failures.caller_names import CallerNames
from isthmus.datapath.services.installed import State
from isthmus.model import tables
from isthmus.model.balancing import BackendKey, CallerFailure, Denial
from isthmus.model.hosts import joined
from isthmus.statedb import Database, Snapshot, Table, WriteTxn

LOOK: Final = 2.0
"""Seconds between comparisons without an event: one may be lost if the ring buffer is full."""
PAUSE: Final = 0.25
"""Least seconds between comparisons: a pod can cause an event with every third connect."""

CLOSING: Final = 60 * 10**9
"""Nanoseconds without a packet until a moved connection without a socket is dropped: FINs are no longer resent then."""

LATE: Final = 5 * 10**9
"""Nanoseconds after its SYN in which a backend's answer still counts, and ends its half-open connection."""

DENIED: Final = 5 * 60 * 10**9
"""Nanoseconds that a denied connect stays in ``denials``: time to look for it, until a policy has changed."""

OfCaller = TypeVar("OfCaller", CallerFailure, Denial)

log = logs.get("datapath")


class FailureWatch:
    """Maintains the tables of failures, one per datapath.

    A backend's entry is deleted after ``longest`` seconds without a failure, a moved connection without a socket after
    ``closing`` ns (:data:`CLOSING`). Without ``names`` callers remain unnamed.
    """

    def __init__(
        self,
        maps: KernelMaps,
        state: State,
        db: Database,
        *,
        longest: float,
        closing: int = CLOSING,
        names: CallerNames | None = None,
    ) -> None:
        self._maps = maps
        self._state = state
        self._db = db
        self._keep = round(longest * 1e9)
        self._closing = closing
        self._names = names
        self._boot = BootTime()
        self._changed = asyncio.Event()
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """Events by kind, cluster and reason."""
        self.moved = 0
        """Number of moved connections at the last comparison."""

    def __repr__(self) -> str:
        return f"<FailureWatch: {dict(self.counts)}>"

    async def run(self) -> None:
        """Keep the tables up to date, for ever."""
        ring = RingBuffer(self._maps.fd("events"), self._receive)
        loop = asyncio.get_running_loop()
        loop.add_reader(ring.fileno(), ring.consume)
        try:
            while True:
                self._changed.clear()
                self.step()
                await asyncio.sleep(PAUSE)
                try:
                    async with asyncio.timeout(LOOK):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        finally:
            loop.remove_reader(ring.fileno())
            ring.close()

    def look_soon(self) -> None:
        """Compare soon, since the agent has written a verdict."""
        self._changed.set()

    def count(self, kind: str, *, cluster: str, reason: str) -> None:
        """Count an ejection, or its end, for metrics."""
        self.counts[kind, cluster, reason] += 1

    def step(self) -> int:
        """Update the tables from the kernel's state, and delete entries without effect. Returns the number of ejected
        backends."""
        # Read the gate before the maps: an entry that is created after this keeps the gate open.
        [(_, counted)] = self._maps.items("gates")
        failing, callers, probed = (list(self._maps.items(name)) for name in ("failing", "caller_failing", "probed"))
        state = rows.KernelState(failing, callers, probed, time.monotonic_ns())
        snapshot = self._db.snapshot()
        backends, boot = snapshot.all(tables.BACKENDS) if state.failing else (), self._boot.current()
        failures = rows.failures(state, self._state.backends, backends, boot=boot)
        backends = snapshot.all(tables.BACKENDS) if state.callers else ()
        of_callers = rows.caller_failures(state, self._state.backends, backends, boot=boot)
        denied = list(self._maps.items("denials"))
        backends = snapshot.all(tables.BACKENDS) if denied else ()
        denials = rows.denials(denied, self._state.backends, backends, boot=boot)
        if self._names is not None:
            self._names.keep({caller for caller, _ in (*of_callers, *denials)})
        desired_rows: tuple[tuple[Table[Any, Any], Mapping[Any, Any]], ...] = (
            (tables.FAILURES, failures),
            (tables.CALLER_FAILURES, self._named(of_callers)),
            (tables.DENIALS, self._named(denials)),
        )
        changes = [
            (table, desired, current)
            for table, desired in desired_rows
            if desired != (current := _current_rows(snapshot, table))
        ]
        if changes:
            with self._db.write() as txn:
                for change in changes:
                    _exchange(txn, *change)
        past = rows.past_denials(denied, self._state.backends, now=state.now, keep=DENIED)
        if past:
            self._maps.drop("denials", past)
        self._tidy(state, codecs.GATE.named(counted))
        return len(failures)

    def _named(self, found: Mapping[tuple[int, BackendKey], OfCaller]) -> dict[tuple[int, BackendKey], OfCaller]:
        """The rows with the names of their callers."""
        if self._names is None:
            return dict(found)
        return {key: replace(row, pod=self._names.name(row.caller)) for key, row in found.items()}

    def _tidy(self, state: rows.KernelState, counted: Mapping[str, int]) -> None:
        """Delete entries without effect. If none remains, close the gate: calls and packets then skip the maps."""
        idle = rows.idle(state, self._state.backends, keep=self._keep)
        dropped = (
            ("failing", idle.failing),
            ("trials", idle.failing),
            ("caller_failing", idle.callers),
            ("probed", idle.probed),
        )
        for name, keys in dropped:
            if keys:
                self._maps.drop(name, keys)
        flows = list(self._maps.items("flows"))
        forgotten = rows.forgotten(flows, now=time.monotonic_ns(), keep=self._closing)
        if forgotten:
            self._maps.drop("flows", forgotten)
        deleted = set(forgotten)
        self.moved = rows.moved(entry for entry in flows if entry[0] not in deleted)
        [(key, value)] = self._maps.items("settled")
        settled = codecs.GATE.named(value)
        failing = rows.settled(counted["failing"], settled["failing"], remaining=len(state.failing) - len(idle.failing))
        waiting = 0
        if counted["moved"] != settled["moved"]:
            waiting = rows.unanswered(self._maps.items("unanswered"), now=time.monotonic_ns(), keep=LATE)
        moved = rows.settled(counted["moved"], settled["moved"], remaining=self.moved + waiting)
        if (failing, moved) != (settled["failing"], settled["moved"]):
            self._maps.put("settled", [(key, codecs.GATE.pack(failing, moved))])

    def _receive(self, raw: bytes) -> None:
        event = codecs.EVENT.named(raw)
        cluster = next((name for name, each in self._state.clusters.items() if each.id == event["cluster"]), "")
        kind, reason = codecs.KINDS[event["kind"]], codecs.REASONS[event["reason"]]
        self.count(kind, cluster=cluster, reason=reason)
        self._changed.set()
        if event["kind"] == codecs.CALLER_EJECTED:
            return  # a pod can cause these at any rate
        backend = joined(address_text(event["address"]), int.from_bytes(event["port"], "big"))
        log.info(f"backend {kind}", backend=backend, cluster=cluster, reason=reason, failures=event["failures"])


def _current_rows(snapshot: Snapshot, table: Table[Any, Any]) -> dict[Any, Any]:
    return {table.key(row): row for row in snapshot.all(table)}


def _exchange(txn: WriteTxn, table: Table[Any, Any], desired: Mapping[Any, Any], current: Mapping[Any, Any]) -> None:
    for key in current.keys() - desired.keys():
        txn.delete(table, key)
    for key, row in desired.items():
        if current.get(key) != row:
            txn.put(table, row)
