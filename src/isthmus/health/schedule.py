"""Which backend is probed when. The time and the random numbers are given, so nothing here waits.

Invariant: every backend under ``_entries`` is either in flight, or in the heap with its present ``turn``; other entries
of the heap are of what was removed or changed, and are skipped.

The probes of a node are bounded by ``rate``, those that one backend gets from all nodes of the cluster by
``backend_rate``: where there is more to do, the time between two probes of a backend grows. Each such time is varied by
a tenth either way, and the first probe's moment follows from the node's name, so that neither the probes of one node
nor those of one backend come in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final
from zlib import crc32

from isthmus.config import HealthSection
from isthmus.health.verdict import UNKNOWN, Verdict, judge
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.policies import Check, HealthCheck

FIRST_WITHIN: Final = 1.0
"""Seconds within which a backend is probed for the first time: what has lapsed does not count before that."""
JITTER: Final = 0.1
BURST: Final = 0.1
"""Seconds' worth of probes that may start at one time."""


@dataclass(slots=True)
class Entry:
    """A backend, and its verdict so far."""

    check: HealthCheck
    turn: int
    verdict: Verdict = UNKNOWN
    reason: str = ""
    started: float | None = None
    """When the probe in flight began; None: there is none."""


class Schedule:
    """The backends of one node. ``nodes``: how many nodes of the cluster probe them."""

    def __init__(self, section: HealthSection, *, node: str, random: Random) -> None:
        self._section = section
        self._node = node
        self._random = random
        self._entries: dict[BackendKey, Entry] = {}
        self._heap: list[tuple[float, int, BackendKey]] = []
        self._turn = 0
        self._free = 0.0
        """When the next probe may start, for the rate."""
        self.nodes = 1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def dead(self) -> int:
        """How many backends are found dead."""
        return sum(entry.verdict.healthy is False for entry in self._entries.values())

    def put(self, row: Check, now: float) -> None:
        """Probe a backend, or probe it in another way from now on; its verdict stays."""
        before = self._entries.get(row.key)
        self._turn += 1
        entry = Entry(row.check, self._turn)
        if before is not None:
            entry.verdict, entry.reason = before.verdict, before.reason
        self._entries[row.key] = entry
        within = min(FIRST_WITHIN, row.check.interval)
        heappush(self._heap, (now + within * _fraction(f"{self._node} {row.key}"), entry.turn, row.key))

    def remove(self, key: BackendKey) -> None:
        """Probe a backend no longer; the result of a probe in flight has no effect."""
        self._entries.pop(key, None)

    def due(self, now: float, *, room: int) -> Iterator[tuple[BackendKey, int, HealthCheck]]:
        """The probes to start now, at most ``room``: backend, its turn and its check."""
        step = 1 / self._section.rate
        self._free = max(self._free, now - BURST)
        while room > 0 and self._free <= now and (found := self._next(now)) is not None:
            key, entry = found
            self._free += step
            room -= 1
            entry.started = now
            yield key, entry.turn, entry.check

    def _next(self, now: float) -> tuple[BackendKey, Entry] | None:
        while self._heap and self._heap[0][0] <= now:
            _, turn, key = heappop(self._heap)
            entry = self._entries.get(key)
            if entry is not None and entry.turn == turn:
                return key, entry
        return None

    def done(self, key: BackendKey, turn: int, why: str, *, now: float, wall: float) -> Probe | None:
        """Take a result: ``why`` it failed, empty where it passed. A row where the verdict is another one now."""
        entry = self._entries.get(key)
        if entry is None or entry.turn != turn or entry.started is None:
            return None
        before, entry.verdict = entry.verdict, judge(entry.verdict, not why, entry.check)
        entry.reason = why or entry.reason
        spaced = spacing(entry.check, self._section, backends=len(self._entries), nodes=self.nodes)
        at = entry.started + spaced * (1 + JITTER * (2 * self._random.random() - 1))
        entry.started = None
        heappush(self._heap, (max(at, now), turn, key))
        healthy = entry.verdict.healthy
        if healthy is None or healthy == before.healthy:
            return None
        return Probe(key, healthy, "" if healthy else why, wall)

    def wake_at(self) -> float | None:
        """When there is something to start; None: never, as it is now."""
        return max(self._heap[0][0], self._free) if self._heap else None


def spacing(check: HealthCheck, section: HealthSection, *, backends: int, nodes: int) -> float:
    """Seconds between two probes of a backend: the check's, or more where that would exceed a rate."""
    return max(check.interval, backends / section.rate, nodes / section.backend_rate)


def _fraction(text: str) -> float:
    """The same number in [0, 1) for the same text, in every process."""
    return crc32(text.encode()) / 2**32
