"""Received questions that wait for an answer: bounded for each caller, taken in turns.

A socket's buffer is first in, first out, so one caller's flood would delay everybody behind it. It is therefore
emptied into a queue per caller before any question is answered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

SHARE: Final = 64
"""Questions that wait for one caller; the next ones are dropped, as the socket's buffer would drop them."""
CALLERS: Final = 4096
"""Callers with waiting questions at once; bounds memory where source addresses are forged."""

T = TypeVar("T")


class Intake(Generic[T]):
    """A queue per caller. Invariant: no queue is empty, so the first one always has the next question."""

    def __init__(self, *, share: int = SHARE, callers: int = CALLERS) -> None:
        self._share = share
        self._callers = callers
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, caller: str, item: T) -> None:
        """Add a question, or count it as dropped where there is no room for this caller."""
        queue = self._queues.get(caller)
        if queue is None:
            if len(self._queues) >= self._callers:
                self.dropped += 1
                return
            queue = self._queues[caller] = deque()
        if len(queue) >= self._share:
            self.dropped += 1
            return
        queue.append(item)

    def take(self) -> T:
        """The oldest question of the caller whose turn it is."""
        caller, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return item
