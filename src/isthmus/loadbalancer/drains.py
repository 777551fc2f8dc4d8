"""Computes the drains in force, their progress, and the backends that they match. Pure: the time is an argument.

A cluster may drain itself, its nodes, and its part of its services, and its peers apply these drains too. A drain of a
peer that an administrator requests here applies here alone. A peer's drains of other clusters are ignored.

New calls. A drained backend is left out of a plan that has another backend in an equally good condition: a ready one if
it is ready, a terminating one that still serves if it is terminating. If a drain would leave none, the drained backends
are still called: a drain moves calls and never refuses any. During the ramp, a target keeps a decreasing part of its
share (tiers.py). Before its end it may get its share back in the same way.

Established connections end by themselves or at the deadline; connections to backends that are still called continue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from isthmus import bounds
from isthmus.model.balancing import Backend
from isthmus.model.drains import Drain, Draining, DrainRequest
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Node
from isthmus.model.tables import BACKENDS
from isthmus.statedb import Reader

STEPS: Final = 10
"""Changes of weight within a ramp. Each one recomputes plans, so there are few: a step is a tenth of the share."""

WHOLE: Final = 100
"""Percentage of its share that an undrained backend has."""


class Step(NamedTuple):
    """Progress of a drain."""

    percent_left: int
    closing: bool
    """Established connections are closed."""
    until: datetime | None
    """Time of the next change; ``None`` if time alone changes nothing."""


def step(drain: Drain, now: datetime) -> Step | None:
    """Return a drain's progress; ``None`` if it has ended.

    A ramp is a staircase through a straight line's values at the middle of each step. A start in the future (clocks
    differ) is taken as begun. If the ramp of the end begins before that of the start is over, the larger share holds.
    No connection is closed during the ramp of the end, since the target is called again.
    """
    ends = _time(drain.ends) if drain.ends else None
    if ends is not None and now >= ends:
        return None
    changes = [ends] if ends is not None else []
    percent, closing, returning = 0, False, False
    start = _time(drain.started) if drain.started else None
    if start is not None and drain.ramp:
        number, change = _stair(start, drain.ramp, max(now, start))
        if number < STEPS:
            percent = _middle(STEPS - 1 - number)
            changes.append(change)
    if ends is not None and drain.end_ramp:
        number, change = _stair(ends - bounds.span(drain.end_ramp), drain.end_ramp, now)
        returning = number >= 0
        if returning:
            percent = max(percent, _middle(number))
        changes.append(change)
    if drain.deadline is not None and not returning:
        due = start + bounds.span(drain.deadline) if start is not None else now
        closing = now >= due
        changes += [] if closing else [due]
    return Step(percent, closing, min(changes, default=None))


def _stair(begin: datetime, seconds: int, now: datetime) -> tuple[int, datetime]:
    """Return the number of the step of a ramp at a time, and when the next one begins; -1 before the ramp."""
    ramp = bounds.span(seconds)
    number = (now - begin) * STEPS // ramp
    if number < 0:
        return -1, begin
    return number, begin + ramp * (number + 1) / STEPS


def _middle(number: int) -> int:
    """Percentage in the middle of a step of a ramp that grows."""
    return WHOLE * (2 * number + 1) // (2 * STEPS)


def of_nodes(nodes: Iterable[Node], *, deleted: Iterable[str], cordoned: bool) -> Iterator[Drain]:
    """Yield the drains implied by nodes. ``deleted``: names of nodes that endpoints refer to and that have no Node.

    A node that is shut down answers nothing, so its connections are closed. ``cordoned``: a cordon drains a node. By
    default it does not, as in Kubernetes, where a cordon only keeps new pods away: whole node pools are cordoned at
    once before they are replaced.
    """
    for name in deleted:
        yield Drain(kind="Node", target=name, reason="node deleted")
    for node in nodes:
        if node.out_of_service:
            yield Drain(kind="Node", target=node.name, reason="node out of service", deadline=0)
        elif node.deleting:
            yield Drain(kind="Node", target=node.name, reason="node being deleted")
        elif cordoned and node.cordoned:
            yield Drain(kind="Node", target=node.name, reason="node cordoned")


def own(requests: Iterable[DrainRequest], implied: Iterable[Drain]) -> list[Drain]:
    """Return the drains that the own cluster requests."""
    return [*(row.drain for row in requests if not row.invalid), *implied]


def published(drains: Iterable[Drain], cluster: ClusterName) -> list[Drain]:
    """Return the drains that peers apply: of the requesting cluster, its nodes and services, not of other clusters."""
    return [each for each in drains if each.kind != "Cluster" or each.target == cluster]


def in_force(asked: Mapping[ClusterName, Sequence[Drain]], *, cluster: ClusterName, now: datetime) -> list[Draining]:
    """Return the drains in force at a time. ``asked``: drains by the cluster that requests them."""
    by_key: dict[tuple[str, ...], Draining] = {}
    for asking, drains in asked.items():
        for drain in drains if asking == cluster else published(drains, asking):
            if (progress := step(drain, now)) is not None:
                row = Draining(by=asking, drain=drain, left=progress.percent_left, closing=progress.closing)
                by_key.setdefault(row.key, row)
    return list(by_key.values())


def next_change(asked: Iterable[Drain], now: datetime) -> datetime | None:
    """Return the next time at which the drains in force change without a change of rows; ``None`` if never."""
    steps = (step(drain, now) for drain in asked)
    return min(
        (progress.until for progress in steps if progress is not None and progress.until is not None), default=None
    )


Subject = tuple[str, str, str]
"""Subject of a drain: its kind, its cluster (empty for a drain of a whole cluster) and its target."""


class Drained:
    """Index of the drains in force, by which backends are looked up."""

    def __init__(self, rows: Iterable[Draining]) -> None:
        self._rows: dict[Subject, list[Draining]] = {}
        for row in rows:
            self._rows.setdefault(_subject(row), []).append(row)

    def __repr__(self) -> str:
        return f"<Drained {', '.join(map(str, self._rows))}>"

    def drain_of(self, backend: Backend) -> Draining | None:
        """Return the drain that leaves a backend the smallest percentage; ``None`` if it is not drained."""
        return min(self._about(backend), key=lambda row: row.left, default=None)

    def percent_left(self, backend: Backend) -> int:
        """Percentage of its share that a backend has left."""
        return min((row.left for row in self._about(backend)), default=WHOLE)

    def closing(self, backend: Backend) -> bool:
        """True if established connections to a backend are closed now."""
        return any(row.closing for row in self._about(backend))

    def percent_left_of(self, cluster: ClusterName, service: ServiceName) -> int:
        """Percentage left of a cluster's part of a service, without drains of nodes."""
        return min((row.left for row in self._about_all(cluster, service)), default=WHOLE)

    def _about(self, backend: Backend) -> Iterator[Draining]:
        key = backend.key
        yield from self._about_all(key.cluster, backend.import_of or key.service)
        yield from self._rows.get(("Node", key.cluster, backend.node), ()) if backend.node else ()

    def _about_all(self, cluster: ClusterName, service: ServiceName) -> Iterator[Draining]:
        yield from self._rows.get(("Cluster", "", cluster), ())
        yield from self._rows.get(("Service", cluster, service), ())


def _subject(row: Draining) -> Subject:
    drain = row.drain
    return (drain.kind, "" if drain.kind == "Cluster" else row.by, drain.target)


def describe(row: Draining) -> str:
    """Format a drain in one line: subject, start, and the cluster that requested it."""
    return f"{row.drain.kind.lower()} {row.drain.target} {state(row)}"


def state(row: Draining) -> str:
    """Format the line of :func:`describe` without its subject."""
    drain = row.drain
    started = f" since {drain.started}" if drain.started else ""
    how = "drained" if not row.left else f"being drained, {row.left}% of its share left,"
    return f"is {how}{started} ({drain.reason} in {row.by})"


def affected(reader: Reader, old: Draining | None, new: Draining | None) -> set[ServiceName]:
    """Return the services with a backend that a drain matches. Drains are rare, so all backends are searched."""
    rows = [row for row in (old, new) if row is not None]
    if len(rows) == 2 and (rows[0].left, rows[0].key) == (rows[1].left, rows[1].key):
        return set()  # only the treatment of its connections changed
    drained = Drained(rows)
    return {each.key.service for each in reader.all(BACKENDS) if drained.drain_of(each) is not None}


def _time(text: str) -> datetime:
    return bounds.timestamp(text)
