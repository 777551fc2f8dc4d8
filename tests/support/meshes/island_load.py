"""Several islands with several gateways each on loopback, and calls at a rate, as pods behind the kernel make them."""

from __future__ import annotations

import asyncio
import os
import signal
from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import accumulate
from pathlib import Path
from random import random
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from meshes.envoy_world import EnvoyWorld
from meshes.island_datagrams import DatagramPod
from meshes.island_world import C3, DOMAIN, Islands, Pod, Serve, cancelled, stats
from meshes.route_world import C2
from msgspec.structs import replace
from peers.etcd_server import free_ports

from isthmus.gateway import checks, exports, naming
from isthmus.gateway.exports import GatewaySettings
from isthmus.gateway.secrets import Secrets
from isthmus.model import tables
from isthmus.model.balancing import Plan, Target
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint as Address
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, EndpointSet, Export, Port
from isthmus.processes.start import tables_of
from isthmus.proxy.process import admins
from isthmus.statedb import Database, Derivations

RATE: Final = 200
"""Calls per second."""
THEN: Final[dict[int, set[str]]] = {signal.SIGSTOP: {"T"}, signal.SIGKILL: {"Z", "X"}}
"""The states that threads of a process have after a signal (proc(5), /proc/PID/stat)."""


class Gateway:
    """One gateway of a cluster: tables of a process, and a real Envoy."""

    def __init__(self, world: Islands, cluster: ClusterName, number: int) -> None:
        [port] = free_ports(1)
        self.world = world
        self.at = Address("127.0.0.1", port)
        self.of = GatewaySettings(cluster, DOMAIN, (self.at,), world.directory / f"g{number}")
        declared = [exports.derived(self.of)]
        self.db = Database(*tables_of(declared, tables.PEER_POLICIES, tables.XDS_REFUSED, tables.XDS_SERVED))
        self.derivations = Derivations(self.db, *declared)
        self.secrets = Secrets(
            self.db,
            self.of.directory,
            apart=exports.trusted_apart,
            identity=world.identity(cluster, naming.GATEWAY),
            trust=world.trust,
            domain=DOMAIN,
        )
        self.envoy: EnvoyWorld

    async def start(self) -> Gateway:
        self.put(tables.CLUSTERS, Cluster(name=self.of.cluster, own=True))
        self.renew()
        self.envoy = await self.world.envoy(self.of.directory, self.db)
        return self

    def renew(self) -> None:
        """As its process does twice a second."""
        self.secrets.renew()
        while self.derivations.step():
            pass

    def put(self, table: Any, *rows: Any) -> None:
        with self.db.write() as txn:
            for row in rows:
                txn.put(table, row)
        while self.derivations.step():
            pass

    def signal(self, number: int) -> None:
        """To its Envoys: SIGSTOP makes it silent, SIGKILL kills it. It is so when this returns.

        A busy machine may take tens of milliseconds to stop the last thread, in which that one takes connections still.
        """
        pids = self.pids()
        for pid in pids:
            os.kill(pid, number)
        while number in THEN and any(threads(pid) - THEN[number] for pid in pids):
            sleep(0.001)

    def pids(self) -> set[int]:
        """Its Envoys."""
        return {each.pid for each in admins(self.of.directory)} - {0}

    async def replaced(self, before: set[int]) -> None:
        """Wait until another Envoy than those serves."""
        async with asyncio.timeout(90):
            while self.envoy.supervisor.stats().running in {0, *before}:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)

    async def stats(self, pattern: str) -> dict[str, int]:
        return await stats(self.envoy, pattern)


class Call(NamedTuple):
    """One call of a load."""

    began: float
    """By the loop's clock, s."""
    took: float
    answer: str
    """The pod's name; empty: none came."""
    number: int = 0


