"""A stream of items that are in no table. The newest are kept, and readers receive those that follow.

A reader has a bounded queue. Items that do not fit are dropped for this reader and counted, so that a slow reader
costs no other reader anything. What is kept and queued is shared by groups of items (namespaces): one that brings ever
more of them displaces its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Final, Generic, TypeVar

from isthmus.admin.protocol import FeedLine
from isthmus.fair import Path, Shares, allot

R = TypeVar("R")
Group = Callable[[R], str]

KEPT: Final = 2_000
"""Rows that a reader can have of what was before it came."""
UNREAD: Final = 20_000
"""Rows that a reader may leave unread."""


class Window(Generic[R]):
    """At most ``most`` rows in their order, in fair shares of their groups; ``newest`` keeps a group's newest rows.

    It is trimmed when it is read, and when it holds half as many again.
    """

    def __init__(self, most: int, group: Group[R], *, newest: bool) -> None:
        self._most = most
        self._group = group
        self._newest = newest
        self._groups: defaultdict[str, deque[tuple[int, R]]] = defaultdict(deque)
        self._number = 0
        self._count = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Sequence[R]) -> None:
        """Append rows."""
        for number, row in enumerate(rows, self._number):
            self._groups[self._group(row)].append((number, row))
        self._number += len(rows)
        self._count += len(rows)
        if 2 * self._count > 3 * self._most:
            self._trim()

    def rows(self) -> tuple[R, ...]:
        """All rows in their order."""
        self._trim()
        return tuple(row for _, row in sorted(chain.from_iterable(self._groups.values()), key=itemgetter(0)))

    def clear(self) -> None:
        """Forget all rows, and how many were dropped."""
        self._groups.clear()
        self._count = self.dropped = 0

    def _trim(self) -> None:
        if self._count <= self._most:
            return
        counts: dict[Path, int] = {(name,): len(rows) for name, rows in self._groups.items()}
        shares = allot(counts, Shares(self._most, reserve=False))
        for name, rows in [*self._groups.items()]:
            for _ in range(len(rows) - shares.get((name,), 0)):
                rows.popleft() if self._newest else rows.pop()
                self._count -= 1
                self.dropped += 1
            if not rows:
                del self._groups[name]


class Feed(Generic[R]):
    """Rows in the order in which they come. ``off``: why there are none, and how to have some; else empty. ``note``:
    which rows there are, if not all.

    ``group`` returns the group of a row, in which it competes with others for room.
    """

    def __init__(
        self,
        *,
        off: str = "",
        note: str = "",
        kept: int = KEPT,
        unread: int = UNREAD,
        group: Group[R] = lambda row: "",
    ) -> None:
        self.off = off
        self.note = note
        self._group = group
        self._kept = Window(kept, group, newest=True)
        self._unread = unread
        self._readers: set[Reader[R]] = set()
        self.lost = 0
        """Rows that were lost before they came here."""

    def __repr__(self) -> str:
        return f"<Feed: {len(self._kept)} kept, {len(self._readers)} reading>"

    def add(self, rows: Sequence[R], lost: int = 0) -> None:
        """Pass rows on, and how many were lost on their way here."""
        self.lost += lost
        self._kept.add(rows)
        for reader in self._readers:
            reader.add(rows, lost)

    def last(self, count: int) -> FeedLine[R]:
        """The newest rows, and all that were lost."""
        rows = self._kept.rows() if count else ()
        return FeedLine(rows[max(0, len(rows) - count) :], self.lost, self._kept.dropped, self.note)

    @contextmanager
    def reader(self) -> Iterator[Reader[R]]:
        """Yield a reader of the items from now on."""
        reader = Reader(Window(self._unread, self._group, newest=False))
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)


class Reader(Generic[R]):
    """One reader's queue."""

    def __init__(self, window: Window[R]) -> None:
        self._window = window
        self._lost = 0
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Reader: {len(self._window)} unread, {self._lost} lost>"

    def add(self, rows: Sequence[R], lost: int) -> None:
        """Take rows in as far as there is room."""
        self._window.add(rows)
        self._lost += lost
        self._wake.set()

    async def next(self) -> FeedLine[R]:
        """Wait for rows; those that came, and how many did not reach this reader."""
        await self._wake.wait()
        rows = self._window.rows()
        line = FeedLine(rows, self._lost + self._window.dropped)
        self._window.clear()
        self._lost = 0
        self._wake.clear()
        return line
