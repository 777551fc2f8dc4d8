"""How a process runs: one event loop, supervised tasks, an end by SIGTERM or SIGINT.

A process is a set of tasks that never return. :class:`Tasks` is a TaskGroup for them: a task that raises, or returns
though it must not, costs no other task anything and is restarted after a pause. Every group that is opened within a
supervised task writes into the register of the outermost one, so that status, metrics and readiness of a process know
each task that does not work now.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, Final, NamedTuple

from msgspec import Struct

from isthmus import logs
from isthmus.times import timestamp

FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 30.0
"""Seconds before a failed task is started again: doubled with each failure in a row."""
SETTLED: Final = 2.0
"""Seconds of work after which a task that failed is displayed as working, while it has failed seldom."""
SELDOM: Final = 3
"""Failures in a row up to which SETTLED is enough; after more of them, WORKING is needed."""
WORKING: Final = 60.0
"""Seconds of work after which the next failure is the first in a row again."""
MAX_REASON: Final = 300
"""Characters of an exception's message that are displayed."""

log = logs.get("tasks")

Work = Callable[[], Awaitable[object]]
Report = Callable[[str], None]
"""Receives why a task fails, and an empty text when it works again."""


class TaskFailure(Struct, frozen=True, gc=False):
    """A task that does not work now."""

    task: str
    why: str
    since: str
    """When it failed first, RFC 3339."""
    attempts: int
    """Failures in a row."""

    def __str__(self) -> str:
        times = f", {self.attempts} times" if self.attempts > 1 else ""
        return f"the task '{self.task}' fails since {self.since}{times}, and is restarted: {self.why}"


class _Register:
    """The tasks of a process by name: which of them fail now, and how often each of them has failed."""

    def __init__(self, fatal: tuple[type[Exception], ...]) -> None:
        self.fatal = fatal
        self.failing: dict[str, TaskFailure] = {}
        self.failures: Counter[str] = Counter()


class _Scope(NamedTuple):
    register: _Register
    task: str
    """The task that the code runs in; empty outside of every supervised task."""


_scope: ContextVar[_Scope | None] = ContextVar("scope", default=None)


class Tasks:
    """A TaskGroup whose tasks are supervised. The group ends when its body has and all tasks that may end have ended.

    ``fatal``: exceptions that end the process in a task's first run, since it cannot be what it is configured to be;
    in later runs they are failures as all others are. A group within a supervised task inherits them.
    """

    def __init__(self, *, fatal: tuple[type[Exception], ...] = ()) -> None:
        self._register, self._within = _scope.get() or _Scope(_Register(fatal), "")
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        failing = ", ".join(self._register.failing)
        return f"<Tasks {self._within or 'of the process'}: {failing or 'none'} failing>"

    async def __aenter__(self) -> Tasks:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, trace)

    def start(self, name: str, work: Work, *, ends: bool = False, report: Report | None = None) -> asyncio.Task[None]:
        """Run a task again and again, until the task that is returned is cancelled.

        ``ends``: it may return, and is done then; for any other task that is a failure.
        """
        path = f"{self._within}/{name}" if self._within else name
        self._register.failures.setdefault(path, 0)
        supervised = _Supervised(self._register, path, work, ends=ends, report=report)
        task = self._group.create_task(supervised.run(), name=path)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """End the tasks of this group."""
        for task in self._running:
            task.cancel()

    def failing(self) -> Sequence[TaskFailure]:
        """The tasks of the process that do not work now, by name."""
        return [failure for _, failure in sorted(self._register.failing.items())]

    @property
    def failures(self) -> Counter[str]:
        """How often each task of the process has failed."""
        return self._register.failures


class _Supervised:
    """One task and its restarts.

    Each run is a task of its own, so that a CancelledError in :meth:`run` is always our own cancellation: before Python
    3.13 a task in which a TaskGroup failed counts as being cancelled from then on (python/cpython#116720).
    """

    def __init__(self, register: _Register, name: str, work: Work, *, ends: bool, report: Report | None) -> None:
        self._register = register
        self._name = name
        self._work = work
        self._ends = ends
        self._report = report
        self._context = copy_context()
        self._context.run(_scope.set, _Scope(register, name))
        self._attempts = 0
        """Failures in a row."""

    async def run(self) -> None:
        first = True
        try:
            while (error := await self._run_once()) is not None:
                if first and (fatal := _matching(error, self._register.fatal)) is not None:
                    raise fatal
                self._failed(error)
                del error  # with its traceback it would keep all that the task's frames hold, snapshots above all
                first = False
                await asyncio.sleep(min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempts - 1, 30)))
        finally:
            self._works()

    async def _run_once(self) -> Exception | None:
        """Run the task until it fails; ``None`` if it ended and may do so."""
        began = asyncio.get_running_loop().time()
        task = asyncio.create_task(self._attempt(), name=self._name, context=self._context)
        try:
            if self._name in self._register.failing:
                await asyncio.wait([task], timeout=SETTLED if self._attempts <= SELDOM else WORKING)
                if not task.done():
                    self._works()
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await _end(task)
            raise
        if asyncio.get_running_loop().time() - began >= WORKING:
            self._attempts = 0
        if task.cancelled():
            return Ended("it was cancelled")
        if (error := task.exception()) is None:
            return None if self._ends else Ended("it ended, which it must not")
        if not isinstance(error, Exception):
            raise error
        return error

    async def _attempt(self) -> None:
        await self._work()

    def _failed(self, error: Exception) -> None:
        self._attempts += 1
        self._register.failures[self._name] += 1
        before, why = self._register.failing.get(self._name), reason(error)
        since = before.since if before is not None else timestamp()
        self._register.failing[self._name] = TaskFailure(self._name, why, since, self._attempts)
        if before is None or before.why != why:
            log.error("task failed and is restarted", task=self._name, why=why, exc_info=error)
        else:
            log.debug("task failed again", task=self._name, why=why, attempts=self._attempts)
        self._publish(why)

    def _works(self) -> None:
        if self._register.failing.pop(self._name, None) is not None:
            log.info("task works again", task=self._name, failures=self._attempts)
            self._publish("")

    def _publish(self, reason: str) -> None:
        if self._report is not None:
            try:
                self._report(reason)
            except Exception:
                log.exception("failure of a task not reported", task=self._name)


class Ended(Exception):  # noqa: N818
    """A task ended that must never end; the message is how."""


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. To be cancelled meanwhile cancels the task once more: it may take long."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("task failed as it ended", task=task.get_name(), why=reason(error))


def _matching(error: Exception, kinds: tuple[type[Exception], ...]) -> Exception | None:
    """The part of an exception or group that is of these kinds; ``None`` if none is."""
    if isinstance(error, ExceptionGroup):
        return error.subgroup(kinds) if kinds else None
    return error if isinstance(error, kinds) else None


def reason(error: BaseException) -> str:
    """An exception in one line: of a group, its first leaf."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())[:MAX_REASON]
    if isinstance(error, Ended):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def until_told(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine until it ends or a signal tells it to."""
    asyncio.run(_until_told(main))


async def _until_told(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
