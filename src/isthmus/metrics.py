"""Every metric that a process serves: its name, kind, help and labels. docs/metrics.md is generated from here.

A metric of the process ``agent`` is named ``isthmus_agent_`` and the name below; a counter ends with ``_total``. Units
are Prometheus' base units and part of the name. Each label has a bounded set of values, whatever others write.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, Literal

from msgspec import Struct
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from isthmus.fair import Shares

Process = Literal["agent", "dns", "operator", "mirror", "gateway", "keys"]
EVERY: Final[tuple[Process, ...]] = ("agent", "dns", "operator", "mirror", "gateway", "keys")
CONNECTED: Final[tuple[Process, ...]] = ("agent", "operator", "mirror")
"""Processes that follow peers."""

SERIES: Final = 1000
"""Services of one metric that have series of their own, in fair shares of namespaces; all others share OTHER."""
OTHER: Final = "other"
BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of a histogram's buckets, in seconds."""

Sample = tuple[Sequence[str], float]


class Definition(Struct, frozen=True):
    """A metric."""

    name: str
    """Name that lacks the prefix of its process and a counter's ``_total``."""
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    processes: tuple[Process, ...] = EVERY

    def family(self, prefix: str, samples: Iterable[Sample]) -> Metric:
        """Return the samples of a gauge or counter, each with the values of its labels."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(f"{prefix}_{self.name}", self.help, labels=self.labels)
        for labels, value in samples:
            family.add_metric(labels, value)
        return family

    def value(self, prefix: str, value: float) -> Metric:
        """Return the one sample of a metric without labels."""
        return self.family(prefix, [((), value)])

    def exposed(self, process: Process) -> str:
        """Return the name that a query uses."""
        return f"isthmus_{process}_{self.name}{'_total' if self.kind == 'counter' else ''}"


class Histogram:
    """Durations in seconds, counted in BUCKETS."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {self._definition.name}: {sum(self._counts)} durations>"

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def family(self, prefix: str) -> Metric:
        """Return the buckets, cumulative as Prometheus reads them."""
        bounds = (*map(str, BUCKETS), "+Inf")
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(f"{prefix}_{self._definition.name}", self._definition.help)
        family.add_metric([], buckets, self._sum)
        return family


class Bound:
    """Admits services (NAMESPACE/NAME…) as label values. One keeps its series: a counter must not decrease.

    A namespace with ever more services leaves room for those of others.
    """

    def __init__(self, most: int = SERIES) -> None:
        self._shares = Shares(most)
        self._services: set[str] = set()

    def __repr__(self) -> str:
        return f"<Bound: {len(self._services)} services>"

    def label(self, service: str) -> str:
        """Return the service, or OTHER when there is no room for it."""
        if service not in self._services:
            namespace = (service.partition("/")[0],)
            if not self._shares.headroom(namespace):
                return OTHER
            self._shares.hold(namespace)
            self._services.add(service)
        return service


def _gauge(name: str, text: str, *labels: str, processes: tuple[Process, ...] = EVERY) -> Definition:
    return Definition(name, "gauge", text, labels, processes)


def _counter(name: str, text: str, *labels: str, processes: tuple[Process, ...] = EVERY) -> Definition:
    return Definition(name, "counter", text, labels, processes)


# Every process
BUILD_INFO: Final = _gauge("build_info", "1, with the version of Isthmus and of Python", "version", "python")
PROBLEMS: Final = _gauge("problems", "Problems that isthmus status lists for this process")
AWAITED: Final = _gauge("awaited_sources", "Sources whose first complete list this process waits for")
LEADER: Final = _gauge(
    "leader", "1 on the replica that is at work, 0 on one that stands by", processes=("operator", "mirror")
)
TASK_FAILURES: Final = _counter("task_failures", "Failures of a task of the process", "task")
TASK_FAILING: Final = _gauge("task_failing", "1 while a task of the process fails", "task")
FAULTS: Final = _gauge(
    "faults", "Units and objects that cannot be computed; their last good rows stay", "table", "cause"
)
CERTIFICATE_END: Final = _gauge(
    "own_certificate_end_timestamp_seconds",
    "End of a certificate of this process or of its etcd",
    "name",
    processes=("agent", "operator", "mirror", "gateway", "keys"),
)
ROTATION_STEP: Final = _gauge(
    "authority_rotation_step",
    "Rotation of the authority: 0 none, 1 another one is trusted, 2 it signs and the old one is still trusted",
    processes=("keys",),
)
SOURCE_CONNECTED: Final = _gauge(
    "source_connected", "1 while a source is followed", "source", processes=("agent", "dns", "operator", "gateway")
)
SOURCE_FAILURES: Final = _counter(
    "source_failures", "Failures to follow a source", "source", processes=("agent", "dns", "operator", "gateway")
)
TABLE_ROWS: Final = _gauge("table_rows", "Rows of a table, if monitor.tables is set", "table")
TABLE_REVISION: Final = _gauge("table_revision", "Transactions that changed a table, if monitor.tables is set", "table")
TABLE_PENDING: Final = _gauge("table_pending", "Sources that a table waits for, if monitor.tables is set", "table")

