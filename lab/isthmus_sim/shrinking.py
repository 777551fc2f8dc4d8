"""Find fewer events that still break the same invariant: delta debugging, after Zeller and Hildebrandt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrunk(items: Sequence[T], fails: Callable[[Sequence[T]], bool], *, most: int = 200) -> list[T]:
    """The items without parts that ``fails`` does not need; it is called ``most`` times at most."""
    kept, parts, calls = list(items), 2, 0
    while len(kept) >= 2 and calls < most:
        size = max(1, len(kept) // parts)
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            calls += 1
            if fewer and fails(fewer):
                kept, parts = fewer, max(2, parts - 1)
                break
            if calls >= most:
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    return kept
