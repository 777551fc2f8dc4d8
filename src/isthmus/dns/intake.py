"""Received questions that wait for an answer: bounded for each caller, taken in turns.

A socket's buffer is first in, first out, so one caller's flood would delay everybody behind it. It is therefore
emptied into a queue per caller before any question is answered. Namespaces take turns, and within one its callers: a
namespace of many pods is served as often as one of a single pod.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

SHARE: Final = 64
"""Questions that wait for one caller; the next ones are dropped, as the socket's buffer would drop them."""
CALLERS: Final = 4096
"""Callers with waiting questions at once; bounds memory where source addresses are forged."""

T = TypeVar("T")

Queues = OrderedDict[str, deque[T]]
"""Waiting questions by caller, of one namespace. The first caller is served next."""


class Intake(Generic[T]):
    """A queue per caller. Invariant: no queue is empty, so the first one always has the next question."""

    def __init__(self, *, share: int = SHARE, callers: int = CALLERS) -> None:
        self._share = share
        self._room = callers
        self._namespaces: OrderedDict[str, Queues[T]] = OrderedDict()
        self._callers = 0
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def put(self, caller: str, item: T, *, namespace: str = "") -> None:
        """Add a question, or count it as dropped where there is no room for this caller."""
        queues = self._namespaces.get(namespace)
        queue = queues.get(caller) if queues is not None else None
        if queue is None:
            if self._callers >= self._room and not self._make_room(len(queues) if queues is not None else 0):
                self.dropped += 1
                return
            queues = self._namespaces.setdefault(namespace, OrderedDict())
            queue = queues[caller] = deque()
            self._callers += 1
        if len(queue) >= self._share:
            self.dropped += 1
            return
        queue.append(item)

    def take(self) -> T:
        """The oldest question of the caller whose turn it is."""
        namespace, queues = self._namespaces.popitem(last=False)
        caller, queue = queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            queues[caller] = queue
        else:
            self._callers -= 1
        if queues:
            self._namespaces[namespace] = queues
        return item

    def _make_room(self, callers: int) -> bool:
        """Drop a caller of the namespace with most waiting callers, unless that has no more than ``callers`` + 1."""
        queues = max(self._namespaces.values(), key=len)
        if len(queues) <= callers + 1:
            return False
        self.dropped += len(queues.popitem()[1])
        self._callers -= 1
        return True
