"""How often an object that another writer keeps changing is set right: a few times at once, then ever more rarely."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

CORRECTIONS_AT_ONCE: Final = 3
"""Corrections of one object without a pause: an edit by hand is set right at once."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
"""Seconds between two corrections: doubling from the first to the longest."""
FORGET: Final = 900.0
"""Seconds without a correction after which an object counts as left alone. Longer than the longest pause."""


class _Record(NamedTuple):
    corrections: int
    last: float


class Contention:
    """Counts corrections by object. Bounded by the number of objects that were corrected within FORGET."""

    def __init__(self) -> None:
        self._records: dict[Hashable, _Record] = {}
        self.total = 0

    def __repr__(self) -> str:
        return f"<Contention: {self.total} corrections, {len(self._records)} objects>"

    def corrections(self, key: Hashable) -> int:
        """How often an object has been corrected lately."""
        record = self._records.get(key)
        return record.corrections if record is not None else 0

    def wait(self, key: Hashable, *, now: float) -> float:
        """Seconds until an object may be corrected; 0 where it may be at once."""
        record = self._records.get(key)
        if record is None or now - record.last >= FORGET or record.corrections < CORRECTIONS_AT_ONCE:
            return 0.0
        doublings = min(record.corrections - CORRECTIONS_AT_ONCE, 30)
        return max(0.0, record.last + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**doublings) - now)

    def corrected(self, key: Hashable, *, now: float) -> None:
        """An object is corrected now."""
        stale = [other for other, each in self._records.items() if now - each.last >= FORGET]
        for other in stale:
            del self._records[other]
        self._records[key] = _Record(self.corrections(key) + 1, now)
        self.total += 1

    def forget(self, key: Hashable) -> None:
        """Nothing is wanted of an object any more."""
        self._records.pop(key, None)
