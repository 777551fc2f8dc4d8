"""What must hold in every story, checked while it runs and at its end. Each class is one invariant.

An invariant is told of nothing: it reads the API servers, the etcds and what processes show of themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from isthmus.clusterset.records import keys
from isthmus_lab.apiserver.storage import Change
from isthmus_sim import truth
from isthmus_sim.apiserver import Request
from isthmus_sim.clusters import Cluster, Clusters

SETTLED_AFTER: Final = 75.0
"""Seconds after the last event and fault until everything must have settled: the lease of a dead leader
ends after 12, and a reconciler that failed often waits for up to 30, as does a restarted task."""
QUIET: Final = 20.0
"""Seconds at the end of a story in which nothing is written but leases and heartbeats."""
UNHEALTHY_WITHIN: Final = 10.0
"""Seconds for which imports may be wrong while every process reports that it is healthy."""
LONG: Final = 120.0
"""Seconds for which a service has to be exported without a break before its loss breaks an invariant: longer than any
fault and the pauses after it, so that every cluster has learned of the export by then."""


LEASES: Final = "leases.coordination.k8s.io"
LEASE: Final = "kube-system/isthmus-operator"


class Moment(NamedTuple):
    """State of the run that invariants check."""

    time: float
    clusters: Clusters
    differences: dict[str, list[str]]
    """Differences between actual and expected imports, by cluster."""


class Invariant:
    """An invariant. ``at_end`` is called once, when all should have settled; ``always`` each second."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        self.broken: list[str] = []

    def always(self, moment: Moment) -> Iterable[str]:
        """Sentences on what is broken now."""
        return ()

    def at_end(self, moment: Moment) -> Iterable[str]:
        """Sentences on what is broken at the end."""
        return ()


class ImportsAreEqual(Invariant):
    """In every cluster, imports are the merge of the API servers' contents, some time after the last fault."""

    def at_end(self, moment: Moment) -> Iterable[str]:
        """The differences."""
        return [text for texts in moment.differences.values() for text in texts]


class OwnExportsArePublished(Invariant):
    """The own etcd has a record of each own export at the end, and loses none of a Service that stays exported."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__(clusters)
        self._since: dict[tuple[str, str], float] = {}
        self._now = 0.0
        for cluster in clusters:
            cluster.etcd.deleted = lambda key, revision, cluster=cluster: self._deleted(cluster, key)

    def _deleted(self, cluster: Cluster, key: str) -> None:
        prefix = keys.prefix("serviceexports", cluster.name)  # type: ignore[arg-type]
        if key.startswith(prefix):
            name = key.removeprefix(prefix)
            since = self._since.get((cluster.name, name))
            lasted = since is not None and self._now - since >= LONG
            if lasted and name in truth.exports(cluster):
                self.broken.append(f"{cluster.name}: the record of {name} was deleted, which is exported")

    def always(self, moment: Moment) -> Iterable[str]:
        """Keep since when each Service is exported."""
        self._now = moment.time
        exported = {(each.name, name) for each in moment.clusters for name in truth.exports(each)}
        self._since = {key: self._since.get(key, moment.time) for key in exported}
        return ()

    def at_end(self, moment: Moment) -> Iterator[str]:
        """Exports without a record, and records without an export."""
        for cluster in moment.clusters:
            prefix = keys.prefix("serviceexports", cluster.name)
            records = {key.removeprefix(prefix) for key in cluster.etcd.values(prefix)}
            if records != (exported := set(truth.exports(cluster))):
                yield f"{cluster.name}: exports {sorted(exported)}, and its etcd has records of {sorted(records)}"


class OneLeaderWrites(Invariant):
    """At most one replica of a cluster leads, and only the one that holds the Lease writes objects."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__(clusters)
        for cluster in clusters:
            cluster.api.writing = lambda request, cluster=cluster: self._writing(cluster, request)

    def _writing(self, cluster: Cluster, request: Request) -> None:
        lease = cluster.api.store.get(LEASES, LEASE)
        holder = str(lease.body["spec"].get("holderIdentity") or "") if lease is not None else ""
        if holder.rpartition("-")[2] != str(request.process.pid):
            self.broken.append(f"{cluster.name}: {request.process.host} writes {request.path}, and {holder} leads")

    def always(self, moment: Moment) -> Iterator[str]:
        """Two leaders at once, neither of which is paused."""
        for cluster in moment.clusters:
            leaders = [each.host for each in cluster.leaders() if not each.paused]
            if len(leaders) > 1:
                yield f"{cluster.name}: {' and '.join(leaders)} lead"


