"""Upkeep of the own etcd: a database that has reached its quota is cured, and a file that is mostly unused shrinks.

etcd counts the file, not the data in it, against its quota, and refuses all writes from then on, until the history is
compacted, the file defragmented and the alarm disarmed. All three are safe for a cache: they drop no current value.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from isthmus import logs
from isthmus.etcd import EtcdError, Session
from isthmus.etcd.values import Status
from isthmus.reflector import Expired, Transient

LOOK_EVERY: Final = 10.0
"""Seconds between two looks. Meanwhile nothing is published; what is published stays."""
TIMEOUT: Final = 120.0
"""Seconds for a compaction or defragmentation: a file of 512 MiB takes some, on a slow disk many."""
WORTHWHILE: Final = 64 << 20
"""Bytes from which a file is defragmented where less than half of it is in use: etcd answers nothing meanwhile."""
NOSPACE: Final = "NOSPACE"

log = logs.get("keys")


class Upkeep:
    """Keeps the file of one member small. ``problem`` is the reason why it refuses writes, empty if it takes them."""

    def __init__(self) -> None:
        self.problem = ""
        self.cures = 0

    def __repr__(self) -> str:
        return f"<Upkeep: {self.problem or 'nothing to do'}, {self.cures} cures>"

    async def run(self, root: Session, *, every: float = LOOK_EVERY) -> None:
        """Look, for ever."""
        while True:
            try:
                await self.look(root)
            except (Transient, Expired, EtcdError) as error:
                log.debug("no upkeep of the own etcd", why=str(error))  # the task of its users reports that
            await asyncio.sleep(every)

    async def look(self, root: Session) -> str:
        """Cure or shrink, where it is needed; returns what was done, empty if nothing."""
        status = await root.status()
        if full(status):
            self.problem = "the own etcd has reached its quota and refuses writes (NOSPACE); it is being cured"
            log.warning("own etcd refuses writes", alarms=status.alarms, size=status.db_size, in_use=status.in_use)
            with suppress(Expired):  # it is compacted up to here already
                await root.compact(status.revision, timeout=TIMEOUT)
            await root.defragment(timeout=TIMEOUT)
            await root.disarm(status.member)
            after = await root.status()
            self.cures += 1
            log.warning("own etcd accepts writes again", before=status.db_size, size=after.db_size)
        elif status.db_size >= WORTHWHILE and 0 < status.in_use < status.db_size / 2:
            await root.defragment(timeout=TIMEOUT)
            log.info("own etcd defragmented", before=status.db_size, in_use=status.in_use)
            return "defragmented"
        done, self.problem = "cured" if self.problem else "", ""
        return done


def full(status: Status) -> bool:
    """True if a member refuses writes because its file has reached the quota."""
    return any(NOSPACE in alarm for alarm in status.alarms)
