"""How a peer does: its row in ``clusters``, and how long it has been away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from isthmus import logs
from isthmus.clusterset.wire import format_time
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.model.tables import CLUSTERS
from isthmus.statedb import Database, WriteTxn

log = logs.get("clusterset")


def wall_clock() -> datetime:
    """The time of day, for people."""
    return datetime.now(UTC)


class Card:
    """The row of a peer in ``clusters``; written when it changes."""

    def __init__(self, db: Database, name: ClusterName, *, now: Callable[[], datetime]) -> None:
        self._db = db
        self.now = now
        self.row = Cluster(name=name, since=format_time(now()))

    def say(self, txn: WriteTxn | None = None, **changes: Any) -> None:
        """Change the row; a new state gets the time of now where none is given."""
        if "state" in changes and changes["state"] != self.row.state:
            changes.setdefault("since", format_time(self.now()))
            log.info("cluster", name=self.row.name, state=changes["state"], reason=changes.get("reason", ""))
        self.row = structs.replace(self.row, **changes)
        if txn is not None:
            txn.put(CLUSTERS, self.row)
            return
        with self._db.write() as own:
            own.put(CLUSTERS, self.row)

    def fail(self, reason: str, **changes: Any) -> None:
        """Change the row: it was not to be reached now, and why."""
        when = format_time(self.now())
        self.say(reason=reason, last_failure=when, last_failure_reason=reason, **changes)


def _clock() -> float:
    return asyncio.get_running_loop().time()


class Absence:
    """How long a peer has been out of reach, and when that is longer than what it last said is good for."""

    def __init__(self, lifetime: float) -> None:
        self._lifetime = lifetime
        self._since: float | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return "<Absence: none>" if self._since is None else f"<Absence for {_clock() - self._since:.0f} s>"

    def begin(self, *, ago: float = 0.0) -> None:
        """It is away, since so many seconds. Saying it again changes nothing."""
        if self._since is None:
            self._since = _clock() - ago
            self._changed.set()

    def end(self) -> None:
        """It is back."""
        self._since = None
        self._changed.set()

    async def outlasts_lifetime(self) -> None:
        """Return when it has been away for the lifetime; never where that is 0."""
        while True:
            self._changed.clear()
            left = self._since + self._lifetime - _clock() if self._since is not None and self._lifetime else None
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return

    async def ends(self) -> None:
        """Return when it is back."""
        while self._since is not None:
            self._changed.clear()
            await self._changed.wait()
