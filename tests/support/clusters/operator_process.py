"""``isthmus operator`` as people run it: processes against an API server and an etcd of their own."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from peers.etcd_server import free_ports

from isthmus.admin.query import QueryError, Socket
from isthmus.config import (
    AdminSection,
    ClusterSection,
    ClustersetSection,
    Config,
    EtcdSection,
    IdentitySection,
    KubernetesSection,
    MonitorSection,
    NodeSection,
    ProxySection,
    to_toml,
)

OWN = ClusterSection(name="c1", id=1)
LEADS = re.compile(r"^isthmus_operator_leader 1\.0$", re.MULTILINE)


class OperatorProcess:
    """One replica."""

    def __init__(self, process: subprocess.Popen[bytes], config: Config, log: Path) -> None:
        self.process = process
        self.config = config
        self._log = log

    def asked(self, path: str) -> tuple[int, str]:
        """What the monitor answers: status and text; 0 where it does not answer."""
        try:
            with urlopen(f"http://{self.config.monitor.listen}/{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def leads(self) -> bool:
        return LEADS.search(self.asked("metrics")[1]) is not None

    @property
    def ready(self) -> bool:
        return self.asked("readyz")[0] == 200

    def status(self) -> dict[str, Any] | None:
        with suppress(QueryError):
            return Socket(Path(self.config.admin.socket)).status()
        return None

    def rows(self, table: str) -> list[Any]:
        """What its tables hold; nothing where it does not answer."""
        with suppress(QueryError):
            return list(Socket(Path(self.config.admin.socket)).table(table).rows)
        return []

    @property
    def log(self) -> str:
        return self._log.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Replicas:
    """Starts replicas of one cluster's operator, and ends them."""

    def __init__(self, folder: Path, *, etcd: str, kubernetes: KubernetesSection, state: str = "") -> None:
        self.folder = folder
        self._state = state
        self.peers = folder / "peers"
        self.peers.mkdir()
        self._etcd = etcd
        self._kubernetes = kubernetes
        self._count = 0
        self._ending = ExitStack()

    def start(
        self,
        *,
        cluster: ClusterSection = OWN,
        default_global: bool = True,
        process: str = "operator",
        proxy: str = "",  # proxy.directory
        identities: bool = False,
    ) -> OperatorProcess:
        """One more; or an agent with the same configuration, on a node that has no datapath."""
        self._count += 1
        name = self.folder / f"{process}-{self._count}"
        config = Config(
            cluster=cluster,
            node=NodeSection(name="node-1"),
            kubernetes=self._kubernetes,
            etcd=EtcdSection(endpoints=(self._etcd,)),
            clusterset=ClustersetSection(directory=str(self.peers), state=self._state, default_global=default_global),
            proxy=ProxySection(directory=proxy),
            identity=IdentitySection(enabled=identities),
            admin=AdminSection(socket=f"{name}.sock"),
            monitor=MonitorSection(listen=f"127.0.0.1:{free_ports(1)[0]}"),
        )
        file = name.with_suffix(".toml")
        file.write_text(to_toml(config))
        with name.with_suffix(".log").open("wb") as log:
            command = [sys.executable, "-m", "isthmus", process, "--config", str(file)]
            running = subprocess.Popen(command, stdout=log, stderr=log)
        self._ending.callback(running.wait)
        self._ending.callback(running.kill)
        return OperatorProcess(running, config, name.with_suffix(".log"))

    def end(self) -> None:
        self._ending.close()


@contextmanager
def replicas(folder: Path, *, etcd: str, kubernetes: KubernetesSection) -> Iterator[Replicas]:
    """Replicas that are gone at the end, whatever happened to them."""
    made = Replicas(folder, etcd=etcd, kubernetes=kubernetes)
    try:
        yield made
    finally:
        made.end()


async def until(condition: Callable[[], Awaitable[Any]], *, seconds: float = 120.0) -> None:
    """Wait for other processes: a lease that nobody renews ends after 15 s by the clock of whoever waits for it."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def leading(each: OperatorProcess) -> None:
    """Wait until this one leads."""
    await until(lambda: asyncio.to_thread(lambda: each.leads))


async def ready(each: OperatorProcess) -> None:
    """Wait until this one is ready."""
    await until(lambda: asyncio.to_thread(lambda: each.ready))
