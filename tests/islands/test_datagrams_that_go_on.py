"""Clients of UDP go on when gateways fall silent, are killed or replaced, by real Envoys: ``make test-islands``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

import pytest
from meshes.island_datagrams import UDP
from meshes.island_load import Gateway, LoadedIslands, Plans, after, loaded_islands
from meshes.island_sessions import EVERY, Kind, Sessions
from meshes.island_world import C3
from meshes.route_world import C1, C2

pytestmark = [pytest.mark.needs("envoy"), pytest.mark.islands]

ECHO = "demo/echo"
CLIENTS: dict[Kind, int] = {"connected": 25, "unconnected": 25, "new port": 5}
BOUND = 1.0
"""Seconds that a client may go without an answer, on a machine that does not stand still."""
AT = 3.0
"""Seconds of a load until something happens: all clients have a session by then."""


class Clients(NamedTuple):
    """Those of c2, and those of a gateway that stays healthy: what these wait is the machine's part."""

    load: Sessions
    control: Sessions

    async def run(self, seconds: float) -> None:
        await asyncio.gather(self.load.run(seconds), self.control.run(seconds))

    def assert_all_go_on(self, since: float, bound: float = BOUND) -> None:
        """Each had answers, at most so far apart, from a moment to the end."""
        slowest, late = self.load.slowest(since), self.load.latest
        control = max(0.0, self.control.slowest(since) - EVERY)
        print(f"the longest time without an answer, s: {slowest:.2f}; late by {late:.2f}; control {control:.2f}")
        assert slowest < bound + late + control


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LoadedIslands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with loaded_islands(Path(short), listen=getattr(request, "param", "")) as made:
            made.follow()
            yield made


async def exported(world: LoadedIslands, *, c3: bool = False, own: bool = False) -> Clients:
    """Clients of an import in c1, of c2 alone or of c3 or c1 too, with gateways that are found healthy."""
    world.export(ECHO, C2, await world.datagram_pod("c2"), ports=UDP)
    clusters: dict[str, Any] = {"c2": ["10.1.0.1:8080"]}
    if c3:
        world.export(ECHO, C3, await world.datagram_pod("c3"), ports=UDP)
        clusters["c3"] = ["10.1.0.1:8080"]
    if own:
        pod = await world.datagram_pod("c1")
        clusters["c1"] = [f"{pod.host}:{pod.port}"]
    world.world.rows.imported(ECHO, protocol="UDP", **clusters)
    await world.healthy(C2, *([C3] if c3 else []))
    await world.planned(ECHO, C2, *([C3] if c3 else []), *([C1] if own else []))
    world.export("demo/control", C3, await world.datagram_pod("c3"), ports=UDP)
    world.world.rows.imported("demo/control", protocol="UDP", c3=["10.1.0.2:8080"])
    await world.healthy(C3)
    await world.planned("demo/control", C3)
    return Clients(Sessions(world, ECHO, CLIENTS), Sessions(world, "demo/control", {"connected": 5}))


async def in_use(world: LoadedIslands) -> Gateway:
    """The gateway of c2 that has the tunnels: a worker thread of the node's Envoy has one for all clients at first."""
    await asyncio.sleep(AT - 1)
    name = "http.udp.downstream_cx_active"
    used = [(await each.stats(name)).get(name, 0) for each in world.gateways[C2]]
    assert any(used)
    return world.gateways[C2][used.index(max(used))]


@pytest.mark.parametrize("world", ["", "::1"], ids=["IPv4", "IPv6"], indirect=True)
async def test_clients_go_on_when_a_gateway_falls_silent_and_when_it_is_back(world: LoadedIslands) -> None:
    clients = await exported(world)
    running = asyncio.create_task(clients.run(AT + 8))
    gateway = await in_use(world)
    silent = after(1, lambda: gateway.signal(signal.SIGSTOP))
    back = after(5, lambda: gateway.signal(signal.SIGCONT))
    await running
    clients.assert_all_go_on(await silent)
    clients.assert_all_go_on(await back, EVERY * 2)  # none has moved again


async def test_clients_go_on_when_a_gateway_is_killed(world: LoadedIslands) -> None:
    clients = await exported(world)
    running = asyncio.create_task(clients.run(AT + 4))
    gateway = await in_use(world)
    at = after(1, lambda: gateway.signal(signal.SIGKILL))
    await running
    clients.assert_all_go_on(await at)


async def test_clients_go_on_when_the_envoy_of_a_gateway_is_replaced(world: LoadedIslands) -> None:
    clients = await exported(world)
    running = asyncio.create_task(clients.run(AT + 8))
    gateway = await in_use(world)
    began, before = monotonic(), gateway.pids()
    gateway.envoy.supervisor.replace()
    await gateway.replaced(before)
    await running
    clients.assert_all_go_on(began)


@pytest.mark.parametrize("own", [False, True], ids=["to another island", "to own pods"])
async def test_clients_of_an_island_that_falls_silent_go_on_elsewhere_and_new_ones_come_back(
    world: LoadedIslands, own: bool
) -> None:
    """Also those that are connected, which the kernel does not send elsewhere."""
    clients = await exported(world, c3=not own, own=own)
    plans, other = Plans(world, ECHO), "c1" if own else "c3"
    silent = after(AT, lambda: world.signal(C2, signal.SIGSTOP))
    back = after(AT + 4, lambda: world.signal(C2, signal.SIGCONT))
    await clients.run(AT + 18)
    plans.stop()
    clients.assert_all_go_on(await silent)
    clients.assert_all_go_on(await back, EVERY * 2)  # none has moved again
    assert clients.load.pods(await silent + BOUND, await back) == {other}
    assert clients.load.pods(clients.load.end - 2, clients.load.end, "new port") == {"c2", other}
    assert [C2 in {*clusters} for _, clusters in plans.seen] == [True, False, True]
