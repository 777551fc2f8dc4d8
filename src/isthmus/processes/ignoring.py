"""Writes the pods that are left alone into the kernel's maps, and names them in the status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final

from isthmus.datapath import IgnoredPods
from isthmus.model import tables
from isthmus.statedb import Database, Snapshot

PAUSE: Final = 0.5
"""Seconds between two looks for the cgroup of a new pod."""
INTERVAL: Final = 60.0
"""Seconds between looks while no pod changes: for cgroups that were deleted and made anew."""
NAMED: Final = 5
"""Pods that a sentence names."""


async def keep(db: Database, ignored: IgnoredPods) -> None:
    """Leave the pods alone that the table names, for ever."""
    with contextlib.closing(db.changes(tables.IGNORED_PODS)) as changes:
        while True:
            now, _ = changes.next()
            renew(now, ignored)
            del now
            if ignored.missing:
                await asyncio.sleep(PAUSE)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL):
                        await changes.wait()


def renew(now: Snapshot, ignored: IgnoredPods) -> None:
    """Write the pods that are left alone. Entries of an earlier process stay until the pods are listed."""
    ignored.renew(list(now.all(tables.IGNORED_PODS)), complete=now.initialized(tables.IGNORED_PODS))


def sentence(now: Snapshot, *, missing: Collection[str]) -> str:
    """Name the pods that are left alone; ``missing``: those that the kernel does not know. Empty if there are none."""
    rows = sorted(now.all(tables.IGNORED_PODS), key=lambda row: row.name)
    named = [f"{row.name} ({row.reason})" for row in rows[:NAMED]]
    if len(rows) > NAMED:
        named.append(f"{len(rows) - NAMED} more: isthmus get ignored_pods -A")
    absent = (
        f"; without a cgroup or an entry, and so translated: {', '.join(sorted(missing)[:NAMED])}" if missing else ""
    )
    return ", ".join(named) + absent
