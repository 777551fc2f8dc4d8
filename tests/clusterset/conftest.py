"""The etcds of these tests: one that peers share, empty at first, and one of our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clusterset_peers import Peers
from etcd_server import EtcdServer

from isthmus.etcd import Session


@pytest.fixture
async def etcd(shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    """The etcd that all peers share, empty."""
    async with Session([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.delete_prefix("")
        yield session


@pytest.fixture
def theirs(etcd: Session) -> Session:
    """The same, where there is ours beside it."""
    return etcd


@pytest.fixture
async def ours(own_etcd: EtcdServer) -> AsyncIterator[Session]:
    """Our etcd."""
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        yield session


@pytest.fixture
def peers(tmp_path: Path, shared_etcd: EtcdServer) -> Peers:
    """The peers' files, which name their etcd."""
    return Peers(tmp_path / "clusters", shared_etcd.endpoint)


@pytest.fixture
def local(tmp_path: Path, own_etcd: EtcdServer) -> Peers:
    """The same as agents behind a mirror have them: the files name our etcd."""
    return Peers(tmp_path / "local", own_etcd.endpoint)
