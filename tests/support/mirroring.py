"""A mirror at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clusterset_peers import OWN, Peers

from isthmus.clusterset.copying import Mirror
from isthmus.config import ClustersetSection
from isthmus.etcd import Session


@asynccontextmanager
async def mirroring(session: Session, peers: Peers) -> AsyncIterator[Mirror]:
    mirror = Mirror(session, cluster=OWN, section=ClustersetSection(directory=str(peers.folder)))
    task = asyncio.create_task(mirror.run())
    try:
        yield mirror
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()
