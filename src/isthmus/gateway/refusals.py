"""Connections that a gateway refused, by reason, as its Envoy counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from isthmus.proxy.process import Admin

LOOK_EVERY: Final = 5.0
"""Seconds."""
REASONS: Final = {
    "ssl.fail_verify_error": "certificate",
    "ssl.fail_verify_no_cert": "no certificate",
    "ssl.fail_verify_san": "not allowed",
    "no_filter_chain_match": "unknown SNI",
    "downstream_cx_no_route": "not exported",
    "ssl.connection_error": "handshake",
}
"""By the end of the name of Envoy's counter. A handshake that breaks off for another reason is the last."""
PATTERN: Final = "fail_verify|no_filter_chain_match|no_route|connection_error"


def by_reason(stats: Mapping[str, int]) -> dict[str, int]:
    """The refusals in Envoy's counters of its listener."""
    found = dict.fromkeys(REASONS.values(), 0)
    for name, number in stats.items():
        reason = next((reason for end, reason in REASONS.items() if name.endswith(f".{end}")), None)
        if reason is not None and name.startswith(("listener.gateway.", "tcp.gateway.")):
            found[reason] += number
    return found


class Refusals:
    """Looks at the counters of the Envoys of a directory: two while one is replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.counts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Refusals {self.counts}>"

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        """Take over the counters of all that answer."""
        found = dict.fromkeys(REASONS.values(), 0)
        for path in self._directory.glob("admin-*.sock"):
            for reason, number in by_reason(await Admin(path).stats(PATTERN)).items():
                found[reason] += number
        self.counts = found
