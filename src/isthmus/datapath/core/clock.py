"""Unix times of what the kernel's programs note by CLOCK_MONOTONIC (``bpf_ktime_get_ns``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STEP: Final = 0.5
"""Seconds by which a clock has to be off before times move: rows of what is past do not change as it is slewed."""


class BootTime:
    """Unix time when CLOCK_MONOTONIC was 0. It moves as the clock is set: at a node's start, after its pause."""

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._known = wall() - monotonic()

    def __repr__(self) -> str:
        return f"<BootTime {self._known:.1f}>"

    def now(self) -> float:
        """As of now, in seconds."""
        found = self._wall() - self._monotonic()
        if abs(found - self._known) > STEP:
            self._known = found
        return self._known
