"""A mirror at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from peers.clusterset_peers import OWN, QUICK, Peers

from isthmus.clusterset.mirror import LOCK_TTL, Mirror
from isthmus.config import ClustersetSection
from isthmus.etcd import Session


@asynccontextmanager
async def mirroring(
    session: Session, peers: Peers, *, lock_ttl: int = LOCK_TTL, identities: bool = False
) -> AsyncIterator[Mirror]:
    section = ClustersetSection(directory=str(peers.folder))
    mirror = Mirror(session, cluster=OWN, section=section, timings=QUICK, lock_ttl=lock_ttl, identities=identities)
    task = asyncio.create_task(mirror.run())
    try:
        yield mirror
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()
