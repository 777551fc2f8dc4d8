"""Ejections of this node for people: metrics, and Events about the import or Service, or about the calling pod.

All are bounded. Many nodes see the same backends fail, so an Event names no node and no backend: all nodes count up
one Event for each service, cluster and reason, and each node at most once in :data:`QUIET`. What fails for one pod
alone is an Event about that pod: it is in its own namespace, and blames no backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from prometheus_client.metrics_core import Metric

from isthmus import kube, metrics
from isthmus.kube.events import Recorder
from isthmus.kube.objects.core import POD, SERVICE
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.model.names import ServiceName, split
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import BACKENDS, CALLER_FAILURES, FAILURES, IMPORTS, PODS, SERVICES
from isthmus.running import Tasks
from isthmus.statedb import Database, Reader, Snapshot, Table

MOST_SERIES: Final = 200
"""Services and clusters with ejected backends that have a series of their own, the most affected first; the others are
counted together as service ``other``."""
OTHER: Final = metrics.OTHER

QUIET: Final = 300.0
"""Seconds in which one service, cluster and reason has one Event of this node."""
BURST: Final = 10
"""Events of this node in :data:`WINDOW`, whatever fails: a network that breaks fails everything at once."""
WINDOW: Final = 60.0
SETTLE: Final = 3.0
"""Seconds in which the agent tries a backend that a caller reports, at most."""
NAMED: Final = 3
"""Services that an Event names."""


class Ejected(NamedTuple):
    """Backends of a service in one cluster that are ejected for one reason."""

    service: ServiceName
    """Name that users know: the import's name for a derived Service."""
    is_import: bool
    cluster: str
    reason: str
    confirmed: bool = False
    """True if the agent cannot connect to them either."""


class Trouble(NamedTuple):
    """Connects of one pod that fail for one reason, where others' do not."""

    pod: str
    reason: str


class Extent(NamedTuple):
    """Services whose backends a pod cannot connect to."""

    services: frozenset[ServiceName]
    """Imports, or Services where they stand for none."""
    answers: bool
    """True if the agent connects to all of the backends."""


def ejected(reader: Reader) -> Counter[Ejected]:
    """Count the backends that are ejected now."""
    counts: Counter[Ejected] = Counter()
    for row in reader.all(FAILURES):
        backend = reader.get(BACKENDS, row.key)
        if backend is not None:
            imported = backend.import_of
            counts[
                Ejected(imported or row.key.service, bool(imported), row.key.cluster, row.reason, row.confirmed)
            ] += 1
    return counts


def troubles(reader: Reader, now: float) -> dict[Trouble, Extent]:
    """Collect the pods that cannot connect to backends others connect to. ``now``: Unix seconds.

    Omitted are backends that are dead, which have an Event of their own, and those that the agent has not probed yet.
    """
    extents: dict[Trouble, Extent] = {}
    for row in reader.all(CALLER_FAILURES):
        if not row.pod or row.verdict == "dead" or (not row.verdict and now < row.since + SETTLE):
            continue
        backend = reader.get(BACKENDS, row.key)
        service = (backend.import_of if backend is not None else None) or row.key.service
        before = extents.get(Trouble(row.pod, row.reason), Extent(frozenset(), True))
        joined = Extent(before.services | {service}, before.answers and row.verdict == "answers")
        extents[Trouble(row.pod, row.reason)] = joined
    return extents


def families(prefix: str, reader: Reader, *, moved: int) -> list[Metric]:
    """Backends ejected now, for all callers and for some, and connections that are ``moved``."""
    return [
        metrics.EJECTED.family(prefix, _bounded(ejected(reader))),
        metrics.CALLER_EJECTIONS.value(prefix, reader.count(CALLER_FAILURES)),
        metrics.MOVED.value(prefix, moved),
    ]


