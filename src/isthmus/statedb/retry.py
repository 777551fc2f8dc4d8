"""Retries of one operation: its failures in a row, and the pause before the next attempt."""

from __future__ import annotations

import asyncio

from isthmus.statedb.reconciler import Backoff


class Retry:
    """Attempts of one operation. ``attempts`` counts the failed ones since the last that succeeded."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.attempts = 0

    def __repr__(self) -> str:
        return f"<Retry: {self.attempts} failed in a row>"

    def succeeded(self) -> None:
        """Reset the count of failures."""
        self.attempts = 0

    def failed(self) -> int:
        """Count a failure. Returns the number of failures in a row."""
        self.attempts += 1
        return self.attempts

    async def pause(self) -> None:
        """Sleep for the back-off of the current number of failures."""
        await asyncio.sleep(self._backoff.delay(max(1, self.attempts)))