# Peers, named as Cilium names them
REMOTE_CLUSTERS: Final = _gauge("clustermesh_remote_clusters", "Other clusters of the clusterset", processes=CONNECTED)
REMOTE_READY: Final = _gauge(
    "clustermesh_remote_cluster_readiness_status",
    "1 while a cluster's records are received",
    "target_cluster",
    processes=CONNECTED,
)
REMOTE_FAILURES: Final = _gauge(
    "clustermesh_remote_cluster_failures",
    "Failures of the connection to a cluster",
    "target_cluster",
    processes=CONNECTED,
)
REMOTE_LAST_FAILURE: Final = _gauge(
    "clustermesh_remote_cluster_last_failure_ts",
    "Time of the last failure of a cluster that is stale, in seconds since the epoch",
    "target_cluster",
    processes=CONNECTED,
)
REMOTE_DROPPED: Final = _gauge(
    "clustermesh_remote_cluster_dropped_records",
    "Records of a cluster that were refused",
    "target_cluster",
    processes=CONNECTED,
)
REMOTE_CERTIFICATE_END: Final = _gauge(
    "clustermesh_remote_cluster_certificate_end_timestamp_seconds",
    "End of the first certificate to end of those by which a cluster is reached",
    "target_cluster",
    processes=CONNECTED,
)

# Writers of derived rows
RECONCILER_FAILING: Final = _gauge(
    "reconciler_failing",
    "Rows that could not be written and are tried again",
    "reconciler",
    processes=("agent", "operator"),
)
RECONCILER_WAITING: Final = _gauge(
    "reconciler_waiting", "Rows that are not written yet", "reconciler", processes=("agent", "operator")
)
RECONCILER_ROUNDS: Final = _counter(
    "reconciler_rounds", "Rounds of a writer of rows", "reconciler", processes=("agent", "operator")
)
CONVERGENCE: Final = Definition(
    "convergence_seconds",
    "histogram",
    "Time from a change of objects or records until all that follows from it is written",
    processes=("agent", "operator"),
)

# Node
DATAPATH_ATTACHED: Final = _gauge(
    "datapath_attached",
    "1 while the node's kernel translates calls; absent if no cgroup is configured",
    processes=("agent",),
)
POD_LINKS: Final = _gauge(
    "pod_links",
    "Interfaces of pods by state: without programs (failed) the kernel answers no names and moves no connects",
    "state",
    processes=("agent",),
)
ENVOY_ANSWERS: Final = _gauge(
    "envoy_answers", "1 while the node's Envoy answers its probes, 0 while calls bypass it", processes=("agent",)
)
CALLS: Final = _counter(
    "calls",
    "Calls of pods by outcome: a connect that was rescued or failed is also counted as called",
    "service",
    "source_cluster",
    "destination_cluster",
    "verdict",
    processes=("agent",),
)
BYTES: Final = _counter(
    "bytes",
    "Payload bytes of connections from pods to backends, counted when a connection ends",
    "source_cluster",
    "destination_cluster",
    "direction",
    processes=("agent",),
)
FLOW_RECORDS: Final = _counter(
    "flow_records", "Records of sampled calls that were read, or lost in a full buffer", "outcome", processes=("agent",)
)
EJECTIONS: Final = _counter(
    "backend_ejections",
    "Backends that were ejected, ejected for one caller, or restored",
    "event",
    "target_cluster",
    "reason",
    processes=("agent",),
)
EJECTED: Final = _gauge(
    "ejected_backends", "Backends that calls of this node pass over", "service", "target_cluster", processes=("agent",)
)
CALLER_EJECTIONS: Final = _gauge(
    "caller_ejections",
    "Pairs of a caller of this node and a backend that its calls alone pass over",
    processes=("agent",),
)
MOVED: Final = _gauge("moved_connections", "Connections that another backend answered", processes=("agent",))
DNS_QUESTIONS: Final = _counter(
    "dns_questions",
    "DNS questions of pods that the kernel saw, by kind and result",
    "kind",
    "result",
    processes=("agent",),
)