class DerivedServiceKeepsItsAddress(Invariant):
    """A derived Service is not recreated while its service stays exported."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__(clusters)
        self._since: dict[tuple[str, str], float] = {}
        self._now = 0.0
        for cluster in clusters:
            cluster.api.store.changed = lambda change, cluster=cluster: self._changed(cluster, change)

    def _changed(self, cluster: Cluster, change: Change) -> None:
        if change.resource != truth.SERVICE or change.old is None or change.new is not None:
            return
        name = (change.old.body["metadata"].get("labels") or {}).get(truth.IMPORTED)
        key = f"{change.key.partition('/')[0]}/{name}"
        since = self._since.get((cluster.name, key))
        lasted = since is not None and self._now - since >= LONG
        want = truth.wanted(cluster, self.clusters).get(key) if lasted else None
        if want is not None and want.type == "ClusterSetIP":
            self.broken.append(f"{cluster.name}: the derived Service of {key} was deleted, which is exported")

    def always(self, moment: Moment) -> Iterable[str]:
        """Keep since when each import is wanted with an address."""
        self._now = moment.time
        imported = {
            (each.name, name)
            for each in moment.clusters
            for name, want in truth.wanted(each, moment.clusters).items()
            if want.type == "ClusterSetIP"
        }
        self._since = {key: self._since.get(key, moment.time) for key in imported}
        return ()


class StatusIsHonest(Invariant):
    """Some process reports a problem while imports are wrong for more than ten seconds."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__(clusters)
        self._wrong_since: dict[str, float] = {}

    def always(self, moment: Moment) -> Iterator[str]:
        """Imports that are wrong for longer than that while no process reports a problem."""
        wrong = {text for texts in moment.differences.values() for text in texts}
        self._wrong_since = {text: self._wrong_since.get(text, moment.time) for text in sorted(wrong)}
        if any(cluster.problems() for cluster in moment.clusters):
            self._wrong_since = dict.fromkeys(self._wrong_since, moment.time)
        for text, since in self._wrong_since.items():
            if moment.time - since > UNHEALTHY_WITHIN:
                yield f"all is healthy, and for {UNHEALTHY_WITHIN:.0f} s: {text}"


class NothingIsWrittenForNothing(Invariant):
    """Once all has settled nothing is written but leases and heartbeats."""

    def __init__(self, clusters: Clusters) -> None:
        super().__init__(clusters)
        self._writes: dict[str, list[tuple[float, int]]] = {cluster.name: [] for cluster in clusters}

    def always(self, moment: Moment) -> Iterable[str]:
        """Keep the number of writes so far."""
        for cluster in moment.clusters:
            self._writes[cluster.name].append((moment.time, sum(cluster.api.writes.values())))
        return ()

    def at_end(self, moment: Moment) -> Iterator[str]:
        """Writes of the last seconds."""
        for cluster in moment.clusters:
            before = max((count for time, count in self._writes[cluster.name] if time < moment.time - QUIET), default=0)
            if after := sum(cluster.api.writes.values()) - before:
                yield f"{cluster.name}: {after} writes in the last {QUIET:.0f} s, in which nothing happened"


class NoTaskFails(Invariant):
    """No supervised task of a process fails, and no exception is lost: code must survive faults."""

    def always(self, moment: Moment) -> Iterator[str]:
        """Failures of tasks so far, with the reasons of the present ones."""
        for cluster in moment.clusters:
            for process, shown in cluster.shown.items():
                if not process.dead:
                    for failure in shown.failing():
                        yield f"{process.host}: the task {failure.task} failed: {failure.why}"


ALL: Final[tuple[type[Invariant], ...]] = (
    ImportsAreEqual,
    OwnExportsArePublished,
    OneLeaderWrites,
    DerivedServiceKeepsItsAddress,
    StatusIsHonest,
    NothingIsWrittenForNothing,
    NoTaskFails,
)
