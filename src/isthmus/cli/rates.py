"""Calls of services per second and times to established connections, from what agents count and record. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from isthmus import bounds
from isthmus.model.flows import FAILED, Flow

MADE: Final = frozenset({"called", "refused", "lost"})
"""Verdicts that every call has one of; the others are of calls that are counted as called, too (docs/datapath.md)."""
WINDOW: Final = 60.0
"""Seconds of which connections are considered: long enough for a hundred of a service with a call a second."""


class Counts(NamedTuple):
    """One reading of an agent's counted calls, by service with port and verdict."""

    time: float
    """Seconds of a monotonic clock."""
    calls: Mapping[tuple[str, str], int]


class Connections(NamedTuple):
    """Times to established connections, s, each with the number of calls for which it stands."""

    took: tuple[tuple[float, int], ...] = ()


class Load(Struct, frozen=True, kw_only=True):
    """Calls of one service's port per second, and seconds until its connections were established."""

    service: str
    calls: float
    failed: float
    """Calls per second that no backend answered: the application got an error."""
    rescued: float
    """Calls per second that another backend answered than the one that was asked."""
    p50: float | None
    """Median time from connect() to established, s; ``None`` if no connection of the window was recorded."""
    p99: float | None
    recorded: int
    """Connections from which the times are taken."""


def counts(rows: Iterable[Mapping[str, Any]], time: float) -> Counts:
    """Read the counters ``calls`` of an agent. Calls of no service, as to the name server, are left out."""
    calls: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["service"]:
            calls[_port(str(row["service"])), str(row["verdict"])] += bounds.count(row["calls"], most=bounds.MAX_INT64)
    return Counts(time, calls)


def _port(plan: str) -> str:
    """Return a plan's service and port as flows name them: ``demo/echo:80`` for ``demo/echo:80/TCP/IPv4``, or with UDP.

    Both families of a port are one service for its callers.
    """
    service, *rest = plan.rsplit("/", 2)
    if len(rest) != 2 or not service:
        return plan
    return service if rest[0] == "TCP" else f"{service}/{rest[0]}"


def loads(
    readings: Iterable[tuple[Counts, Counts]], connections: Mapping[str, Connections], *, namespace: str = ""
) -> list[Load]:
    """Return the load of each service that was called, busiest first.

    ``readings``: of each agent, an earlier one and a later one. ``namespace`` selects its services; empty for all.
    """
    rates: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for before, now in readings:
        seconds = max(now.time - before.time, 1e-9)
        for (service, verdict), count in now.calls.items():
            # An agent that loads its maps anew counts from zero: what it has counted since is all there is.
            new = count - before.calls.get((service, verdict), 0)
            rates[service][verdict] += (new if new >= 0 else count) / seconds
    names = {name for name in {*rates, *connections} if not namespace or name.startswith(f"{namespace}/")}
    rows = [_load(name, rates[name], connections.get(name, Connections())) for name in names]
    return sorted((row for row in rows if row.calls or row.recorded), key=lambda row: (-row.calls, row.service))


def _load(service: str, rates: Mapping[str, float], connections: Connections) -> Load:
    def sum_of(verdicts: Iterable[str]) -> float:
        return round(sum(rates.get(each, 0.0) for each in verdicts), 3)

    return Load(
        service=service,
        calls=sum_of(MADE),
        failed=sum_of(FAILED),
        rescued=sum_of(["rescued"]),
        p50=percentile(connections, 0.5),
        p99=percentile(connections, 0.99),
        recorded=len(connections.took),
    )


def connections(flows: Iterable[tuple[Flow, int]], *, since: float) -> dict[str, Connections]:
    """Return the recorded connections that were established since a Unix time, by service with port.

    Each flow comes with the number of calls of which its agent records one. A rescued call is always recorded, and so
    stands for itself alone; otherwise a few of them would outweigh all others.
    """
    took: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for flow, one_of in flows:
        if flow.state == "connected" and flow.service and flow.time + flow.took >= since:
            took[flow.service].append((flow.took, 1 if flow.verdict == "rescued" else one_of))
    return {service: Connections(tuple(each)) for service, each in took.items()}


def percentile(connections: Connections, part: float) -> float | None:
    """Return the least time within which a part of the calls was established; ``None`` without connections."""
    total = sum(weight for _, weight in connections.took)
    passed = 0
    for took, weight in sorted(connections.took):
        passed += weight
        if passed >= part * total:
            return took
    return None
