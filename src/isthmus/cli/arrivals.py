"""A bounded queue between threads that read and a command that Ctrl-C may end at any moment.

``queue.Queue`` waits on a Condition, in Python: a KeyboardInterrupt between the release of its lock and the end of the
wait becomes "RuntimeError: release unlocked lock". ``queue.SimpleQueue`` waits in C, and has no bound of its own.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Items of threads in the order in which they arrive, at most so many of them unread."""

    def __init__(self, most: int) -> None:
        self._items: SimpleQueue[T] = SimpleQueue()
        self._free: SimpleQueue[None] = SimpleQueue()
        """An entry for each further item that may be put."""
        for _ in range(most):
            self._free.put(None)

    def put(self, item: T) -> None:
        """Add an item; waits while there are as many as there may be."""
        self._free.get()
        self._items.put(item)

    def get(self, timeout: float | None = None) -> T:
        """Return the next item. Raises ``queue.Empty`` after ``timeout`` seconds; ``None`` waits for ever."""
        try:
            # It leaves the queue's lock taken. Where it is free, CPython 3.11 subtracts the time since the call from a
            # time-out before it waits, and takes what is below zero for no time-out at all.
            item = self._items.get_nowait()
        except Empty:
            item = self._items.get(timeout=timeout)
        self._free.put(None)
        return item
