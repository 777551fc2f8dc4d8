"""One process, followed over its admin socket by threads: a command may reach it through kubectl, which blocks.

What was last known stays while the process does not answer, with the reason: the page shows it as of then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.admin.protocol import TableLine
from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.model import tables
from isthmus.model.flows import Flow
from isthmus.statedb import Table

AGENT_TABLES: Final[tuple[Table[Any, Any], ...]] = (
    tables.CLUSTERS, tables.IMPORTS, tables.BACKENDS, tables.PLANS, tables.FAILURES, tables.CALLER_FAILURES,
    tables.PROBES, tables.POLICIES, tables.ROUTES, tables.DRAINING, tables.GATEWAY_CHECKS, tables.REFUSED_GATEWAYS,
    tables.NODES, tables.FAULTS,
)  # fmt: skip
OPERATOR_TABLES: Final[tuple[Table[Any, Any], ...]] = (
    tables.CLUSTERS, tables.OWN_EXPORTS, tables.EXPORTS, tables.REFUSED_RECORDS, tables.PEER_REFUSALS,
    tables.OVER_QUOTA, tables.FAULTS,
)  # fmt: skip
OTHER_TABLES: Final[tuple[Table[Any, Any], ...]] = (tables.CLUSTERS, tables.FAULTS)
"""Tables of a process that is neither, such as a gateway."""
FLOW_ROWS: Final = tuple[Flow, ...]


class Report(Struct, frozen=True):
    """Fields of a process's status that the page uses. A process of another release may lack some."""

    version: str = ""
    problems: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    place: dict[str, Any] | None = None


for _type in (FLOW_ROWS, Report, *{table.row for table in (*AGENT_TABLES, *OPERATOR_TABLES)}):
    msgspec.json.Decoder(_type)  # before any thread: msgspec 0.22 crashes if two meet a type for the first time at once

POLL: Final = 2.0
"""Seconds between two readings of a process's status and counters."""
SILENT: Final = 4.0
"""Seconds without an answer after which a process counts as hung. Through kubectl the socket's own bound holds."""
RETRY: Final = 2.0
"""Seconds before a process that does not answer is asked again."""
FLOWS: Final = 2_000
"""Flows that are kept of each process, as many as an agent keeps itself."""
SAMPLES: Final = 6
"""Readings of counters over which a rate is taken."""

EARLIER: Final = "it is of an earlier release, whose tables cannot be followed together"

Rows = Mapping[str, Any]
"""Rows of one table by key text."""


class Counts(Struct, frozen=True):
    """One reading of the counted calls of a node's pods."""

    time: float
    """Unix time, s."""
    calls: Mapping[tuple[str, str, str], int]
    """Counts by service and port, cluster of the backend, and verdict."""


class Process(Struct, frozen=True, kw_only=True):
    """State of a process at one moment, as far as it is known."""

    cluster: str
    """Its cluster, by its own row; the name by which it is asked while that is not known."""
    name: str
    """'agent', 'operator' or 'gateway'."""
    place: str = ""
    """Node or pod, if a cluster has several processes of the name."""
    tables: Mapping[str, Rows] = {}
    pending: Mapping[str, tuple[str, ...]] = {}
    """Sources whose rows a table still lacks, by table; a table that was never read is absent from ``tables``."""
    status: Mapping[str, Any] = {}
    error: str = ""
    """Reason why it does not answer now; empty if it does."""
    since: float = 0.0
    """Unix time of the last answer before ``error``; 0 if there was none."""
    counts: tuple[Counts, ...] = ()
    """Readings, oldest first; none if calls are not counted there."""
    flows_off: str = ""
    """Reason why there are no flows; empty if there are."""
    unreadable: Mapping[str, str] = {}
    """A reason for each table with a row that this version cannot read."""

    def rows(self, table: Table[Any, Any]) -> Rows:
        """Rows of a table by key; none if it was not read."""
        return self.tables.get(table.name, {})

    def knows(self, table: Table[Any, Any]) -> bool:
        """True if a table was read and lacks no source."""
        return table.name in self.tables and not self.pending.get(table.name)


