"""``isthmus mirror`` as people run it: a process between real etcds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from peers.clusterset_peers import OWN, Peers, announce, export, following, service
from peers.etcd_server import EtcdServer, free_ports, running

from isthmus.admin.query import QueryError, Socket
from isthmus.config import AdminSection, ClustersetSection, Config, EtcdSection, MonitorSection, to_toml
from isthmus.etcd import Session
from isthmus.reflector import Transient

CANARY = "cilium/synced/c2/cilium/cache/services/v1"


@pytest.fixture
async def peer_session(etcd: Session) -> Session:
    await service(etcd, "c2", "demo/echo", "10.2.1.1", number=2)
    await export(etcd, "c2", "demo/echo")
    await announce(etcd, "c2", 2)
    return etcd


class Process:
    """One ``isthmus mirror``."""

    def __init__(self, process: subprocess.Popen[bytes], socket: Path, monitor: str) -> None:
        self.process = process
        self.socket = socket
        self.monitor = monitor

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=60)

    def status(self) -> dict[str, Any] | None:
        with suppress(QueryError):
            return Socket(self.socket).status()
        return None

    def asked(self, path: str) -> str:
        with suppress(OSError), urlopen(f"http://{self.monitor}/{path}", timeout=5) as answer:
            return str(answer.read().decode())
        return ""


@contextmanager
def mirror(folder: Path, *own: EtcdServer, peers: Peers, name: str = "mirror") -> Iterator[Process]:
    monitor = f"127.0.0.1:{free_ports(1)[0]}"
    endpoints = tuple(each.endpoint for each in own)
    config = Config(
        cluster=OWN,
        etcd=EtcdSection(endpoints=endpoints, replicas=endpoints if len(endpoints) > 1 else ()),
        clusterset=ClustersetSection(directory=str(peers.folder)),
        admin=AdminSection(socket=str(folder / f"{name}.sock")),
        monitor=MonitorSection(listen=monitor),
    )
    file = folder / f"{name}.toml"
    file.write_text(to_toml(config))
    with ExitStack() as ending:
        log = ending.enter_context((folder / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", "isthmus", "mirror", "--config", str(file)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        ending.callback(process.wait)
        ending.callback(process.kill)
        yield Process(process, Path(config.admin.socket), monitor)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_process_mirrors_reports_its_status_and_ends_on_a_signal(
    peer_session: Session, own_session: Session, own_etcd: EtcdServer, shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", shared_etcd.endpoint)
    local = Peers(tmp_path / "local", own_etcd.endpoint)
    peers.add("c2")
    local.add("c2")
    with mirror(tmp_path, own_etcd, peers=peers) as process:
        await until(lambda: own_session.get(CANARY))
        async with following(local) as agent:
            await agent.state("c2", "ready")
            assert agent.services() == {"c2:demo/echo": ["10.2.1.1"]}
            await service(peer_session, "c2", "demo/echo", "10.2.1.9", number=2)
            await agent.until(lambda s: agent.services() == {"c2:demo/echo": ["10.2.1.9"]})
        status = await asyncio.to_thread(process.status)
        assert status is not None
        assert status["ready"]
        assert (status["cluster"], status["outcome"]) == ("c1", "mirroring")
        assert await asyncio.to_thread(process.asked, "readyz") == "ok\n"
        metrics = await asyncio.to_thread(process.asked, "metrics")
        assert 'isthmus_mirror_clustermesh_remote_cluster_readiness_status{target_cluster="c2"} 1.0' in metrics
        assert process.end() == 0
    assert await own_session.get("isthmus/mirror") is None


async def test_another_process_stands_by_ready_and_takes_over_at_once(
    peer_session: Session, own_session: Session, own_etcd: EtcdServer, shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", shared_etcd.endpoint)
    peers.add("c2")
    with mirror(tmp_path, own_etcd, peers=peers) as first:
        await until(lambda: own_session.get(CANARY))
        with mirror(tmp_path, own_etcd, peers=peers, name="second") as second:
            await until(lambda: asyncio.to_thread(second.asked, "readyz"))
            assert "isthmus_mirror_leader 0.0" in await asyncio.to_thread(second.asked, "metrics")
            first.end()
            await service(peer_session, "c2", "demo/late", "10.2.1.3", number=2)
            await until(lambda: own_session.get("cilium/cache/services/v1/c2/demo/late"))


def test_what_it_cannot_do_without_is_named(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "isthmus", "mirror"], capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("isthmus mirror: not configured: cluster.name, cluster.id")


@pytest.mark.slow
async def test_each_of_two_etcds_gets_copies_and_one_that_is_away_is_a_warning(
    peer_session: Session, own_session: Session, own_etcd: EtcdServer, shared_etcd: EtcdServer, tmp_path: Path
) -> None:
    peers = Peers(tmp_path / "clusters", shared_etcd.endpoint)
    peers.add("c2")
    with (
        running(own_etcd.program, tmp_path / "second", "--initial-cluster-token=second") as second,
        mirror(tmp_path, own_etcd, second, peers=peers) as process,
    ):
        async with Session([second.endpoint]) as session:
            await until(lambda: own_session.get(CANARY))
            await until(lambda: session.get(CANARY))
            second.stop()

            async def warned() -> bool:
                status = await asyncio.to_thread(process.status)
                assert status is not None
                assert not status["problems"]
                return any("gets no copies, others do" in each for each in status["warnings"])

            await until(warned)
            assert await asyncio.to_thread(process.asked, "readyz") != ""
            await service(peer_session, "c2", "demo/more", "10.2.1.7", number=2)
            await until(lambda: own_session.get("cilium/cache/services/v1/c2/demo/more"))
            second.wipe()
            second.start()
            await second.ready(session)

            async def filled() -> bool:
                with suppress(Transient):
                    return await session.get("cilium/cache/services/v1/c2/demo/more") is not None
                return False

            await until(filled)
