"""Schedule of probes. Time and random numbers are arguments, so nothing here waits.

Invariant: every backend under ``_entries`` is either in flight, or in the heap with its present ``turn``; other entries
of the heap are of what was removed or changed, and are skipped.

The probes of a node are bounded by ``rate``, those that one backend gets from all nodes of the cluster by
``backend_rate``: where there is more to do, the time between two probes of a backend grows. Each such time is varied by
a tenth either way, and the first probe's moment follows from the node's name, so that neither the probes of one node
nor those of one backend come in step.

Probes in flight are shared between namespaces: one may hold as many as are free. However long its probes take, the rest
is free for others, half if it is alone, a third beside another such namespace, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from types import MappingProxyType
from typing import Final
from zlib import crc32

from isthmus.config import HealthSection
from isthmus.health.verdict import UNKNOWN, Verdict, judge
from isthmus.model.balancing import BackendKey, Probe
from isthmus.model.names import split
from isthmus.model.policies import Check, HealthCheck

FIRST_WITHIN: Final = 1.0
"""Seconds within which a backend is probed for the first time: what has lapsed does not count before that."""
JITTER: Final = 0.1
BURST: Final = 0.1
"""Seconds' worth of probes that may start at one time."""
EMPTY: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(slots=True)
class Entry:
    """A backend, and its verdict so far."""

    check: HealthCheck
    turn: int
    verdict: Verdict = UNKNOWN
    reason: str = ""
    started: float | None = None
    """Start of the probe in flight, ``None`` if there is none."""


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
        """Earliest start of the next probe, by the rate limit."""
        self.nodes = 1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def dead(self) -> int:
        """Number of dead backends."""
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

    def retain(self, keys: Set[BackendKey]) -> None:
        """Probe no backends but these."""
        for key in self._entries.keys() - keys:
            del self._entries[key]

    def repeat(self, key: BackendKey, turn: int) -> None:
        """Probe a backend again at once: its probe was given up, without a result."""
        if (entry := self._entries.get(key)) is not None and entry.turn == turn and entry.started is not None:
            heappush(self._heap, (entry.started, turn, key))
            entry.started = None

    def due(
        self, now: float, *, room: int, held: Mapping[str, int] = EMPTY
    ) -> Iterator[tuple[BackendKey, int, HealthCheck]]:
        """The probes to start now, at most ``room``: backend, its turn and its check.

        ``held``: probes in flight by namespace, as of when each probe is yielded. A namespace with as many as there is
        room for waits.
        """
        step = 1 / self._section.rate
        self._free = max(self._free, now - BURST)
        while room > 0 and self._free <= now and (entry_due := self._next(now)) is not None:
            key, entry = entry_due
            if held.get(namespace(key), 0) >= room:
                heappush(self._heap, (now + max(entry.check.timeout, JITTER * self._spacing(entry)), entry.turn, key))
                continue
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

    def done(self, key: BackendKey, turn: int, reason: str, *, now: float, wall: float) -> Probe | None:
        """Record a result; ``reason`` is empty if the probe passed. Return a row if the verdict changed."""
        entry = self._entries.get(key)
        if entry is None or entry.turn != turn or entry.started is None:
            return None
        before, entry.verdict = entry.verdict, judge(entry.verdict, not reason, entry.check)
        entry.reason = reason or entry.reason
        due = entry.started + self._spacing(entry) * (1 + JITTER * (2 * self._random.random() - 1))
        entry.started = None
        heappush(self._heap, (max(due, now), turn, key))
        healthy = entry.verdict.healthy
        if healthy is None or healthy == before.healthy:
            return None
        return Probe(key, healthy, "" if healthy else reason, wall)

    def _spacing(self, entry: Entry) -> float:
        return spacing(entry.check, self._section, backends=len(self._entries), nodes=self.nodes)

    def wake_at(self) -> float | None:
        """Time at which the next probe is due, ``None`` if the schedule is empty."""
        return max(self._heap[0][0], self._free) if self._heap else None


def namespace(key: BackendKey) -> str:
    """Namespace that a backend's probes count for; empty for gateways of islands."""
    return split(key.service)[0]


def spacing(check: HealthCheck, section: HealthSection, *, backends: int, nodes: int) -> float:
    """Seconds between two probes of a backend: the check's, or more where that would exceed a rate."""
    return max(check.interval, backends / section.rate, nodes / section.backend_rate)


def _fraction(text: str) -> float:
    """Hash a text to a number in [0, 1) that is equal in every process."""
    return crc32(text.encode()) / 2**32