class LoadedIslands:
    """c1's node calls the islands c2 (two gateways) and c3 (one)."""

    def __init__(self, world: Islands) -> None:
        self.world = world
        self.gateways: dict[ClusterName, list[Gateway]] = {
            C2: [Gateway(world, C2, 1), Gateway(world, C2, 2)],
            C3: [Gateway(world, C3, 3)],
        }
        self.pods = 0

    async def start(self) -> None:
        for cluster, found in self.gateways.items():
            for each in found:
                await each.start()
            at = tuple(str(each.at) for each in found)
            self.world.rows.put(tables.CLUSTERS, Cluster(name=cluster, network=f"of {cluster}", gateways=at))
        self.renew()
        self._beside(self.world.rows.derivations.run())

    def follow(self) -> None:
        """Have the plans follow what Envoy finds of gateways."""
        self._beside(checks.follow(self.world.rows.db, self.world.node_of.directory))

    def _beside(self, running: Coroutine[Any, Any, None]) -> None:
        self.world.stack.push_async_callback(cancelled, asyncio.create_task(running))

    def signal(self, cluster: ClusterName, number: int) -> None:
        """To all Envoys of a cluster's gateways."""
        for each in self.gateways[cluster]:
            each.signal(number)

    def renew(self) -> None:
        """As all processes do it twice a second."""
        self.world.node_secrets.renew()
        for found in self.gateways.values():
            for each in found:
                each.renew()

    async def pod(self, name: str, *, delay: float = 0.0, seen: list[str] | None = None) -> Pod:
        """A pod with an address of its own, which answers each line, or request of HTTP, with its name."""
        return await self.serving(answering(name, delay, seen if seen is not None else []))

    async def serving(self, serve: Serve) -> Pod:
        """A pod with an address of its own."""
        self.pods += 1
        return await Pod().start(serve, self.world.stack, host=f"127.0.1.{self.pods}")

    async def datagram_pod(self, name: str) -> Address:
        """A pod with an address of its own, which answers each datagram with its name and what it got."""
        self.pods += 1
        return (await DatagramPod(name).start(self.world.stack, host=f"127.0.1.{self.pods}")).at

    def export(
        self,
        name: str,
        cluster: ClusterName,
        *pods: Pod | Address,
        gateway: int | None = None,
        ports: tuple[Port, ...] = (Port("", 80),),
        **fields: Any,
    ) -> None:
        """What a cluster exports, as its gateways see it, or one of them; pods have its first port."""
        found = Export(cluster=cluster, name=ServiceName(name), created="", ports=ports)
        each = tuple(Endpoint(pod.host, (Port("", pod.port, ports[0].protocol),)) for pod in pods)
        rows = EndpointSet(
            service=ServiceName(name), cluster=cluster, source="kubernetes", part="slice", endpoints=each
        )
        for number, at in enumerate(self.gateways[cluster]):
            if gateway in (None, number):
                at.put(tables.OWN_EXPORTS, OwnExport(name=ServiceName(name), export=replace(found, **fields)))
                at.put(tables.ENDPOINT_SETS, rows)

    async def healthy(self, *clusters: ClusterName) -> None:
        """Wait until all gateways of islands pass their checks."""
        want = {cluster: len(self.gateways[cluster]) for cluster in clusters}
        async with asyncio.timeout(90):
            while True:
                found = await self.world.node_stats("cluster.island.*membership_healthy")
                if {each: found.get(f"cluster.island {each}.membership_healthy") for each in want} == want:
                    return
                await asyncio.sleep(0.05)

    async def planned(self, name: str, *clusters: ClusterName) -> None:
        """Wait until the plan of an import calls these clusters."""
        async with asyncio.timeout(90):
            while clusters_of(self.plan(name)) != set(clusters):  # noqa: ASYNC110 of other tasks
                await asyncio.sleep(0.01)

    def plan(self, name: str) -> Plan | None:
        found = self.world.rows.db.snapshot().by(tables.PLANS, "service", derived(ServiceName(name)))
        return next(iter(found), None)

    def targets(self, name: str) -> list[Target]:
        """What the plan calls now."""
        plan = self.plan(name)
        return [target for group in (plan.groups if plan else ()) if group.weight for target in group.targets]

    def target(self, name: str) -> Target | None:
        """Where the kernel would send a call now."""
        plan = self.plan(name)
        groups = [group for group in plan.groups if group.targets and group.weight] if plan is not None else []
        groups = [group for group in groups if group.tier == min(each.tier for each in groups)]
        if not groups:
            return None
        heights = list(accumulate(group.weight for group in groups))
        group = groups[bisect(heights, random() * heights[-1])]
        return group.targets[int(random() * len(group.targets))]


def threads(pid: int) -> set[str]:
    """The states of a process's threads; none of one that has ended."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has just ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found


def clusters_of(plan: Plan | None) -> set[ClusterName]:
    """The clusters that a plan's calls go to."""
    return {target.cluster for group in (plan.groups if plan else ()) if group.weight for target in group.targets}


