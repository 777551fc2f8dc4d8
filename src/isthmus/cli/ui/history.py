"""Calls and changes of the last hour, from the moment at which the page's server began. Nothing earlier is known."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from isthmus.cli.ui.rates import CALLS, increase
from isthmus.cli.ui.sources import Counts, Process
from isthmus.cli.ui.view import View
from isthmus.model.flows import FAILED

STEP: Final = 10
"""Seconds of one point."""
POINTS: Final = 360
"""Points that are kept: an hour."""
MARKS: Final = 500
"""Changes that are kept."""
SERIES: Final = 10_000
"""Pairs of a service and a cluster that an hour may have, 6 kB each; calls of further ones count in the sums alone."""
LONGEST: Final = 3.0 * STEP
"""Seconds between two readings beyond which the calls between them belong to no step: nobody knows when they were."""
LATE: Final = 6
"""Steps by which a process's reading may be older than another's. A clock that was set back further begins anew."""


class Mark(Struct, frozen=True, kw_only=True):
    """A change of a cluster's or service's state."""

    time: float
    """Unix time, s."""
    level: str
    text: str
    cluster: str = ""
    service: str = ""


class Timeline(Struct, frozen=True, kw_only=True):
    """Calls of a selection as the page draws them."""

    began: float
    """Unix time from which calls were counted, s."""
    now: float
    """Unix time of its end, s."""
    step: int
    times: list[int]
    calls: list[float]
    """Calls a second in each step."""
    failed: list[float]
    marks: list[Mark]


class _Series:
    """Calls and failed ones in each step of the last hour: a ring, whose room is the same for ever."""

    __slots__ = ("calls", "failed", "newest")

    def __init__(self, step: int) -> None:
        self.newest = step
        """Number of the newest step that has calls."""
        self.calls = array("d", bytes(8 * POINTS))
        self.failed = array("d", bytes(8 * POINTS))

    def add(self, step: int, calls: int, failed: int) -> None:
        for later in range(max(self.newest + 1, step - POINTS + 1), step + 1):
            self.calls[later % POINTS] = self.failed[later % POINTS] = 0.0
        self.newest = max(self.newest, step)
        self.calls[step % POINTS] += calls
        self.failed[step % POINTS] += failed

    def at(self, step: int) -> tuple[float, float]:
        """Calls and failed ones of a step; none of one that is later or no longer kept."""
        kept = self.newest - POINTS < step <= self.newest
        return (self.calls[step % POINTS], self.failed[step % POINTS]) if kept else (0.0, 0.0)


class History:
    """The last hour. One thread may add to it while another one reads it."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._lock = threading.Lock()
        self._step = 0
        """Number of the newest step."""
        self._all = _Series(0)
        self._series: dict[tuple[str, str], _Series] = {}
        """Calls by service and cluster of the backend."""
        self._marks: deque[Mark] = deque(maxlen=MARKS)
        self._last: dict[tuple[str, str], Counts] = {}

    def __repr__(self) -> str:
        return f"<History: {len(self._series)} series, {len(self._marks)} marks>"

    def count(self, processes: Iterable[Process]) -> None:
        """Add the calls since the last reading of each process."""
        with self._lock:
            for process in processes:
                if process.counts:
                    self._count((process.cluster, process.place), process.counts[-1])

    def _count(self, key: tuple[str, str], newest: Counts) -> None:
        old, self._last[key] = self._last.get(key), newest
        if old is None or not 0 < newest.time - old.time <= LONGEST:
            return
        step = round(newest.time // STEP)
        if step < self._step - LATE:  # the clock was set back
            self._series.clear()
            self._all = _Series(step)
        if step > self._step or step < self._step - LATE:
            self._step = step
            self._series = {name: each for name, each in self._series.items() if each.newest > step - POINTS}
        for service, cluster, verdict, count in increase(old, newest):
            if "/" in service:
                calls, failed = count if verdict in CALLS else 0, count if verdict in FAILED else 0
                self._all.add(step, calls, failed)
                if (series := self._of(service, cluster, step)) is not None:
                    series.add(step, calls, failed)

    def _of(self, service: str, cluster: str, step: int) -> _Series | None:
        series = self._series.get((service, cluster))
        if series is None and len(self._series) < SERIES:
            series = self._series[service, cluster] = _Series(step)
        return series

    def mark(self, old: View, new: View, now: float) -> None:
        """Remember which clusters and services changed their level."""
        with self._lock:
            self._marks.extend(changes(old, new, now))

    def timeline(self, service: str, cluster: str, now: float) -> Timeline:
        """Return the calls and changes of a service, a cluster or both; of all if both are empty."""
        first = max(self._began, now - POINTS * STEP)
        steps = range(round(first // STEP) + 1, round(now // STEP))
        with self._lock:
            chosen = self._chosen(service, cluster)
            found = [[each.at(step) for each in chosen] for step in steps]
            marks = _selected(self._marks, service, cluster, now - POINTS * STEP)
        return Timeline(
            began=self._began,
            now=now,
            step=STEP,
            times=[step * STEP for step in steps],
            calls=[sum(calls for calls, _ in each) / STEP for each in found],
            failed=[sum(failed for _, failed in each) / STEP for each in found],
            marks=marks,
        )

    def _chosen(self, service: str, cluster: str) -> list[_Series]:
        if not service and not cluster:
            return [self._all]
        return [
            each for (name, where), each in self._series.items() if service in ("", name) and cluster in ("", where)
        ]


def _selected(marks: Iterable[Mark], service: str, cluster: str, since: float) -> list[Mark]:
    return [
        mark
        for mark in marks
        if mark.time >= since and service in ("", mark.service) and (not cluster or mark.cluster in ("", cluster))
    ]


def changes(old: View, new: View, now: float) -> Iterator[Mark]:
    """Yield a mark for each cluster and service whose level changed; at first, for those that are not well."""
    for name, cluster in new.clusters.items():
        before = old.clusters.get(name)
        if cluster.level != (before.level if before else "ok"):
            yield Mark(
                time=now, level=cluster.level, text=_text(f"cluster {name}", cluster.level, cluster.why), cluster=name
            )
    for name, service in new.services.items():
        known = old.services.get(name)
        if service.level != (known.level if known else "ok"):
            yield Mark(time=now, level=service.level, text=_text(name, service.level, service.why), service=name)


def _text(name: str, level: str, why: Sequence[str]) -> str:
    if level == "ok":
        return f"{name} is well again"
    return f"{name} is {level}: {why[0]}" if why else f"{name} is {level}"
