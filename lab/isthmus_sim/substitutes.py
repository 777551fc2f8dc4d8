"""All that a simulation replaces: clocks, process ids, random numbers, and connections out of a process.

Everything of Isthmus that is replaced is named in :func:`installed`. The code under test is loaded once and never
changed; the names are put back at the end.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from unittest.mock import patch

import structlog

from isthmus import kube, statefile
from isthmus.desired import ApiTarget
from isthmus.etcd.transport import Transport as EtcdTransport
from isthmus.model.tables import CLUSTERS
from isthmus.processes import memory, observing, operator
from isthmus.running import TaskFailure
from isthmus.statedb import Reconciler
from isthmus.statedb.faults import Faults
from isthmus_lab.apiserver import watching
from isthmus_sim.loop import Loop
from isthmus_sim.process import PROCESS

BOOKMARK_EVERY = 60.0
"""Seconds between the bookmarks of a watch, as of a kube-apiserver; the lab's sends them more often."""


class _Now(type):
    """Instances of the real class count as of this one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class _Datetime(datetime, metaclass=_Now):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls.fromtimestamp(time.time(), tz)


class Shown(observing.Shown):
    """The status of a process, read without a socket."""

    @property
    def at_work(self) -> bool:
        """True while the process leads."""
        return self._at_work

    def failing(self) -> Sequence[TaskFailure]:
        """Tasks that fail now."""
        return self._tasks.failing()

    def unhealthy(self) -> list[str]:
        """Complaints of ``isthmus status``: problems, warnings, and peers that are not ready."""
        db = self._view.db
        rows = db.snapshot().all(CLUSTERS) if CLUSTERS.name in db.tables else ()
        peers = [f"{row.name} is {row.state}" for row in rows if row.state not in ("own", "ready")]
        return [*self.problems(), *self._view.warnings(), *peers]


@contextmanager
def installed(
    loop: Loop,
    chance: random.Random,
    *,
    connect: Callable[[Any], Any],
    channel: Callable[[Any, str], Any],
    shown: Callable[[Shown], None],
    level: int = logging.CRITICAL,
) -> Iterator[None]:
    """Replace what would leave the simulation, until the end of the block.

    ``connect`` stands for :func:`isthmus.kube.connect`, ``channel`` for the gRPC channel of an etcd's client; ``shown``
    receives the status of each process that starts.
    """
    pid = os.getpid()

    def current_pid() -> int:
        process = PROCESS.get()
        return process.pid if process is not None else pid

    class Announced(Shown):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            shown(self)

    async def connected(section: Any) -> Any:
        return connect(section)

    write, utime = statefile.write, os.utime

    def written(path: Path, body: bytes, *, version: int) -> None:
        process = PROCESS.get()
        if process is not None and process.dead:
            raise OSError(errno.EIO, "the process was killed")
        write(path, body, version=version)
        utime(path, (loop.time(), loop.time()))

    def touched(path: Any, times: Any = None, **options: Any) -> None:
        utime(path, times or (loop.time(), loop.time()), **options)

    async def no_memory(**options: Any) -> None:
        """Do nothing: all processes share one heap."""
        await asyncio.Event().wait()

    state = random.getstate()
    logging_before = structlog.get_config()
    with ExitStack() as stack:
        for clock in ("time", "monotonic", "perf_counter"):
            stack.enter_context(patch.object(time, clock, loop.time))
        for part in (Reconciler, Faults, ApiTarget):  # their default clocks were bound when they were defined
            defaults: Any = part.__init__.__kwdefaults__
            stack.enter_context(patch.dict(defaults, clock=loop.time))
        stack.enter_context(patch.object(os, "getpid", current_pid))
        stack.enter_context(patch.object(statefile, "write", written))
        stack.enter_context(patch.object(os, "utime", touched))
        stack.enter_context(patch.object(os, "fsync", lambda descriptor: None))  # processes die, machines do not
        stack.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)))
        for module in _with_datetime():
            stack.enter_context(patch.object(module, "datetime", _Datetime))
        stack.enter_context(patch.object(kube, "connect", connected, create=True))
        stack.enter_context(patch.object(EtcdTransport, "_channel", channel))
        stack.enter_context(patch.object(memory, "keep_small", no_memory))
        stack.enter_context(patch.object(operator, "Shown", Announced))
        stack.enter_context(patch.object(watching, "BOOKMARK_EVERY", BOOKMARK_EVERY))
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
        random.seed(chance.getrandbits(64))
        try:
            yield
        finally:
            random.setstate(state)
            structlog.configure(**logging_before)


def _with_datetime() -> list[ModuleType]:
    """Modules of ours that know the class of times, and might ask it for the present one."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("isthmus", "isthmus_lab") and vars(module).get("datetime") is datetime
    ]
