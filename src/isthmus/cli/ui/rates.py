"""Counted calls → calls a second, by caller's cluster, service and cluster of the backend. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from isthmus.cli.ui.sources import Counts, Process
from isthmus.model.flows import FAILED

MOVED: Final = frozenset({"rescued", "ejected"})
"""Verdicts of calls that reached another backend than the one of the plan, or passed one over."""
CALLS: Final = frozenset({"called", "refused", "lost"})
"""Verdicts that count a call once: what was rescued, failed or passed over an ejected backend is in ``called``, too."""


class Edge(Struct, frozen=True, kw_only=True):
    """Calls of one service by the pods of one cluster that one cluster's backends got."""

    source: str
    service: str
    target: str
    """Cluster of the backends; empty for calls that got none."""
    rate: float
    """Calls a second."""
    failed: float
    """Calls a second that failed, were refused or were lost."""
    moved: float
    """Calls a second that another backend answered."""


def increase(old: Counts, new: Counts) -> Iterator[tuple[str, str, str, int]]:
    """Yield service, cluster of the backend, verdict and number of the calls between two readings.

    A counter that became smaller belongs to another map: its calls are not counted.
    """
    for (service, cluster, verdict), count in new.calls.items():
        if (more := count - old.calls.get((service, cluster, verdict), 0)) > 0:
            yield service.rpartition(":")[0] or service, cluster, verdict, more


def edges(processes: Iterable[Process]) -> dict[str, Edge]:
    """Rates over the readings of processes that answer; a process that does not has none, since they are unknown."""
    sums: defaultdict[tuple[str, str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(lambda: 0.0))
    for process in processes:
        if process.error or len(process.counts) < 2:
            continue
        first, last = process.counts[0], process.counts[-1]
        seconds = max(0.1, last.time - first.time)
        for service, cluster, verdict, count in increase(first, last):
            if "/" in service:  # questions to the name server have no service; those without room are "other"
                sums[process.cluster, service, cluster][verdict] += count / seconds
    return {
        " ".join(key): Edge(source=key[0], service=key[1], target=key[2], **_rates(verdicts))
        for key, verdicts in sums.items()
    }


def _rates(verdicts: Mapping[str, float]) -> dict[str, float]:
    def total(names: Iterable[str]) -> float:
        return round(sum(verdicts.get(name, 0.0) for name in names), 2)

    return {"rate": total(CALLS), "failed": total(FAILED), "moved": total(MOVED)}
