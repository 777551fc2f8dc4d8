"""Drains: which count, how far one has come at a time, and which backends it means. Pure; the time is an argument.

A cluster may drain itself, its nodes, and its part of its services, and its peers follow that. A drain of a peer that
an administrator asks for here is followed here alone. What a peer publishes about any other cluster drains nothing.

New calls. A drained backend is in no plan while a plan has another that is as good: one that is ready where it is
ready, or that still serves while it ends where it does so too. Where a drain would leave nothing, what is drained goes
on being called: a drain moves calls, and never refuses any. During the ramp, a target has a decreasing part of its
share (tiers.py).

Connections that are there end by themselves, or at the deadline; those to what is still called are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from isthmus.model.balancing import Backend
from isthmus.model.drains import Drain, Draining, DrainRequest
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Node
from isthmus.model.tables import BACKENDS
from isthmus.statedb import Reader

STEPS: Final = 10
"""Changes of weight within a ramp. Each makes plans anew, so there are few; a step is a tenth of a target's share."""

WHOLE: Final = 100
"""Percent: nothing is drained."""


class Step(NamedTuple):
    """How far a drain has come, and when that changes next; None: never by time alone."""

    left: int
    closing: bool
    until: datetime | None


def step(drain: Drain, now: datetime) -> Step | None:
    """How far a drain has come; None where it has ended.

    The middle of each step is where a straight line would be. A start in the future (clocks differ) has begun.
    """
    if drain.ends and now >= _time(drain.ends):
        return None
    changes = [_time(drain.ends)] if drain.ends else []
    left, closing = 0, False
    start = _time(drain.started) if drain.started else None
    if start is not None and drain.ramp:
        ramp = timedelta(seconds=drain.ramp)
        number = max(0, (now - start) * STEPS // ramp)
        if number < STEPS:
            left = WHOLE * (2 * (STEPS - number) - 1) // (2 * STEPS)
            changes.append(start + ramp * (number + 1) / STEPS)
    if drain.deadline is not None:
        due = start + timedelta(seconds=drain.deadline) if start is not None else now
        closing = now >= due
        changes += [] if closing else [due]
    return Step(left, closing, min(changes, default=None))


def of_nodes(nodes: Iterable[Node], *, gone: Iterable[str], cordoned: bool) -> Iterator[Drain]:
    """The drains that follow from nodes themselves; ``gone``: endpoints name them and there is no such Node.

    A node that is shut down answers nothing any more, so its connections are closed. ``cordoned``: whether a cordon
    drains. By itself it does not, as in Kubernetes: it keeps new pods away, and whole node pools are cordoned at once
    before they are replaced.
    """
    for name in gone:
        yield Drain(kind="Node", target=name, reason="node deleted")
    for node in nodes:
        if node.out_of_service:
            yield Drain(kind="Node", target=node.name, reason="node out of service", deadline=0)
        elif node.deleting:
            yield Drain(kind="Node", target=node.name, reason="node being deleted")
        elif cordoned and node.cordoned:
            yield Drain(kind="Node", target=node.name, reason="node cordoned")


def own(requests: Iterable[DrainRequest], implied: Iterable[Drain]) -> list[Drain]:
    """The drains that the own cluster asks for."""
    return [*(row.drain for row in requests if not row.invalid), *implied]


def published(drains: Iterable[Drain], cluster: ClusterName) -> list[Drain]:
    """Those that peers follow: of the cluster that asks, its nodes and its services; never of another cluster."""
    return [each for each in drains if each.kind != "Cluster" or each.target == cluster]


def in_force(asked: Mapping[ClusterName, Sequence[Drain]], *, cluster: ClusterName, now: datetime) -> list[Draining]:
    """The drains that count at a time, of the own cluster and of peers, by the cluster that asks."""
    found: dict[tuple[str, ...], Draining] = {}
    for by, drains in asked.items():
        for drain in drains if by == cluster else published(drains, by):
            if (at := step(drain, now)) is not None:
                row = Draining(by=by, drain=drain, left=at.left, closing=at.closing)
                found.setdefault(row.key, row)
    return list(found.values())


def next_change(asked: Iterable[Drain], now: datetime) -> datetime | None:
    """When time alone changes what counts next."""
    steps = (step(drain, now) for drain in asked)
    return min((at.until for at in steps if at is not None and at.until is not None), default=None)


Subject = tuple[str, str, str]
"""What a drain is about: its kind, the cluster (empty for a cluster as a whole), the target."""


class Drained:
    """The drains in force, to be asked about backends."""

    def __init__(self, rows: Iterable[Draining]) -> None:
        self._rows: dict[Subject, list[Draining]] = {}
        for row in rows:
            self._rows.setdefault(_subject(row), []).append(row)

    def __repr__(self) -> str:
        return f"<Drained {', '.join(map(str, self._rows))}>"

    def of(self, backend: Backend) -> Draining | None:
        """The drain that leaves a backend least; None where nothing drains it."""
        return min(self._about(backend), key=lambda row: row.left, default=None)

    def left(self, backend: Backend) -> int:
        """Percent of its share that a backend still has."""
        return min((row.left for row in self._about(backend)), default=WHOLE)

    def closing(self, backend: Backend) -> bool:
        """Whether connections to a backend are to end now."""
        return any(row.closing for row in self._about(backend))

    def left_of(self, cluster: ClusterName, service: ServiceName) -> int:
        """Percent of its share that what a cluster has of a service still has, but for drains of nodes."""
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
    """A drain in one line: what, since when, who asked."""
    return f"{row.drain.kind.lower()} {row.drain.target} {state(row)}"


def state(row: Draining) -> str:
    """The line without its target."""
    drain = row.drain
    since = f" since {drain.started}" if drain.started else ""
    how = "drained" if not row.left else f"being drained, {row.left}% of its share left,"
    return f"is {how}{since} ({drain.reason} in {row.by})"


def affected(reader: Reader, old: Draining | None, new: Draining | None) -> set[ServiceName]:
    """The services with a backend that a drain means. A drain is rare: all backends are looked at."""
    rows = [row for row in (old, new) if row is not None]
    if len(rows) == 2 and (rows[0].left, rows[0].key) == (rows[1].left, rows[1].key):
        return set()  # only its connections are treated otherwise
    drained = Drained(rows)
    return {each.key.service for each in reader.all(BACKENDS) if drained.of(each) is not None}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
