"""An event loop that owns time: it never waits, and a seed decides which ready callback runs first.

The clock moves to the next timer when nothing is ready. Of several ready callbacks, those of one owner (a task, a
future, a transport) keep their order, as asyncio promises; owners are interleaved at random. Callbacks of a paused
process are held back until it goes on. There is no selector: whatever waits for a file descriptor or a thread fails
here with :class:`RealWorld`, and is replaced by a double.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from isthmus_sim.process import PROCESS, Process

TICK: Final = 1e-6
"""Seconds that pass with each turn, so that code which waits for the clock to move comes to an end."""
MOST_TURNS: Final = 200_000
"""Turns within one virtual second, beyond which the run is considered to spin."""
THREAD: Final = 0.001
"""Seconds that a call in a thread takes."""


class RealWorld(Exception):  # noqa: N818
    """Something waits for a socket, a signal or a thread, which only exist in real time."""


class Stuck(Exception):  # noqa: N818
    """No callback is ready and no timer is set, or callbacks never end."""


class SimTask(asyncio.Task[Any]):
    """A task that hashes by its number, so that sets of tasks have the same order in each run."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.number = next(self._numbers)
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self.number

    @classmethod
    def restart(cls) -> None:
        """Number from 0 again."""
        cls._numbers = itertools.count()


class Loop(asyncio.BaseEventLoop):
    """An event loop for :meth:`run_until_complete`. ``start`` is the first time on its clock."""

    # Private parts of BaseEventLoop and of its handles, since the standard library has no public ones.
    _ready: deque[Any]
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, chance: random.Random, *, start: float) -> None:
        super().__init__()
        self._now = start
        self._chance = chance
        self._held: list[Any] = []
        self._second, self._turns = 0, 0
        self.digest = 0
        """Digest of the times of all turns, equal for two identical runs."""
        self.errors: list[str] = []
        """Exceptions that nobody handled."""
        self.set_task_factory(_task)
        self.set_exception_handler(self._unhandled)

    def time(self) -> float:
        """Virtual seconds, which the wall clock shows, too."""
        return self._now

    def release(self) -> None:
        """Take handles that were held back into account again, after a process has been resumed."""
        self._ready.extend(self._held)
        self._held.clear()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}" if error is not None else str(context["message"]))

    def _run_once(self) -> None:
        self._advance()
        for handle in self._order(self._take()):
            if not handle.cancelled():
                handle._run()  # as BaseEventLoop does
        if int(self._now) != self._second:
            self._second, self._turns = int(self._now), 0
        self._turns += 1
        self.digest = zlib.crc32(f"{self._now:.6f}".encode(), self.digest)
        if self._turns > MOST_TURNS:
            raise Stuck(f"{MOST_TURNS} turns within a virtual second: something spins")

    def _advance(self) -> None:
        """Move the clock by a tick, or to the next timer if nothing is ready, and make due timers ready."""
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False
        self._now += TICK
        if not self._ready and not self._stopping:
            if not timers:
                raise Stuck("nothing is ready and no timer is set")
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._ready.append(timer)

    def _take(self) -> list[Any]:
        """Return the ready handles but for those of paused processes."""
        ready, self._ready = self._ready, deque()
        taken: list[Any] = []
        for handle in ready:
            owner: Process | None = handle._context.get(PROCESS)
            (self._held if owner is not None and owner.paused else taken).append(handle)
        return taken

    def _order(self, handles: list[Any]) -> Iterable[Any]:
        if len(handles) < 2:
            return handles
        queues: dict[int, deque[Any]] = {}
        turns: list[tuple[int, deque[Any]]] = []
        for handle in handles:
            owner = getattr(handle._callback, "__self__", None)
            queue = queues.setdefault(id(owner), deque())
            queue.append(handle)
            turns.append((owner.number if isinstance(owner, SimTask) else -1, queue))
        if len(queues) > 1:
            turns.sort(key=_number)  # sets of waiters wake them in another order in each run
            self._chance.shuffle(turns)
        return [queue.popleft() for _, queue in turns]

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call the function here, a moment later: a thread would run in real time."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)

        self.call_later(THREAD, call)
        return future

    def _process_events(self, event_list: Any) -> None:
        raise RealWorld("a selector")

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Fail: names are not resolved in a simulation."""
        raise RealWorld(f"the address of {host}")

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: sockets are doubles in a simulation."""
        raise RealWorld("a connection")

    async def create_datagram_endpoint(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: sockets are doubles in a simulation."""
        raise RealWorld("a datagram socket")


def _number(turn: tuple[int, deque[Any]]) -> int:
    return turn[0]


def _task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    context: contextvars.Context | None = options.pop("context", None)
    return SimTask(work, loop=loop, context=context, **options)
