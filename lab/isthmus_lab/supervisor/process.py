"""The supervisor: builds the lab, then keeps its programs running until SIGTERM."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from isthmus import kube, logs
from isthmus.config import KubernetesSection
from isthmus.reflector import Transient
from isthmus_lab import cgroups, etcd_program, kernel, privileges, spawn
from isthmus_lab.confinement import loopback
from isthmus_lab.layout import Cluster
from isthmus_lab.network import fabric, impairments, namespaces
from isthmus_lab.realapi import binaries, definitions, kube_proxy, processes
from isthmus_lab.record import Record
from isthmus_lab.supervisor import bootstrap, checks, configs, programs
from isthmus_lab.supervisor.control import Control
from isthmus_lab.supervisor.forking import Zygote
from isthmus_lab.supervisor.keeper import Keeper, launch
from isthmus_lab.supervisor.sources import Stamp

FOLLOWERS: Final = ("/operator", "/agent")
"""Programs that read peers' etcds, by the end of the name."""
READERS: Final = (*FOLLOWERS, "/gateway")
"""Programs that read kinds of ours from their cluster's API server."""
USERS: Final = "isthmus_lab.supervisor.etcd_users"
TIMEOUT: Final = 5.0
"""Seconds that a command waits for a relay."""

log = logs.get("supervisor")