def _bounded(counted: Mapping[Ejected, int]) -> list[tuple[tuple[str, str], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for each, count in counted.items():
        counts[each.service, each.cluster] += count
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    kept, rest = ranked[:MOST_SERIES], ranked[MOST_SERIES:]
    remaining: Counter[tuple[str, str]] = Counter()
    for (_, cluster), count in rest:
        remaining[OTHER, cluster] += count
    return [*kept, *sorted(remaining.items())]


K = TypeVar("K", bound=tuple[Any, ...])


class Pace(Generic[K]):
    """Rate limit of Events: each at most once in QUIET, and BURST of all in WINDOW. Times in seconds."""

    def __init__(self) -> None:
        self._written: dict[K, float] = {}

    def __repr__(self) -> str:
        return f"<Pace: {len(self._written)} written of late>"

    def allowed(self, candidates: Iterable[K], now: float) -> list[K]:
        """Return the candidates to write now. The rest is retried later if still failing."""
        self._written = {each: at for each, at in self._written.items() if at > now - QUIET}
        room = BURST - sum(at > now - WINDOW for at in self._written.values())
        fresh = sorted(each for each in candidates if each not in self._written)[: max(0, room)]
        self._written |= dict.fromkeys(fresh, now)
        return fresh


async def record(db: Database, recorder: Recorder, backends: Pace[Ejected], callers: Pace[Trouble]) -> None:
    """Write Events about what fails, for ever."""
    loop = asyncio.get_running_loop()

    def about_backends(snapshot: Snapshot) -> None:
        for each in backends.allowed(ejected(snapshot), loop.time()):
            write(recorder, snapshot, each)

    def about_callers(snapshot: Snapshot) -> None:
        extents = troubles(snapshot, time.time())
        for each in callers.allowed(extents, loop.time()):
            write_trouble(recorder, snapshot, each, extents[each])

    async with Tasks() as tasks:
        tasks.start("of backends", partial(_follow, db, FAILURES, about_backends))
        tasks.start("of callers", partial(_follow, db, CALLER_FAILURES, about_callers))


async def _follow(db: Database, table: Table[Any, Any], write: Callable[[Snapshot], None]) -> None:
    """Write what a table is a reason for when it changes, and while it has rows also as time passes."""
    changes = db.changes(table)
    try:
        while True:
            snapshot, _ = changes.next()
            write(snapshot)
            failing = snapshot.count(table) > 0
            del snapshot
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WINDOW if failing else None):
                    await changes.wait()
    finally:
        changes.close()


def write(recorder: Recorder, reader: Reader, ejected: Ejected) -> None:
    """One Event about an import or a Service of the own API server; none if it was deleted."""
    kind: kube.Kind[Any] = SERVICE_IMPORT if ejected.is_import else SERVICE
    row = (
        reader.get(IMPORTS, ejected.service)
        if ejected.is_import
        else reader.get(SERVICES, (ejected.service, KUBERNETES))
    )
    if row is None:
        return
    namespace, name = split(ejected.service)
    whose = "pods and of their node" if ejected.confirmed else "two pods or more"
    what = f"backends in cluster {ejected.cluster} fail connects ({ejected.reason}) of {whose}"
    recorder.record(
        kind,
        namespace=namespace,
        name=name,
        uid=row.uid,
        type="Warning",
        reason="BackendsEjected",
        message=f"{what}: calls go to others meanwhile",
    )


def write_trouble(recorder: Recorder, reader: Reader, trouble: Trouble, extent: Extent) -> None:
    """One Event about a pod of this node; none if it was deleted."""
    pod = reader.get(PODS, trouble.pod)
    if pod is None:
        return
    named = sorted(extent.services)
    services = ", ".join(named[:NAMED]) + (f" and {len(named) - NAMED} more" if len(named) > NAMED else "")
    cure = "its node connects to them: look for network policies, and at the options of its sockets"
    namespace, name = split(ServiceName(trouble.pod))
    recorder.record(
        POD,
        namespace=namespace,
        name=name,
        uid=pod.uid,
        type="Warning",
        reason="ConnectsFail",
        message=f"connects of this pod to backends of {services} fail ({trouble.reason}), and no other's: "
        f"its calls go to others meanwhile{f'; {cure}' if extent.answers else ''}",
    )
