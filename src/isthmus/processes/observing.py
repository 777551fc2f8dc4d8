"""Observability of every process: health and metrics over HTTP, tables and status on the admin socket.

A process is shown from its first moment on: while it waits for a lease, or for an API server that does not answer, its
status, readiness and metrics have the reason. One list of problems decides what all of them show.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs
from prometheus_client.metrics_core import Metric

from isthmus import __version__, kube, metrics
from isthmus.admin import Server
from isthmus.admin import metrics as table_metrics
from isthmus.admin.feed import Feed
from isthmus.admin.machine import measure
from isthmus.admin.monitor import Monitor
from isthmus.admin.protocol import ProcessStatus
from isthmus.admin.server import Counters
from isthmus.config import Config
from isthmus.model.tables import CLUSTERS, FAULTS
from isthmus.processes import faults, memory
from isthmus.reflector import Reflector, State
from isthmus.running import TaskFailure, Tasks
from isthmus.statedb import Database, ReconcilerStats

Texts = Callable[[], Iterable[str]]


def _none() -> tuple[str, ...]:
    return ()


class View(Struct, frozen=True, kw_only=True):
    """A process as others see it, while it is at work or while it is not."""

    db: Database = msgspec.field(default_factory=Database)
    status: Callable[[], ProcessStatus] = ProcessStatus
    """Its status but for problems and warnings."""
    problems: Texts = _none
    """Reasons why it does not do all of its work, a sentence each."""
    imminent: Texts = _none
    """Reasons why it soon will not: displayed as problems, but the process stays ready."""
    warnings: Texts = _none
    """Future problems, unless an operator acts."""
    awaited: Texts = _none
    """Sources whose first complete lists it needs before it is ready."""
    families: Callable[[], Iterable[Metric]] = tuple
    """Metrics that only this process has."""
    feeds: Mapping[str, Feed[Any]] = {}
    counters: Counters = {}
    list_timeout: float = 60.0
    """Seconds for which a list waits for a table to be complete."""
    unready: Texts | None = None
    """Problems that make it unready (``None`` if each does), for a process that gets calls only while it is ready."""


class Shown:
    """The admin socket and the monitor of a process. ``leader``: True for a process that stands by until it leads.

    The socket is taken at once, and so before the process touches anything that a second one like it, which finds the
    socket taken and ends, must leave as it is.
    """

    def __init__(self, tasks: Tasks, config: Config, prefix: str, *, leader: bool = False) -> None:
        self._tasks = tasks
        self._prefix = prefix
        self._leader = leader
        self._table_metrics = config.monitor.tables
        self._directories = (config.clusterset.state, config.proxy.directory, str(Path(config.admin.socket).parent))
        self._at_work = False
        self._view = self._idle = View(problems=lambda: ("it is starting",))
        self._server: Server | None = None
        tasks.start("memory", memory.keep_small)
        if config.admin.socket:
            self._server = Server(self._view.db, config.admin.socket, status=self.status)
            self._server.claim()
            tasks.start("admin", self._server.run)
        if config.monitor.listen:
            section = config.monitor
            monitor = Monitor(section.listen, ready=self._readiness, families=self._families, metrics=section.metrics)
            tasks.start("monitor", monitor.run)

    def __repr__(self) -> str:
        return f"<Shown: {'at work' if self._at_work else 'not at work'}>"

    def show(self, view: View) -> None:
        """Show a process at work, until :meth:`hide`."""
        self._at_work = True
        self._set(view)

    def hide(self) -> None:
        """Show a process that is not at work."""
        self._at_work = False
        self._set(self._idle)

    def idle(self, view: View) -> None:
        """Set what is shown of the process while it is not at work: what it waits for."""
        self._idle = view
        if not self._at_work:
            self._set(view)

    @property
    def at_work(self) -> bool:
        """True while the process does what it is for, such as leading."""
        return self._at_work

    def failing(self) -> Sequence[TaskFailure]:
        """Tasks of the process that do not work now."""
        return self._tasks.failing()

    def _set(self, view: View) -> None:
        self._view = view
        if self._server is not None:
            self._server.show(
                view.db, status=self.status, feeds=view.feeds, counters=view.counters, timeout=view.list_timeout
            )

    def problems(self) -> tuple[str, ...]:
        """Every problem of the process, a sentence each."""
        return (*self._hindering(), *self._view.imminent())

    def _hindering(self) -> tuple[str, ...]:
        db = self._view.db
        bugs = filter(None, [faults.problem(db.snapshot())] if FAULTS.name in db.tables else [])
        return (*self._view.problems(), *map(str, self._tasks.failing()), *bugs)

    def status(self) -> ProcessStatus:
        """The status of the process, with its problems, warnings and faults."""
        view = self._view
        rows = faults.sentences(view.db.snapshot()) if FAULTS.name in view.db.tables else ()
        return structs.replace(
            view.status(),
            problems=self.problems(),
            warnings=tuple(view.warnings()),
            faults=rows,
            machine=measure(self._directories),
        )

    def _readiness(self) -> tuple[str, str]:
        """Return the reason why the process is not ready (empty if it is), and its other problems."""
        view = self._view
        hindering = self._hindering() if view.unready is None else tuple(view.unready())
        warnings = [each for each in self.problems() if each not in hindering]
        detail = "; ".join(filter(None, (waiting_for(view.awaited()), *hindering)))
        return detail, "; ".join((*warnings, *view.warnings()))

    def _families(self) -> Iterable[Metric]:
        view, prefix = self._view, self._prefix
        yield metrics.BUILD_INFO.family(prefix, [((__version__, platform.python_version()), 1)])
        if self._leader:
            yield metrics.LEADER.value(prefix, self._at_work)
        yield metrics.PROBLEMS.value(prefix, len(self.problems()))
        yield metrics.AWAITED.value(prefix, len(tuple(view.awaited())))
        yield from task_families(prefix, self._tasks)
        if self._table_metrics:
            yield from table_metrics.tables(view.db, prefix)
        if CLUSTERS.name in view.db.tables:
            yield from table_metrics.clusters(view.db.snapshot(), prefix)
        if FAULTS.name in view.db.tables:
            yield faults.family(prefix, view.db.snapshot())
        yield from view.families()


def task_families(prefix: str, tasks: Tasks) -> list[Metric]:
    """Metrics of supervised tasks: failures so far, and which of them do not work now."""
    now = {each.task for each in tasks.failing()}
    counts = sorted(tasks.failures.items())
    return [
        metrics.TASK_FAILURES.family(prefix, (([name], count) for name, count in counts)),
        metrics.TASK_FAILING.family(prefix, (([name], name in now) for name, _ in counts)),
    ]


def source_families(prefix: str, reflectors: Iterable[Reflector[Any]]) -> list[Metric]:
    """Metrics of the sources that a process follows."""
    states = [(reflector.name, reflector.state) for reflector in reflectors]
    return [
        metrics.SOURCE_CONNECTED.family(prefix, (([name], state.connected) for name, state in states)),
        metrics.SOURCE_FAILURES.family(prefix, (([name], state.failures) for name, state in states)),
    ]


def reconciler_families(prefix: str, reconcilers: Mapping[str, ReconcilerStats]) -> list[Metric]:
    """Metrics of reconcilers: failing rows, waiting rows, and rounds so far."""
    stats = sorted(reconcilers.items())
    return [
        metrics.RECONCILER_FAILING.family(prefix, (([name], numbers.failing) for name, numbers in stats)),
        metrics.RECONCILER_WAITING.family(prefix, (([name], numbers.waiting) for name, numbers in stats)),
        metrics.RECONCILER_ROUNDS.family(prefix, (([name], numbers.rounds) for name, numbers in stats)),
    ]


def waiting_for(sources: Iterable[str]) -> str:
    """A reason not to be ready: the sources that are not complete; empty if all are."""
    names = sorted(sources)
    return f"waiting for {', '.join(names)}" if names else ""


def away(reflectors: Iterable[Reflector[Any]], client: kube.Client | None = None) -> tuple[str, ...]:
    """A problem for each reason why sources cannot be reached now; what they gave stays in use.

    ``client``: of the API server that they follow. If it does not answer, that is the one reason for all of them.
    """
    names_by_reason: dict[str, list[str]] = {}
    if client is not None and (problems := client.problems()):
        return tuple(problems)
    for reflector in reflectors:
        if not reflector.state.connected and reflector.state.last_failure:
            names_by_reason.setdefault(reflector.state.last_failure, []).append(reflector.name)
    return tuple(f"{', '.join(names)} away: {why}" for why, names in names_by_reason.items())


def states(reflectors: Iterable[Reflector[Any]]) -> dict[str, State]:
    """Each reflector's state by its name, as a status lists them."""
    return {reflector.name: reflector.state for reflector in reflectors}
