"""What this node's kernel ejected, for people: metrics, and Events about the import or Service.

Both are bounded. Many nodes see the same backends fail, so an Event names no node and no backend: all nodes count up
one Event for each service, cluster and reason, and each node at most once in :data:`QUIET`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from isthmus import kube
from isthmus.kube.events import Recorder
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.model.names import ServiceName, split
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import BACKENDS, FAILURES, IMPORTS, SERVICES
from isthmus.statedb import Database, Reader

MOST_SERIES: Final = 200
"""Services and clusters with ejected backends that have a series of their own, the most affected first; the others are
counted together as service ``other``."""
OTHER: Final = "other"

QUIET: Final = 300.0
"""Seconds in which one service, cluster and reason has one Event of this node."""
BURST: Final = 10
"""Events of this node in :data:`WINDOW`, whatever fails: a network that breaks fails everything at once."""
WINDOW: Final = 60.0


class Ejected(NamedTuple):
    """Backends of a service in one cluster that are ejected for one reason."""

    service: ServiceName
    """As people call it: the import where it stands for one."""
    is_import: bool
    cluster: str
    reason: str


def ejected(reader: Reader) -> Counter[Ejected]:
    """How many backends are ejected now."""
    found: Counter[Ejected] = Counter()
    for row in reader.all(FAILURES):
        backend = reader.get(BACKENDS, row.key)
        if backend is not None:
            of = backend.import_of
            found[Ejected(of or row.key.service, bool(of), row.key.cluster, row.reason)] += 1
    return found


def families(prefix: str, reader: Reader, *, moved: int) -> list[Metric]:
    """Backends ejected now, and connections that are ``moved``."""
    gauge = GaugeMetricFamily(
        f"{prefix}_ejected_backends", "Backends that calls of this node pass over", labels=["service", "target_cluster"]
    )
    for (service, cluster), count in _bounded(ejected(reader)):
        gauge.add_metric([service, cluster], count)
    connections = GaugeMetricFamily(f"{prefix}_moved_connections", "Connections that another backend answered")
    connections.add_metric([], moved)
    return [gauge, connections]


def _bounded(found: Mapping[Ejected, int]) -> list[tuple[tuple[str, str], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for each, count in found.items():
        counts[each.service, each.cluster] += count
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    kept, rest = ranked[:MOST_SERIES], ranked[MOST_SERIES:]
    others: Counter[tuple[str, str]] = Counter()
    for (_, cluster), count in rest:
        others[OTHER, cluster] += count
    return [*kept, *sorted(others.items())]


class Pace:
    """Which Events may be written: each at most once in QUIET, and BURST in WINDOW altogether. Times in seconds."""

    def __init__(self) -> None:
        self._written: dict[Ejected, float] = {}

    def __repr__(self) -> str:
        return f"<Pace: {len(self._written)} written of late>"

    def allowed(self, found: Iterable[Ejected], now: float) -> list[Ejected]:
        """Those of these that are written now; the others are, if they still fail, when there is room."""
        self._written = {each: at for each, at in self._written.items() if at > now - QUIET}
        room = BURST - sum(at > now - WINDOW for at in self._written.values())
        fresh = sorted(each for each in found if each not in self._written)[: max(0, room)]
        self._written |= dict.fromkeys(fresh, now)
        return fresh


async def record(db: Database, recorder: Recorder) -> None:
    """Write Events about what fails, for ever."""
    changes, pace, loop = db.changes(FAILURES), Pace(), asyncio.get_running_loop()
    while True:
        snapshot, _ = changes.next()
        for each in pace.allowed(ejected(snapshot), loop.time()):
            write(recorder, snapshot, each)
        failing = snapshot.count(FAILURES) > 0
        del snapshot
        try:
            async with asyncio.timeout(WINDOW if failing else None):
                await changes.wait()
        except TimeoutError:
            pass


def write(recorder: Recorder, reader: Reader, each: Ejected) -> None:
    """One Event about an import or a Service of the own API server; none where that has gone."""
    kind: kube.Kind[Any] = SERVICE_IMPORT if each.is_import else SERVICE
    row = reader.get(IMPORTS, each.service) if each.is_import else reader.get(SERVICES, (each.service, KUBERNETES))
    if row is None:
        return
    namespace, name = split(each.service)
    recorder.record(
        kind,
        namespace=namespace,
        name=name,
        uid=row.uid,
        type="Warning",
        reason="BackendsEjected",
        message=f"backends in cluster {each.cluster} fail connects ({each.reason}): calls go to others meanwhile",
    )
