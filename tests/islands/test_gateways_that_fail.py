"""Gateways that fall silent or are killed under 200 calls a second, by real Envoys: ``make test-islands``."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from meshes.island_load import RATE, Call, Load, LoadedIslands, Plans, after, clusters_of, http, loaded_islands, tcp
from meshes.island_world import C3
from meshes.route_world import C1, C2

from isthmus.model.services import Port

pytestmark = [pytest.mark.needs("envoy"), pytest.mark.islands]

ECHO = "demo/echo"
TCP, HTTP = (Port("", 80),), (Port("", 80, app_protocol="http"),)
BOUND = 0.6
"""Seconds that the slowest call may take, on a machine that does not stand still."""


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LoadedIslands]:
    """Gateways that are killed refuse connects at once: there a busy machine has all the time it wants."""
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        timeout = 5.0 if "killed" in request.node.name else 0.25
        made_before = "made_before" in request.node.name
        async with loaded_islands(Path(short), connect_timeout=timeout, preconnect=made_before) as made:
            yield made


async def exported(
    world: LoadedIslands,
    *,
    speaks: str = "",
    delay: float = 0.0,
    c3: bool = False,
    own: bool = False,
    followed: bool = True,
    seen: list[str] | None = None,
) -> None:
    """The import in c1, of c2 alone or of c3 or c1 too, with gateways that are found healthy.

    ``followed``: whether plans follow Envoy's checks. ``seen``: what c2's pod gets.
    """
    if followed:
        world.follow()
    ports = (Port("", 80, app_protocol=speaks),)
    world.export(ECHO, C2, await world.pod("c2", delay=delay, seen=seen), ports=ports)
    clusters: dict[str, Any] = {"c2": ["10.1.0.1:8080"]}
    if c3:
        world.export(ECHO, C3, await world.pod("c3", delay=delay), ports=ports)
        clusters["c3"] = ["10.1.0.1:8080"]
    if own:
        pod = await world.pod("c1")
        clusters["c1"] = [f"{pod.host}:{pod.port}"]
    world.world.rows.imported(ECHO, app_protocol=speaks, **clusters)
    await world.healthy(C2, *([C3] if c3 else []))
    await world.planned(ECHO, C2, *([C3] if c3 else []), *([C1] if own else []))


GET, POST = http("GET"), http("POST")
ASKS = [("", tcp), ("http", GET), ("http", POST)]


async def alongside(world: LoadedIslands, load: Load, seconds: float) -> Load:
    """Run a load, and beside it calls of a healthy gateway: what these take is the machine's part."""
    world.export("demo/control", C3, await world.pod("c3"))
    world.world.rows.imported("demo/control", c3=["10.1.0.2:8080"])
    await world.healthy(C3)
    await world.planned("demo/control", C3)
    control = Load(world, "demo/control", rate=RATE // 4)
    await asyncio.gather(load.run(seconds), control.run(seconds))
    await asyncio.gather(load.ended(), control.ended())
    return control


@pytest.mark.parametrize(("speaks", "ask"), ASKS, ids=["tcp", "get", "post"])
async def test_a_gateway_that_falls_silent_costs_no_call_that_begins_then(
    world: LoadedIslands, speaks: str, ask: Ask
) -> None:
    await exported(world, speaks=speaks)
    load = Load(world, ECHO, ask)
    at = after(1.5, lambda: world.gateways[C2][0].signal(signal.SIGSTOP))
    control = await alongside(world, load, 5)
    silent = await at
    assert_only_in_flight(load.failed(), silent)
    assert load.slowest(silent) < BOUND + control.slowest(silent) + load.latest


@pytest.mark.parametrize(("speaks", "ask"), ASKS, ids=["tcp", "get", "post"])
async def test_a_gateway_that_is_killed_costs_no_call_but_those_in_flight_and_no_get(
    world: LoadedIslands, speaks: str, ask: Ask
) -> None:
    await exported(world, speaks=speaks)
    load = Load(world, ECHO, ask)
    at = after(1.5, lambda: world.gateways[C2][0].signal(signal.SIGKILL))
    await load.run(5)
    await load.ended()
    assert_only_in_flight(load.failed(), await at)
    assert ask is not GET or load.failed() == []


async def test_a_gateway_that_is_killed_costs_no_get_on_connections_that_were_made_before(world: LoadedIslands) -> None:
    await exported(world, speaks="http")
    load = Load(world, ECHO, GET)
    at = after(1.5, lambda: world.gateways[C2][0].signal(signal.SIGKILL))
    await load.run(5)
    await load.ended()
    await at
    assert load.failed() == []
    made = await world.world.node_stats("cluster.island.*upstream_cx_total")
    assert made["cluster.island c2 http.upstream_cx_total"] > 0


async def test_a_get_in_flight_at_a_gateway_that_is_killed_is_answered_and_a_post_is_sent_once(
    world: LoadedIslands,
) -> None:
    """By pods that take their time, so that there is much in flight.

    Several begin at once: gateways are taken in turn, and on a busy machine one GET after one POST would each have one
    of the two.
    """
    seen: list[str] = []
    await exported(world, speaks="http", delay=0.2, seen=seen)
    gets, posts = Load(world, ECHO, GET, together=4), Load(world, ECHO, POST, rate=RATE * 3 // 4, together=5)
    at = after(1.5, lambda: world.gateways[C2][0].signal(signal.SIGKILL))
    await asyncio.gather(gets.run(3), posts.run(3))
    await asyncio.gather(gets.ended(), posts.ended())
    assert gets.failed() == []
    assert posts.failed()
    assert_only_in_flight(posts.failed(), await at)
    sent = Counter(seen)
    assert max(sent[f"GET /{call.number}"] for call in gets.calls) > 1
    assert max(sent[f"POST /{call.number}"] for call in posts.calls) == 1


async def test_calls_of_an_island_that_falls_silent_go_to_another_one_and_back_once(world: LoadedIslands) -> None:
    """None fails: until the plan has the other one alone, the node's Envoy sends them on."""
    await exported(world, c3=True)
    load, plans = Load(world, ECHO), Plans(world, ECHO)
    silent = after(1.5, lambda: world.signal(C2, signal.SIGSTOP))
    back = after(6.0, lambda: world.signal(C2, signal.SIGCONT))
    control = await alongside(world, load, 12)
    plans.stop()
    assert_only_in_flight(load.failed(), await silent)
    assert load.slowest(await silent) < BOUND + control.slowest(await silent) + load.latest
    assert [C2 in clusters for _, clusters in plans.seen] == [True, False, True]
    assert {call.answer for call in load.calls if call.began > plans.seen[-1][0]} == {"c2", "c3"}
    assert plans.seen[-1][0] > await back


async def test_calls_of_an_island_that_falls_silent_go_to_own_pods_while_the_plan_has_it_alone(
    world: LoadedIslands,
) -> None:
    """No check of gateways is followed here, so the plan stays: as in the moment before it changes."""
    await exported(world, own=True, followed=False)
    load = Load(world, ECHO)
    silent = after(1.5, lambda: world.signal(C2, signal.SIGSTOP))
    control = await alongside(world, load, 5)
    assert clusters_of(world.plan(ECHO)) == {C1, C2}
    assert_only_in_flight(load.failed(), await silent)
    assert load.slowest(await silent) < BOUND + control.slowest(await silent) + load.latest


def assert_only_in_flight(failed: list[Call], at: float) -> None:
    """Each of the calls that failed was under way at a moment."""
    print(f"{len(failed)} calls that were in flight failed")
    assert [call for call in failed if not call.began <= at <= call.began + call.took] == []


Ask = Callable[[str, int, int], Awaitable[str]]
