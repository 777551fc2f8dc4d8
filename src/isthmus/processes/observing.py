"""What every process shows of itself: health and metrics over HTTP, tables and status on the admin socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from isthmus.admin import Server, metrics
from isthmus.admin.feed import Feed
from isthmus.admin.monitor import Monitor
from isthmus.admin.protocol import ProcessStatus
from isthmus.config import Config
from isthmus.reflector import Reflector, State
from isthmus.statedb import Database

Ready = Callable[[], str]
"""Why the process is not ready; empty when it is, or stands by for another replica."""


def monitor(
    tasks: asyncio.TaskGroup, config: Config, *, ready: Ready, families: Callable[[], Iterable[Metric]]
) -> None:
    """Serve health and metrics, where an address is configured."""
    if config.monitor.listen:
        tasks.create_task(Monitor(config.monitor.listen, ready=ready, families=families).run(), name="monitor")


def admin(
    tasks: asyncio.TaskGroup,
    config: Config,
    db: Database,
    status: Callable[[], ProcessStatus],
    *,
    timeout: float | None = None,
    feeds: Mapping[str, Feed[Any]] | None = None,
) -> None:
    """Serve tables, status and feeds, where a socket is configured.

    ``timeout``: seconds a list waits for completeness.
    """
    if config.admin.socket:
        wait = config.sync.timeout if timeout is None else timeout
        server = Server(db, config.admin.socket, status=status, feeds=feeds, timeout=wait)
        tasks.create_task(server.run(), name="admin")


def families(prefix: str, db: Database | None, *, leads: str = "") -> list[Metric]:
    """Metrics of tables and clusters; with ``leads``, the help text, also whether this replica is the one at work."""
    found: list[Metric] = []
    if leads:
        leader = GaugeMetricFamily(f"{prefix}_leader", leads)
        leader.add_metric([], db is not None)
        found.append(leader)
    if db is not None:
        found += [*metrics.tables(db, prefix), *metrics.clusters(db.snapshot(), prefix)]
    return found


def waiting_for(sources: Iterable[str]) -> str:
    """A reason not to be ready: the sources that are not complete; empty where all are."""
    found = sorted(sources)
    return f"waiting for {', '.join(found)}" if found else ""


def away(reflectors: Iterable[Reflector[Any]]) -> tuple[str, ...]:
    """A problem for each reason why sources cannot be reached now; what they gave stays in use."""
    found: dict[str, list[str]] = {}
    for each in reflectors:
        if each.state.synced and not each.state.connected:
            found.setdefault(each.state.last_failure, []).append(each.name)
    return tuple(f"{', '.join(names)} away: {why}" for why, names in found.items())


def states(reflectors: Iterable[Reflector[Any]]) -> dict[str, State]:
    """Each reflector's state by its name, as a status lists them."""
    return {reflector.name: reflector.state for reflector in reflectors}
