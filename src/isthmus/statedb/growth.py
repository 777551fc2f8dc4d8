"""Dicts that grow one after the other, and not all in the same turn of the loop.

A dict that is full moves to a room of twice the size: 2 ms for 43,690 keys, nearly all of it page faults. A table, its
indexes and whatever follows from it have the same number of rows, so a dozen of them were full within one turn of the
loop, which took 20 ms. Here one that is nearly full moves early, and each at a time of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from isthmus.statedb.ordered import SortedDict

LEAST: Final = 10_000
"""Keys of a dict below which moving takes no time to speak of."""
EVERY: Final = 4
"""Looks, one with each commit or round, of which one is in earnest: it costs ten microseconds."""
REST: Final = 0.01
"""Seconds after a move in which no other begins: longer than a turn of the loop, and so short that a dozen dicts which
are nearly full at the same moment have all moved before they are full."""
_MARK: Final = "\0"
"""A key that no row has. It is text, as most keys are: another type would make a dict of text keys a larger one."""


class Growth:
    """Lets at most one of the dicts that it is shown grow, at every fourth look, and none soon after another.

    ``beside``: of another place of the same event loop, after whose moves this one rests too.
    """

    __slots__ = ("_clock", "_looks", "_rest")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, beside: Growth | None = None) -> None:
        self._clock = clock
        self._looks = 0
        self._rest: list[float] = [0.0] if beside is None else beside._rest
        """Until when no dict moves: one number for all that share it."""

    def look(self, dicts: Iterable[dict[Any, Any]]) -> None:
        """Look whether one of these is nearly full."""
        self._looks += 1
        if self._looks % EVERY == 0 and self._clock() >= self._rest[0]:
            due = next(filter(_nearly_full, dicts), None)
            if due is not None:
                grow(due)
                self._rest[0] = self._clock() + REST


def _room(keys: int) -> int:
    """The size of the hash table of a dict with so many keys, of which two thirds are used (CPython's dictobject.c)."""
    return 1 << (keys * 3 // 2).bit_length()


def _nearly_full(of: dict[Any, Any]) -> bool:
    """Seven eighths full and not moved yet: per place of the hash table a dict has 13 to 20 bytes, and twice that when
    it has."""
    if len(of) < LEAST or isinstance(of, SortedDict):  # which moves nothing: it is in chunks
        return False
    room = _room(len(of))
    return len(of) >= room * 2 // 3 * 7 // 8 and sys.getsizeof(of) < 22 * room


def grow(of: dict[Any, Any]) -> None:
    """Have a dict move. A key that comes and goes uses up a place each time: what is left of them is 0.3 ms."""
    if _MARK not in of:
        for _ in range(_room(len(of)) * 2 // 3 - len(of) + 1):
            of[_MARK] = None
            del of[_MARK]
