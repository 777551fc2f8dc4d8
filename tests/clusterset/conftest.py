"""The etcds of these tests: one that peers share, empty at first, and the own one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from peers.clusterset_peers import Peers
from peers.etcd_server import EtcdServer

from isthmus.etcd import Session


@pytest.fixture
async def etcd(shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    """The etcd that all peers share, empty."""
    async with Session([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.delete_prefix("")
        yield session


@pytest.fixture
def peer_session(etcd: Session) -> Session:
    """The same, for tests that have the own etcd too."""
    return etcd


@pytest.fixture
async def own_session(own_etcd: EtcdServer) -> AsyncIterator[Session]:
    """The own etcd, empty."""
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        yield session


@pytest.fixture
def peers(tmp_path: Path, shared_etcd: EtcdServer) -> Peers:
    """The peers' files, which name the shared etcd."""
    return Peers(tmp_path / "clusters", shared_etcd.endpoint)


@pytest.fixture
def local(tmp_path: Path, own_etcd: EtcdServer) -> Peers:
    """The same as agents behind a mirror have them: the files name the own etcd."""
    return Peers(tmp_path / "local", own_etcd.endpoint)
