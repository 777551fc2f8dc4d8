"""Processes of a clusterset as the page of ``isthmus ui`` knows them: rows with defaults, joined by cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus.admin.protocol import key_text
from isthmus.cli.ui.sources import AGENT_TABLES, OPERATOR_TABLES, Counts, Process
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Import
from isthmus.statedb import Table

ECHO = "demo/echo"
TOKEN = "token-of-a-test"


def peer(name: str, **more: Any) -> Cluster:
    """A cluster that is ready."""
    return Cluster(name=ClusterName(name), **({"state": "ready", "since": "2026-11-27T01:00:00Z"} | more))


def imported(name: str = ECHO, *clusters: str) -> Import:
    """An import of these clusters."""
    return Import(
        ServiceName(name),
        clusters=tuple(map(ClusterName, clusters)),
        derived=derived(ServiceName(name)).partition("/")[2],
    )


def backend_key(cluster: str, address: str, service: str = ECHO, port: int = 8080) -> BackendKey:
    """The key of a backend of an import."""
    return BackendKey(derived(ServiceName(service)), ClusterName(cluster), address, port, "TCP")


def backend(cluster: str, address: str, service: str = ECHO, port: int = 8080, **more: Any) -> Backend:
    """A ready backend of an import."""
    key = backend_key(cluster, address, service, port)
    return Backend(key, ("http",), import_of=ServiceName(service), **more)


def process(
    cluster: str,
    rows: Mapping[Table[Any, Any], Iterable[Any]] | None = None,
    *,
    name: str = "agent",
    peers: Sequence[Cluster] = (),
    **more: Any,
) -> Process:
    """A process that answers and has read everything."""
    known = OPERATOR_TABLES if name == "operator" else AGENT_TABLES
    clusters = next(table for table in known if table.name == "clusters")
    filled = {clusters: [Cluster(name=ClusterName(cluster), own=True, state="ready"), *peers], **(rows or {})}
    tables = {table.name: {key_text(table.key(row)): row for row in filled.get(table, ())} for table in known}
    status: dict[str, Any] = {"version": "0.1.0", "problems": [], "warnings": [], "faults": []}
    fields: dict[str, Any] = {"cluster": cluster, "name": name, "tables": tables, "status": status, "since": 100.0}
    return Process(**(fields | more))


def counted(*readings: tuple[float, Mapping[tuple[str, str, str], int]]) -> tuple[Counts, ...]:
    """Readings of a node's counters."""
    return tuple(Counts(time, calls) for time, calls in readings)