# Name server
SERVER_QUESTIONS: Final = _counter(
    "questions", "Questions that arrived, over UDP or TCP", "transport", processes=("dns",)
)
SERVER_REPLIES: Final = _counter("replies", "Replies that were sent over UDP", processes=("dns",))
SERVER_LOST: Final = _counter("lost_questions", "Questions without a reply, by reason", "reason", processes=("dns",))
UPSTREAM_QUESTIONS: Final = _counter(
    "upstream_questions", "Questions forwarded to the cluster DNS, by result", "result", processes=("dns",)
)

# Operator
PUBLISHED: Final = _gauge("published", "1 while the own etcd holds this cluster's records", processes=("operator",))
PUBLISH_FAILURES: Final = _counter("publish_failures", "Failures to publish to the own etcd", processes=("operator",))
ETCD_SIZE: Final = _gauge("etcd_db_size_bytes", "Size of the own etcd's database file", processes=("operator",))
ETCD_QUOTA: Final = _gauge(
    "etcd_db_quota_bytes",
    "Size at which the own etcd refuses writes: its default, 2 GiB, where it is older than 3.6 and does not report it",
    processes=("operator",),
)
ETCD_ALARMS: Final = _gauge(
    "etcd_alarms",
    "Alarms of the own etcd: with NOSPACE it refuses writes until it is defragmented",
    processes=("operator",),
)
EXPORT_INFO: Final = _gauge(
    "mcsapi_serviceexport_info",
    "ServiceExports of this cluster: 1, or for other the number of those without series of their own",
    "serviceexport",
    "namespace",
    processes=("operator",),
)
EXPORT_CONDITION: Final = _gauge(
    "mcsapi_serviceexport_status_condition",
    "ServiceExports of this cluster with a condition",
    "serviceexport", "namespace", "condition", "status", "reason",
    processes=("operator",),
)  # fmt: skip
IMPORT_INFO: Final = _gauge(
    "mcsapi_serviceimport_info",
    "ServiceImports of this cluster: 1, or for other the number of those without series of their own",
    "serviceimport",
    "namespace",
    processes=("operator",),
)
IMPORT_CONDITION: Final = _gauge(
    "mcsapi_serviceimport_status_condition",
    "ServiceImports of this cluster with a condition",
    "serviceimport", "namespace", "condition", "status", "reason",
    processes=("operator",),
)  # fmt: skip
IMPORT_CLUSTERS: Final = _gauge(
    "mcsapi_serviceimport_status_clusters",
    "Number of clusters that export a service",
    "serviceimport",
    "namespace",
    processes=("operator",),
)
TAKEOVERS: Final = _counter(
    "mcsapi_takeovers",
    "Fields of imports taken over by an export with an older date",
    "cluster",
    processes=("operator",),
)
DERIVED_SERVICES: Final = _gauge("mcsapi_derived_services", "Derived Services of this cluster", processes=("operator",))
DERIVED_SERVICES_LIMIT: Final = _gauge(
    "mcsapi_derived_services_limit", "Most derived Services that this cluster may have", processes=("operator",)
)
OVER_QUOTA: Final = _gauge(
    "mcsapi_imports_over_quota", "Imports without a derived Service because of the limit", processes=("operator",)
)

# Gateway
GATEWAY_EXPORTS: Final = _gauge("exports", "Exports that can be called here", processes=("gateway",))
GATEWAY_MEMBERS: Final = _gauge("members", "Clusters that may call", processes=("gateway",))
GATEWAY_REFUSED: Final = _counter("refused", "Connections that were refused", "reason", "peer", processes=("gateway",))
GATEWAY_CERTIFICATE_END: Final = _gauge(
    "certificate_end_timestamp_seconds", "End of the certificate that the gateway shows", processes=("gateway",)
)

ALL: Final = tuple(each for each in list(globals().values()) if isinstance(each, Definition))