class Supervisor:
    """One lab."""

    def __init__(
        self, record: Record, *, zygote: socket.socket, loaded: Stamp, doors: Sequence[socket.socket] = ()
    ) -> None:
        """``loaded``: stamp of the sources that the zygote imported. ``doors``: see :func:`startup.start`."""
        self._doors = doors
        self.lab = record.lab
        self._isthmus = record.isthmus
        self._real = record.apiserver == "real"
        self._ours = record.datapath == "isthmus"
        self._envoy = record.envoy
        self._zygote = zygote
        self._loaded = loaded
        self._root = cgroups.root() / self.lab.prefix
        self._began = monotonic()
        self._clients: dict[str, kube.Client] = {}
        self._filled: set[str] = set()
        self._defined: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set per cluster once its API server has our definitions; a reader that misses a kind retries late."""
        self._joined = asyncio.Event()
        """Set once every etcd has its users: a password is refused where there are none."""
        self._changes: list[asyncio.Event] = []
        self._keepers: dict[str, Keeper] = {}
        self._keeper: Callable[[programs.Program], Keeper]
        self.steps: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<Supervisor of {self.lab.name}: {len(self._keepers)} programs>"

    def stats(self) -> dict[str, Any]:
        """Everything there is to know about the lab's processes."""
        return {
            "lab": self.lab.name,
            "ready": self.ready,
            "steps": self.steps,
            "programs": [keeper.stats() for keeper in self._keepers.values()],
        }

    @property
    def ready(self) -> bool:
        """True if every program of the lab has been ready."""
        return (
            bool(self._keepers)
            and len(self._filled) == self.lab.size
            and all(keeper.ready.is_set() for keeper in self._keepers.values())
        )

    async def run(self) -> None:
        """Until cancelled."""
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        spawn.reap_strangers()  # pods outlive a node process that is killed, and come to us
        async with Control(self.lab.socket, self):
            listeners = self._listeners()
            ports = {name: made[0].getsockname()[1] for name, made in listeners.items()}
            configs.write(self.lab, ports=ports, services=self._ours, envoy=self._envoy)
            self.step("configurations")
            if not privileges.CONFINED:
                _bpffs(self.lab.bpffs)
            if not self.lab.loopback:
                await fabric.build(self.lab)
            self.step("network")
            for cluster in self.lab.clusters:
                section = KubernetesSection(kubeconfig=str(self.lab.kubeconfig), context=cluster.name)
                self._clients[cluster.name] = await kube.connect(section)
            try:
                await self._keep({name: [each.fileno() for each in made] for name, made in listeners.items()})
            finally:
                for client in self._clients.values():
                    await client.close()

    def _listeners(self) -> dict[str, list[socket.socket]]:
        """Listeners by cluster, on the loopback of the lab's user; open for the lab's life, so that ports are stable.

        A confined lab is used from inside, too, at the same port.
        """
        if not self._doors:
            return {cluster.name: [loopback()] for cluster in self.lab.clusters}
        pairs = zip(self.lab.clusters, self._doors, strict=True)
        return {cluster.name: [loopback(door.getsockname()[1]), door] for cluster, door in pairs}

    async def _keep(self, listeners: dict[str, list[int]]) -> None:
        desired = self._programs()
        zygote = Zygote(self._zygote, loaded=self._loaded)
        async with asyncio.TaskGroup() as group:
            self._keeper = partial(self._keep_one, group, listeners, zygote)
            for program in desired:
                self._keepers[program.name] = self._keeper(program)
            group.create_task(self._join(zygote), name="join")
            for cluster in self.lab.clusters:
                group.create_task(self._fill(cluster), name=f"{cluster.name}/bootstrap")

    def _keep_one(
        self, group: asyncio.TaskGroup, listeners: dict[str, list[int]], zygote: Zygote, program: programs.Program
    ) -> Keeper:
        keeper = Keeper(
            program,
            root=self._root,
            output=self.lab.logs / f"{program.name.replace('/', '-')}.log",
            listeners=listeners,
            check=lambda: checks.ready(program.check, self._clients),
            zygote=zygote,
            after=[
                *(self._keepers[name].ready for name in program.after),
                *([self._defined[program.name.partition("/")[0]]] if program.name.endswith(READERS) else []),
                *([self._joined] if program.name.endswith(FOLLOWERS) else []),
            ],
            changed=lambda: self._changed(program.name),
        )
        keeper.task = group.create_task(keeper.run(), name=program.name)
        return keeper

    def inject(self, action: str, names: list[str]) -> list[str]:
        """Kill, pause or start programs; the names of those that there are."""
        keepers = [self._keepers[name] for name in names if name in self._keepers]
        for keeper in keepers:
            match action:
                case "kill":
                    keeper.kill()
                case "pause":
                    keeper.pause()
                case "start":
                    keeper.resume()
        return [keeper.program.name for keeper in keepers]

    def replace(self, names: list[str], python: str) -> list[str]:
        """Run Isthmus' programs from another interpreter's environment; the names of those that there are."""
        keepers = [self._keepers[name] for name in names if name in self._keepers]
        ours = [keeper for keeper in keepers if keeper.program.command[:3] == programs.ISTHMUS]
        for keeper in ours:
            keeper.replace(python)
        return [keeper.program.name for keeper in ours]

    async def relay(self) -> str:
        """Run the relays that the network's state asks for, and no others; why one does not work, or ''."""
        options = impairments.relays(self.lab, impairments.read(self.lab))
        desired = {each.name: each for each in (programs.relay(self.lab, *item) for item in options.items())}
        for name, keeper in list(self._keepers.items()):
            if name.startswith("fabric/") and keeper.program != desired.get(name):
                del self._keepers[name]
                await keeper.end()
        for name, program in desired.items():
            if name not in self._keepers:
                self._keepers[name] = self._keeper(program)
            try:
                async with asyncio.timeout(TIMEOUT):
                    await self._keepers[name].ready.wait()
            except TimeoutError:
                return f"{name} does not come up: {self._keepers[name].failure or 'no reason known'}"
        return ""

    def _programs(self) -> list[programs.Program]:
        desired = programs.programs(self.lab, etcd=etcd_program.find(), isthmus=self._isthmus, envoy=self._envoy)
        server, controllers = binaries.find(binaries.SERVER), binaries.find(binaries.CONTROLLERS)
        if not self._real or server is None or controllers is None:  # lab up has looked for them
            return desired
        desired = processes.instead(desired, self.lab, apiserver=server, controllers=controllers)
        proxy, coredns = binaries.find(binaries.PROXY), binaries.find(binaries.COREDNS)
        if self._ours or proxy is None or coredns is None:
            return desired
        return kube_proxy.without_ours(desired, self.lab, proxy=proxy, coredns=coredns)

    async def _join(self, zygote: Zygote) -> None:
        """Give every etcd its users, as on a clusterset whose clusters have joined."""
        async with asyncio.TaskGroup() as group:
            for cluster in self.lab.clusters:
                group.create_task(self._make_users(cluster, zygote), name=f"{cluster.name}/users")
        self._joined.set()

    async def _make_users(self, cluster: Cluster, zygote: Zygote) -> None:
        """Create etcd users in a process that reaches the etcd; failures are in its log and retried."""
        await self._keepers[f"{cluster.name}/etcd"].ready.wait()
        place = spawn.Isolation(cgroups.make(self._root / cluster.cgroup), namespaces.place(cluster.control_plane))
        output = self.lab.logs / f"{cluster.name}-users.log"
        command = (*programs.PYTHON, USERS, self.lab.name, cluster.name)
        while await (await launch(command, place=place, output=output, zygote=zygote)).wait() != 0:
            log.warning("the etcd has no users yet", cluster=cluster.name, why=str(output))
            await asyncio.sleep(0.2)

    async def _fill(self, cluster: Cluster) -> None:
        await self._keepers[f"{cluster.name}/apiserver"].ready.wait()
        while True:
            try:
                await definitions.apply(self._clients[cluster.name], routes=bool(self._envoy) and not self.lab.loopback)
                self._defined[cluster.name].set()
                await bootstrap.fill(self._clients[cluster.name], cluster)
            except (Transient, kube.KubeError) as error:
                log.warning("bootstrap", cluster=cluster.name, why=str(error))
                await asyncio.sleep(0.2)
            else:
                self._filled.add(cluster.name)
                self._changed(f"{cluster.name}/bootstrap")
                return

    def _changed(self, name: str) -> None:
        keeper = self._keepers.get(name)
        if keeper is None or keeper.ready.is_set():
            self.step(name)
            self._complete(name.partition("/")[0])
        else:
            self.step(name, failure=keeper.failure)

    def _complete(self, cluster: str) -> None:
        """A step of its own, once: all of a cluster works."""
        mine = [keeper for name, keeper in self._keepers.items() if name.startswith(f"{cluster}/")]
        sent = any(step["step"] == cluster for step in self.steps)
        if cluster in self._filled and not sent and all(keeper.ready.is_set() for keeper in mine):
            self.step(cluster)

    def step(self, name: str, *, failure: str = "") -> None:
        """Record a step, reached or failed, for those who follow."""
        seconds = round(monotonic() - self._began, 3)
        self.steps.append({"step": name, "seconds": seconds, **({"failure": failure} if failure else {})})
        log.info("step", **self.steps[-1])
        for event in self._changes:
            event.set()

    async def follow(self) -> Any:
        """Steps from the first, as they come, until the lab is ready."""
        changed = asyncio.Event()
        self._changes.append(changed)
        try:
            sent = 0
            while True:
                for step in self.steps[sent:]:
                    yield step
                sent = len(self.steps)
                if self.ready:
                    yield {"ready": True, "seconds": self.steps[-1]["seconds"]}
                    return
                await changed.wait()
                changed.clear()
        finally:
            self._changes.remove(changed)


def _bpffs(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    kernel.mount("bpffs", path, "bpf", data="mode=0700")
