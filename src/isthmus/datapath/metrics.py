"""Prometheus metrics of calls and names, read from the kernel's counters at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from isthmus import metrics
from isthmus.datapath.core.tc import PodLinksStats


def calls(
    counters: Iterable[Mapping[str, Any]],
    prefix: str,
    *,
    cluster: str,
    imports: Mapping[str, str] | None = None,
    bound: metrics.Bound | None = None,
) -> Metric:
    """Return the calls of this node's pods. The label ``service`` is empty for DNS, which has none.

    ``cluster``: the callers'. ``imports``: the import of each derived Service, which is what users know. ``bound``:
    limits the services that have series.
    """
    counts = call_counts(counters, imports or {}, bound or metrics.Bound())
    return metrics.CALLS.family(
        prefix, (((service, cluster, backend, verdict), count) for (service, backend, verdict), count in counts.items())
    )


def call_counts(
    counters: Iterable[Mapping[str, Any]], imports: Mapping[str, str], bound: metrics.Bound
) -> Counter[tuple[str, str, str]]:
    """Return calls by service and port (of the import if it represents one), cluster of the backend and verdict."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in counters:
        service, colon, port = row["service"].partition(":")
        service = bound.label(f"{imports.get(service, service)}{colon}{port}")
        counts[service, row["cluster"], row["verdict"]] += row["calls"]
    return counts


def ejections(events: Mapping[tuple[str, str, str], int], prefix: str) -> Metric:
    """Return the ejections and recoveries of backends since the agent started, by event, cluster and reason."""
    return metrics.EJECTIONS.family(prefix, sorted(events.items()))


def traffic(by_cluster: Mapping[str, tuple[int, int]], prefix: str, *, cluster: str) -> Metric:
    """Return the payload bytes of the pods' ended TCP connections. ``cluster``: the callers'."""
    samples = [
        ((cluster, name, direction), count)
        for name, counts in sorted(by_cluster.items())
        for direction, count in zip(("sent", "received"), counts, strict=True)
    ]
    return metrics.BYTES.family(prefix, samples)


def records(read: int, lost: int, prefix: str) -> Metric:
    """Return the flow records that were read, and those lost because the kernel's buffer was full."""
    return metrics.FLOW_RECORDS.family(prefix, [(["read"], read), (["lost"], lost)])


def questions(rows: Iterable[Mapping[str, Any]], prefix: str) -> Metric:
    """Return the DNS questions of pods by kind and result."""
    return metrics.DNS_QUESTIONS.family(prefix, [((row["kind"], row["result"]), row["questions"]) for row in rows])


def pod_links(stats: PodLinksStats, prefix: str) -> Metric:
    """Return the interfaces of pods with the programs, and without."""
    return metrics.POD_LINKS.family(prefix, [(["attached"], stats.interfaces), (["failed"], len(stats.failed))])
