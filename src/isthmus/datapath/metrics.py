"""Calls as Prometheus counts them, from the kernel's counters when it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily


def calls(counters: Iterable[Mapping[str, Any]], prefix: str, *, cluster: str) -> CounterMetricFamily:
    """Calls of this node's pods. ``cluster``: the caller's. A label is empty where there is none: DNS has no service.

    "rescued" and "failed" are outcomes of connects that are in "called" too.
    """
    family = CounterMetricFamily(
        f"{prefix}_calls",
        "Calls of pods by what became of them",
        labels=["service", "source_cluster", "destination_cluster", "verdict"],
    )
    for row in counters:
        family.add_metric([row["service"], cluster, row["cluster"], row["verdict"]], row["calls"])
    return family


def ejections(events: Mapping[tuple[str, str, str], int], prefix: str) -> CounterMetricFamily:
    """How often backends were ejected and answered again since the agent started. By event, cluster and reason."""
    family = CounterMetricFamily(
        f"{prefix}_backend_ejections",
        "Backends that connects were kept from for a time, and that answered again",
        labels=["event", "target_cluster", "reason"],
    )
    for labels, count in sorted(events.items()):
        family.add_metric(list(labels), count)
    return family


def traffic(by_cluster: Mapping[str, tuple[int, int]], prefix: str, *, cluster: str) -> CounterMetricFamily:
    """Payload of TCP connections of pods that have ended. ``cluster``: the caller's."""
    family = CounterMetricFamily(
        f"{prefix}_bytes",
        "Bytes that connections of pods to backends have carried, counted when they end",
        labels=["source_cluster", "destination_cluster", "direction"],
    )
    for name, (sent, received) in sorted(by_cluster.items()):
        family.add_metric([cluster, name, "sent"], sent)
        family.add_metric([cluster, name, "received"], received)
    return family


def records(read: int, lost: int, prefix: str) -> CounterMetricFamily:
    """Flow records that were read, and those that the kernel had no room for."""
    family = CounterMetricFamily(
        f"{prefix}_flow_records", "States of sampled calls by whether they were read", labels=["outcome"]
    )
    family.add_metric(["read"], read)
    family.add_metric(["lost"], lost)
    return family