def answering(name: str, delay: float, seen: list[str]) -> Serve:
    """A server of lines, or requests of HTTP; it writes down the first line of each, up to its second space."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            seen.append(b" ".join(line.split()[:2]).decode())
            http = line.rstrip().endswith(b"HTTP/1.1")
            while http and (await reader.readline()).strip():
                pass
            await asyncio.sleep(delay)
            body = name.encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body if http else body + b"\n")
            await writer.drain()

    return serve


async def tcp(host: str, port: int, number: int) -> str:
    """A call: one line there, one back."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"%d\n" % number)
        return (await reader.readline()).decode().strip()
    finally:
        writer.transport.abort()


def http(method: str) -> Callable[[str, int, int], Awaitable[str]]:
    """A call: one request on a connection of its own; the answer's text if it is 200."""

    async def ask(host: str, port: int, number: int) -> str:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            length = "content-length: 0\r\n" if method == "POST" else ""
            writer.write(f"{method} /{number} HTTP/1.1\r\nhost: echo\r\nconnection: close\r\n{length}\r\n".encode())
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
            return body.decode() if head.startswith(b"HTTP/1.1 200") else ""
        finally:
            writer.transport.abort()

    return ask


class Load:
    """Calls of an import at a rate, each where the plan of that moment sends it.

    ``together``: calls that begin at once. Whoever takes gateways in turn uses all of them for each such group.
    """

    def __init__(
        self,
        world: LoadedIslands,
        name: str,
        ask: Callable[[str, int, int], Awaitable[str]] = tcp,
        *,
        rate: int = RATE,
        together: int = 1,
    ) -> None:
        self._world, self._name, self._ask, self._rate, self._together = world, name, ask, rate, together
        self._under_way: set[asyncio.Task[None]] = set()
        self.calls: list[Call] = []
        self.latest = 0.0
        """The longest time by which a call began too late: what this process, or the machine, stood still."""

    async def run(self, seconds: float) -> None:
        """Begin calls for so long."""
        began = monotonic()
        for number in range(round(seconds * self._rate)):
            due = began + (number - number % self._together) / self._rate
            if number % self._together == 0:
                await asyncio.sleep(max(0.0, due - monotonic()))
            self.latest = max(self.latest, monotonic() - due)
            task = asyncio.create_task(self._call(number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def ended(self, within: float = 30.0) -> None:
        """Wait until all have ended; what has not by then has failed."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=within)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    async def _call(self, number: int) -> None:
        began, answer = monotonic(), ""
        target = self._world.target(self._name)
        try:
            with suppress(OSError):
                if target is not None:
                    answer = await self._ask(target.address, target.port, number)
        finally:
            self.calls.append(Call(began, monotonic() - began, answer, number))

    def failed(self) -> list[Call]:
        return [call for call in self.calls if not call.answer]

    def slowest(self, since: float) -> float:
        """Of the calls that began at or after a moment, s."""
        return max(call.took for call in self.calls if call.began >= since)


def after(seconds: float, act: Callable[[], object]) -> asyncio.Task[float]:
    """Act in so many seconds; the task has the moment of it."""

    async def wait() -> float:
        await asyncio.sleep(seconds)
        act()
        return monotonic()

    return asyncio.create_task(wait())


class Plans:
    """Which clusters the plan of an import calls, each time that they change."""

    def __init__(self, world: LoadedIslands, name: str) -> None:
        self.seen: list[tuple[float, set[ClusterName]]] = []
        self._task = asyncio.create_task(self._look(world, name))

    async def _look(self, world: LoadedIslands, name: str) -> None:
        while True:
            found = clusters_of(world.plan(name))
            if not self.seen or self.seen[-1][1] != found:
                self.seen.append((monotonic(), found))
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._task.cancel()


@asynccontextmanager
async def loaded_islands(
    directory: Path, *, connect_timeout: float = 0.25, preconnect: bool = False, listen: str = ""
) -> AsyncIterator[LoadedIslands]:
    """All, started; ended with everything in it, also an Envoy that was stopped."""
    async with AsyncExitStack() as stack:
        islands = Islands(directory, stack, connect_timeout=connect_timeout, preconnect=preconnect, listen=listen)
        await islands.start_node()
        world = LoadedIslands(islands)
        await world.start()
        stack.push_async_callback(islands.close)
        try:
            yield world
        finally:
            for found in world.gateways.values():
                for each in found:
                    each.signal(signal.SIGCONT)
