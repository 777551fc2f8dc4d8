"""Cuts established connections of this node's pods that an ExportPolicy forbids, where it asks for that."""

from __future__ import annotations

import asyncio
from typing import Final

from isthmus import logs
from isthmus.datapath import Datapath
from isthmus.datapath.identity.established import Connection
from isthmus.identity.established import cuts, forbidden
from isthmus.model import tables
from isthmus.model.names import ClusterName
from isthmus.statedb import Database, Snapshot

LOOK: Final = 0.25
"""Seconds between two looks at the policies and guards."""
AGAIN: Final = 10.0
"""Seconds between two looks at connections while only addresses and numbers change, some of which arrive late."""
REST: Final = 9
"""Pause after a look, as a multiple of its time up to AGAIN: a tenant's policy makes the agent look at all pods."""
BY_POLICY: Final = (tables.EXPORT_POLICIES, tables.GUARDS)
BY_CALLERS: Final = (tables.CALLER_ADDRESSES, tables.IDENTITIES)

AT_ONCE: Final = 100
"""Connections that are judged in one turn of the loop."""

log = logs.get("identity")


class Cutting:
    """Cuts connections while :meth:`run` runs. Connections are listed only if a policy cuts."""

    def __init__(self, db: Database, datapath: Datapath, cluster: ClusterName) -> None:
        self._db = db
        self._datapath = datapath
        self._cluster = cluster
        self.cut = 0

    def __repr__(self) -> str:
        return f"<Cutting: {self.cut} cut>"

    async def run(self) -> None:
        """Follow policies, guards and callers, for ever."""
        seen: dict[str, int] = {}
        looked = 0.0
        while True:
            await self._db.until(cuts)
            snapshot, now = self._db.snapshot(), self._time()
            followed = (*BY_POLICY, *BY_CALLERS) if now >= looked + AGAIN else BY_POLICY
            revisions = {table.name: snapshot.revision(table) for table in followed}
            if not revisions.items() <= seen.items():
                seen, looked = seen | revisions, now
                await self.look(snapshot)
            del snapshot  # held while waiting, it would cost every transaction
            await asyncio.sleep(max(LOOK, min(AGAIN, REST * (self._time() - now))))

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    async def look(self, snapshot: Snapshot) -> None:
        """Cut what is forbidden now. Threads list and end connections; rows are read here, where they are written."""
        judge = forbidden(snapshot, self._cluster)
        guarded = {(row.address, row.port) for row in snapshot.by(tables.GUARDS, "cut", True)}
        found = await asyncio.to_thread(self._datapath.connections, guarded)
        ended = set[Connection]()
        for number, each in enumerate(found):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            if judge(*each):
                ended.add(each)
        count = await asyncio.to_thread(self._datapath.cut, ended) if ended else 0
        self.cut += count
        if count:
            log.info("cut connections of callers that a policy does not allow", connections=count)
