"""The clusters of a simulation, each with an API server, an etcd and the operator's replicas, and their faults."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from isthmus import kube
from isthmus.config import ClusterSection, ClustersetSection, Config, EtcdSection, HealthSection, KubernetesSection
from isthmus.processes import operator
from isthmus_sim.apiserver import ApiServer, Transport
from isthmus_sim.etcd import Channel, Etcd
from isthmus_sim.network import Network
from isthmus_sim.process import PROCESS, Process, current
from isthmus_sim.substitutes import Shown

REPLICAS: Final = ("a", "b")
FIRST_PID: Final = 100
PASSWORD: Final = "secret"


class Replica(NamedTuple):
    """A process that was started."""

    process: Process
    task: asyncio.Task[None]

    @property
    def running(self) -> bool:
        """True if it neither ended nor was killed."""
        return not self.task.done() and not self.process.dead


class Cluster:
    """One cluster. Its hosts are ``c1.api``, ``c1.etcd``, ``c1.a`` and ``c1.b``."""

    def __init__(self, name: str, number: int, network: Network, chance: random.Random, folder: Path) -> None:
        self.name = name
        self.network = network
        self._folder = folder / name
        self.peers = folder / name / "peers"
        self.peers.mkdir(parents=True)
        password = folder / name / "password"
        password.write_text(PASSWORD)
        self.api = ApiServer(f"{name}.api", network, chance, services=f"10.{100 + number}.0.0/16")
        self.etcd = Etcd(f"{name}.etcd", number, chance)
        self.config = Config(
            cluster=ClusterSection(name=name, id=number),
            kubernetes=KubernetesSection(kubeconfig=f"{name}.api"),
            etcd=EtcdSection(endpoints=(f"http://{name}.etcd:2379",), username=name, password_file=str(password)),
            clusterset=ClustersetSection(directory=str(self.peers)),
            health=HealthSection(rate=0),
        )
        self.replicas: dict[str, Replica] = {}
        self.shown: dict[Process, Shown] = {}
        """Status of each process."""

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {[*self.replicas.values()]}>"

    def config_of(self, host: str) -> Config:
        """The configuration of a replica, which has a disk of its own."""
        state = self._folder / f"state-{host}"
        clusterset = msgspec.structs.replace(self.config.clusterset, state=str(state))
        return msgspec.structs.replace(self.config, clusterset=clusterset)

    def wipe(self, host: str) -> None:
        """Lose the disk of a replica."""
        shutil.rmtree(self._folder / f"state-{host}", ignore_errors=True)

    @property
    def hosts(self) -> list[str]:
        """Hosts of processes."""
        return [f"{self.name}.{each}" for each in REPLICAS]

    def link(self, peer: str) -> None:
        """Follow another cluster from now on."""
        endpoints = {"endpoints": [f"http://{peer}.etcd:2379"], "username": self.name, "password": PASSWORD}
        (self.peers / peer).write_text(yaml.safe_dump(endpoints))

    def unlink(self, peer: str) -> None:
        """Follow it no longer."""
        (self.peers / peer).unlink(missing_ok=True)

    @property
    def linked(self) -> set[str]:
        """Clusters whose exports are imported here, with the own one."""
        return {self.name, *(path.name for path in self.peers.iterdir())}

    def leaders(self) -> list[Process]:
        """Processes that run now."""
        return [
            each.process
            for each in self.replicas.values()
            if each.running and each.process in self.shown and self.shown[each.process].at_work
        ]

    def problems(self) -> list[str]:
        """Reasons by which people see that the cluster is not healthy: of its processes, or that none leads."""
        running = [each for each in self.replicas.values() if each.running and not each.process.paused]
        problems = [problem for each in running for problem in self._problems(each.process)]
        if len(running) < len(REPLICAS):
            problems.append("a replica does not run")
        return problems if self.leaders() else ["no replica leads", *problems]

    def _problems(self, process: Process) -> list[str]:
        shown = self.shown.get(process)
        return shown.unhealthy() if shown is not None else ["it is starting"]


class Clusters:
    """All clusters of a run."""

    def __init__(self, names: list[str], network: Network, chance: random.Random, folder: Path) -> None:
        self.network = network
        self._pids = itertools.count(FIRST_PID)
        self._by_name = {
            name: Cluster(name, number, network, chance, folder) for number, name in enumerate(names, start=1)
        }
        self._tasks: set[asyncio.Task[None]] = set()

    def __getitem__(self, name: str) -> Cluster:
        return self._by_name[name]

    def __iter__(self) -> Any:
        return iter(self._by_name.values())

    @property
    def hosts(self) -> list[str]:
        """Hosts of processes in all clusters."""
        return [host for cluster in self for host in cluster.hosts]

    def of(self, host: str) -> Cluster:
        """The cluster of a host."""
        return self[host.partition(".")[0]]

    # Ways out of a process: see substitutes.

    def connect(self, section: KubernetesSection) -> kube.Client:
        """A client of an API server, by the text that replaces a kubeconfig."""
        return kube.Client(Transport(self.of(section.kubeconfig).api))

    def channel(self, transport: Any, endpoint: str) -> Channel:
        """A channel to an etcd."""
        return Channel(self.network, self.of(endpoint.removeprefix("http://")).etcd)

    def show(self, shown: Shown) -> None:
        """Keep the status of the process that starts."""
        process = current()
        self.of(process.host).shown[process] = shown

    # Faults.

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that belongs to no process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        asyncio.get_running_loop().call_later(seconds, action)

    def start(self, host: str) -> None:
        """Start the operator's replica on a host, unless one runs."""
        cluster = self.of(host)
        before = cluster.replicas.get(host)
        if before is not None and before.running:
            return
        process = Process(host, next(self._pids))
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        task = asyncio.get_running_loop().create_task(operator.main(cluster.config_of(host)), context=context)
        task.add_done_callback(_ended)
        cluster.replicas[host] = Replica(process, task)

    def stop(self, host: str) -> None:
        """End a replica as SIGTERM does."""
        self.resume(host)
        if (replica := self.of(host).replicas.get(host)) is not None:
            replica.task.cancel()

    def kill(self, host: str) -> None:
        """End a replica as SIGKILL does: its connections break, and nothing that it still sends arrives."""
        self.resume(host)
        if (replica := self.of(host).replicas.get(host)) is not None:
            replica.process.dead = True
            self.network.wake()
            replica.task.cancel()

    def pause(self, host: str) -> None:
        """Stop a replica as SIGSTOP does."""
        if (replica := self.of(host).replicas.get(host)) is not None:
            replica.process.paused = True

    def resume(self, host: str) -> None:
        """Continue it, as SIGCONT does."""
        replica = self.of(host).replicas.get(host)
        if replica is not None and replica.process.paused:
            replica.process.paused = False
            loop: Any = asyncio.get_running_loop()
            loop.release()

    async def close(self) -> None:
        """End everything."""
        for host in self.hosts:
            self.kill(host)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(30)


def _ended(task: asyncio.Task[None]) -> None:
    """A process that ends by itself is an error of the loop."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a process ended by itself", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
