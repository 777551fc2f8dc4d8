"""A mirror of one release goes on with the copies of the other, which agents of either read, there and back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine import previous_release
from peers.clusterset_peers import OWN, Peers, announce, export, following, service
from peers.etcd_server import EtcdServer

from isthmus.config import AdminSection, ClustersetSection, Config, EtcdSection, to_toml
from isthmus.etcd import Session

pytestmark = pytest.mark.upgrade

OLD, NEW = str(previous_release.previous().python), sys.executable
CANARY = "cilium/synced/c2/cilium/cache/services/v1"


@pytest.fixture
async def peer(shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    """The etcd of c2, which exports."""
    async with Session([shared_etcd.endpoint]) as session:
        await shared_etcd.ready(session)
        await session.delete_prefix("")
        await service(session, "c2", "demo/echo", "10.2.1.1", number=2)
        await export(session, "c2", "demo/echo")
        await announce(session, "c2", 2)
        yield session


@pytest.fixture
async def own(own_etcd: EtcdServer) -> AsyncIterator[Session]:
    async with Session([own_etcd.endpoint]) as session:
        await own_etcd.ready(session)
        yield session


@contextmanager
def mirror(python: str, folder: Path, own: EtcdServer, peers: Peers) -> Iterator[None]:
    """``isthmus mirror`` of a release, until SIGTERM."""
    config = Config(
        cluster=OWN,
        etcd=EtcdSection(endpoints=(own.endpoint,)),
        clusterset=ClustersetSection(directory=str(peers.folder)),
        admin=AdminSection(socket=str(folder / "mirror.sock")),
    )
    file = folder / "mirror.toml"
    file.write_text(to_toml(config))
    with (folder / "mirror.log").open("ab") as log:
        process = subprocess.Popen([python, "-m", "isthmus", "mirror", "--config", str(file)], stdout=log, stderr=log)
        try:
            yield
            process.terminate()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(120):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_copies_stay_and_follow_whichever_release_mirrors(
    peer: Session, own: Session, own_etcd: EtcdServer, shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    peers, local = Peers(tmp_path / "clusters", shared_etcd.endpoint), Peers(tmp_path / "local", own_etcd.endpoint)
    peers.add("c2")
    local.add("c2")
    async with following(local) as agent:
        for number, python in enumerate((OLD, NEW, OLD), 2):
            with mirror(python, tmp_path, own_etcd, peers):
                await until(lambda: own.get(CANARY))
                await agent.state("c2", "ready")
                address = f"10.2.1.{number}"
                await service(peer, "c2", "demo/echo", address, number=2)
                await agent.until(lambda _: agent.services() == {"c2:demo/echo": [address]})  # noqa: B023
            assert agent.services() == {"c2:demo/echo": [address]}, "the copies outlive the mirror"
