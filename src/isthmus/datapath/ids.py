"""Numbers for things in the maps. Zero is nobody's; one given back is not given out again before all others were."""

from __future__ import annotations

from collections.abc import Iterable


class Ids:
    """An allocator. What is in use at the start (restored) is reserved before anything is given out."""

    def __init__(self, used: Iterable[int] = (), *, most: int = 0xFFFF_FFFE) -> None:
        self._used = set(used)
        self._last = max(self._used, default=0)
        self._most = most

    def __len__(self) -> int:
        return len(self._used)

    def __repr__(self) -> str:
        return f"<Ids: {len(self._used)} in use, last {self._last}>"

    def take(self) -> int:
        """A number that nobody has."""
        assert len(self._used) < self._most, "maps are far smaller than the space of numbers"
        candidate = self._last
        while True:
            candidate = candidate % self._most + 1
            if candidate not in self._used:
                break
        self._last = candidate
        self._used.add(candidate)
        return candidate

    def release(self, number: int) -> None:
        """Give a number back."""
        self._used.discard(number)
