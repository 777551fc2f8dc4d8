"""What happens one after the other and is in no table: the newest are kept, readers get what comes.

A reader has a bounded queue. What finds no room there is lost to it and counted, so that a slow reader costs no
other reader anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from isthmus.admin.protocol import FeedLine

R = TypeVar("R")

KEPT: Final = 2_000
"""Rows that a reader can have of what was before it came."""
UNREAD: Final = 20_000
"""Rows that a reader may leave unread."""


class Feed(Generic[R]):
    """Rows in the order in which they come. ``off``: why there are none, and how to have some; else empty."""

    def __init__(self, *, off: str = "", kept: int = KEPT, unread: int = UNREAD) -> None:
        self.off = off
        self._kept: deque[R] = deque(maxlen=kept)
        self._unread = unread
        self._readers: set[Reader[R]] = set()
        self.lost = 0
        """Rows that were lost before they came here."""

    def __repr__(self) -> str:
        return f"<Feed: {len(self._kept)} kept, {len(self._readers)} reading>"

    def add(self, rows: Sequence[R], lost: int = 0) -> None:
        """Pass rows on, and how many were lost on their way here."""
        self.lost += lost
        self._kept.extend(rows)
        for reader in self._readers:
            reader.add(rows, lost)

    def last(self, count: int) -> FeedLine[R]:
        """The newest rows, and all that were lost."""
        return FeedLine(tuple(self._kept)[max(0, len(self._kept) - count) :] if count else (), self.lost)

    @contextmanager
    def reader(self) -> Iterator[Reader[R]]:
        """What comes from now on."""
        reader: Reader[R] = Reader(self._unread)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)


class Reader(Generic[R]):
    """One reader's queue."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: list[R] = []
        self._lost = 0
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Reader: {len(self._rows)} unread, {self._lost} lost>"

    def add(self, rows: Sequence[R], lost: int) -> None:
        """Take rows in as far as there is room."""
        room = self._most - len(self._rows)
        self._rows.extend(rows[:room])
        self._lost += lost + max(0, len(rows) - room)
        self._wake.set()

    async def next(self) -> FeedLine[R]:
        """Wait for rows; those that came, and how many did not reach this reader."""
        await self._wake.wait()
        line = FeedLine(tuple(self._rows), self._lost)
        self._rows, self._lost = [], 0
        self._wake.clear()
        return line