class Source:
    """Follows a process from :meth:`start` until the command ends. ``words`` select its cluster for other commands."""

    def __init__(
        self, socket: Socket, *, cluster: str, name: str, words: tuple[str, ...], changed: Callable[[], None]
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.words = words
        self._socket = socket
        self._changed = changed
        self._lock = threading.Lock()
        self._tables: dict[str, dict[str, Any]] = {}
        self._pending: dict[str, tuple[str, ...]] = {}
        self._unreadable: dict[str, str] = {}
        self._status: Mapping[str, Any] = {}
        self._errors: dict[str, str] = {}
        """Reason why each of the readers fails now."""
        self._answered = 0.0
        self._counts: deque[Counts] = deque(maxlen=SAMPLES)
        self._flows: deque[Flow] = deque(maxlen=FLOWS)
        self._flows_off = ""
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"<Source {self.cluster}/{self.name}>"

    def start(self) -> None:
        """Start the readers, which end with the command."""
        readers = [("watch", self._watch), ("status", self._poll)]
        if self.name == "agent":
            readers.append(("flows", self._follow_flows))
        for name, read in readers:
            threading.Thread(
                name=f"{name} of {self.cluster}/{self.name}",
                target=self._keep,
                args=(name, read, self._socket.clone()),
                daemon=True,
            ).start()

    def stop(self) -> None:
        """End the readers, each after what it waits for."""
        self._ended.set()

    def process(self) -> Process:
        """Return what is known now."""
        with self._lock:
            own = [row for row in self._tables.get(tables.CLUSTERS.name, {}).values() if row.own]
            place = self._status.get("place") or {}
            return Process(
                cluster=own[0].name if own else self.cluster,
                name=self.name,
                place=place.get("node", "") or "",
                tables={name: dict(rows) for name, rows in self._tables.items()},
                pending=dict(self._pending),
                status=self._status,
                error=next(filter(None, self._errors.values()), ""),
                since=self._answered,
                counts=tuple(self._counts),
                flows_off=self._flows_off,
                unreadable=dict(self._unreadable),
            )

    def flows(self, service: str) -> list[Flow]:
        """Return the flows of a service that are remembered, oldest first."""
        with self._lock:
            return [flow for flow in self._flows if flow.service.rpartition(":")[0] == service]

    def _keep(self, reader: str, read: Callable[[Socket], None], socket: Socket) -> None:
        while not self._ended.is_set():
            try:
                read(socket)
                self._set_error(reader, "the process has ended")
            except NoTable as error:
                self._set_error(reader, EARLIER if reader == "watch" else str(error))
            except QueryError as error:
                self._set_error(reader, str(error))
            except Exception as error:  # a thread that ended would leave what it read last, as if it were so now
                self._set_error(reader, f"its answer cannot be read: {type(error).__name__}: {error}")
            socket.close()
            self._ended.wait(RETRY)

    def _set_error(self, reader: str, error: str) -> None:
        with self._changing():
            if reader != "flows":  # whose absence is shown where flows are
                self._errors[reader] = error
                self._counts.clear()  # a rate over the time without answers would be none of now
            else:
                self._flows_off = error

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            yield
        self._changed()

    def _watch(self, socket: Socket) -> None:
        known = {"agent": AGENT_TABLES, "operator": OPERATOR_TABLES}.get(self.name, OTHER_TABLES)
        served = socket.tables()
        by_name = {table.name: table for table in known if table.name in served}
        with self._lock:  # a process of another release may have fewer tables than the one before
            for name in self._tables.keys() - by_name:
                del self._tables[name]
        for line in socket.watch([*by_name]):
            with self._changing():
                self._errors["watch"] = line.expired
                self._take(by_name[line.table], line)

    def _take(self, table: Table[Any, Any], line: TableLine[Any]) -> None:
        if line.list is not None:
            self._tables[table.name] = {}
            self._unreadable.pop(table.name, None)
            self._pending[table.name] = tuple(line.list.pending)
            changes = list(zip(line.list.keys, line.list.rows, strict=True))
        else:
            changes = [(event.key, event.row) for event in line.events]
        rows = self._tables.setdefault(table.name, {})
        for key, row in changes:
            rows.pop(key, None)
            if row is not None:
                try:
                    rows[key] = msgspec.convert(row, table.row)
                except msgspec.ValidationError as error:
                    self._unreadable[table.name] = f"table {table.name}: {error}"

    def _poll(self, socket: Socket) -> None:
        while not self._ended.is_set():
            status = socket.status(timeout=SILENT)
            msgspec.convert(status, Report)
            counts = self._counted(socket) if self.name == "agent" else None
            with self._changing():
                self._status, self._errors["status"] = status, ""
                if not self._errors.get("watch"):
                    self._answered = time.time()
                if counts is None or (self._counts and counts.time <= self._counts[-1].time):  # the clock was set back
                    self._counts.clear()
                if counts is not None:
                    self._counts.append(counts)
            self._ended.wait(POLL)

    def _counted(self, socket: Socket) -> Counts | None:
        try:
            rows = socket.counters("calls")
        except NoTable:  # a process of an earlier version
            return None
        calls: dict[tuple[str, str, str], int] = {}
        for row in rows:
            key = str(row["service"]), str(row["cluster"]), str(row["verdict"])
            calls[key] = calls.get(key, 0) + bounds.count(row["calls"], most=bounds.MAX_INT64)
        return Counts(time.time(), calls)

    def _follow_flows(self, socket: Socket) -> None:
        for line in socket.feed("flows", last=FLOWS, follow=True):
            flows = msgspec.convert(line.rows, FLOW_ROWS)
            with self._lock:
                self._flows.extend(flows)
                self._flows_off = ""
