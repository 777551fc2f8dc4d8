"""Unix times of the kernel's CLOCK_MONOTONIC timestamps (``bpf_ktime_get_ns``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STEP: Final = 0.5
"""Smallest step of the wall clock, in seconds, that moves times: slewing does not change rows about the past."""


class BootTime:
    """Unix time at which CLOCK_MONOTONIC was 0. It changes when the wall clock is set: at boot, after a suspend."""

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._current = wall() - monotonic()

    def __repr__(self) -> str:
        return f"<BootTime {self._current:.1f}>"

    def current(self) -> float:
        """The Unix time in seconds, by the current wall clock."""
        measured = self._wall() - self._monotonic()
        if abs(measured - self._current) > STEP:
            self._current = measured
        return self._current
