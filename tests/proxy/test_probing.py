"""An Envoy that hangs: what the agent's probes make of its silence, and where calls go meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes.envoy_world import EnvoyWorld, envoy_world
from meshes.island_world import DOMAIN
from meshes.route_world import C1, C2, RouteWorld, route
from peers.etcd_server import free_ports

from isthmus.gateway.listeners import NodeSettings
from isthmus.model.clusters import Cluster
from isthmus.model.islands import TrustBundle
from isthmus.model.names import ServiceName, derived
from isthmus.model.tables import CLUSTERS, ENVOY_CHECKS, PLANS, PROXY_REDIRECTS, ROUTES, TRUST_BUNDLES, XDS, XDS_SERVED
from isthmus.model.xds import ServedListener
from isthmus.processes import proxying
from isthmus.proxy import Prober, probing
from isthmus.proxy.probing import HOLD, INTERVAL, LONGEST_HOLD, PATIENCE, STEADY, Verdict

ROUTE = "parentRefs: [{group: '', kind: Service, name: echo}]\nrules: [{backendRefs: [{name: echo, port: 80}]}]"


def after(verdict: Verdict, *rounds: bool, now: float = 0.0, every: float = INTERVAL) -> tuple[Verdict, float]:
    """The verdict after rounds that were answered or not, and the time of the last one."""
    for each in rounds:
        now += every
        verdict = verdict.after(answered=each, time=now)
    return verdict, now


def recovered(verdict: Verdict, now: float) -> tuple[Verdict, float]:
    """The verdict and the time when rounds have been answered until it is good again."""
    while not verdict.healthy:
        verdict, now = after(verdict, True, now=now)
    return verdict, now


def test_silence_of_a_second_is_found_and_a_single_round_is_nothing() -> None:
    verdict, _ = after(Verdict(), True, False, True, False, True)
    assert verdict.healthy
    verdict, at = after(verdict, False, False, every=PATIENCE)
    assert not verdict.healthy
    assert INTERVAL + at <= 1.0


def test_calls_come_back_when_every_round_has_been_answered_for_a_while() -> None:
    verdict, at = after(Verdict(), False, False)
    verdict, at = after(verdict, True, True, False, True, now=at)
    assert not verdict.healthy
    _, back = recovered(verdict, at)
    assert HOLD <= back - at < HOLD + 2 * INTERVAL


def test_an_envoy_that_hangs_again_and_again_is_trusted_later_each_time_until_it_was_steady() -> None:
    verdict, at, holds = Verdict(), 0.0, []
    for _ in range(8):
        verdict, at = after(verdict, False, False, now=at)
        holds.append(verdict.hold)
        verdict, at = recovered(verdict, at)
    assert holds == [2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_HOLD, LONGEST_HOLD, LONGEST_HOLD]
    verdict, at = after(verdict, True, now=at + STEADY)
    assert after(verdict, False, False, now=at)[0].hold == HOLD


@given(st.lists(st.booleans(), max_size=400))
def test_it_changes_its_mind_once_in_two_seconds_at_most(rounds: list[bool]) -> None:
    verdict, at, returns = Verdict(), 0.0, []
    for each in rounds:
        before = verdict.healthy
        verdict, at = after(verdict, each, now=at)
        if verdict.healthy and not before:
            returns.append(at)
    assert all(later - earlier > HOLD for earlier, later in pairwise(returns))


def test_envoy_has_the_listener_for_probes_while_there_is_anything_to_call() -> None:
    of = NodeSettings(C1, DOMAIN, Path("/run/isthmus/proxy"), ("169.254.7.1",), 19_100, 10)
    world = RouteWorld("169.254.7.1", island=of).put(CLUSTERS, Cluster(name=C1, own=True, network="one"))

    def probed() -> bool:
        return ("listener", probing.UNIT) in {(row.type, row.name) for row in world.rows(XDS)}

    assert not probed()
    world.service("demo/echo", "10.1.0.1:8080").routes(found := route(ROUTE))
    assert probed()
    world.delete(ROUTES, found)
    assert not probed()
    island = Cluster(name=C2, network="two", gateways=("192.0.2.1:15443",))
    world.put(CLUSTERS, island).put(TRUST_BUNDLES, TrustBundle((C2,))).imported("demo/db", c2=["10.1.0.1:8080"])
    assert probed()


@asynccontextmanager
async def probed_envoy(
    directory: Path, rows: RouteWorld, *, workers: int = 1
) -> AsyncIterator[tuple[EnvoyWorld, asyncio.Task[None]]]:
    """An Envoy that serves the rows, and its prober."""
    async with envoy_world(directory, db=rows.db, workers=workers) as world:
        prober = Prober(rows.db, rows.addresses, 15_099, workers=workers)
        task = asyncio.create_task(prober.run())
        await rows.db.until(lambda now: any(row.healthy for row in now.all(ENVOY_CHECKS)))
        yield world, task
        task.cancel()


@pytest.mark.needs("envoy")
async def test_redirects_are_withdrawn_while_envoy_is_stopped_and_return_with_it(tmp_path: Path) -> None:
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))

    def redirected() -> bool:
        return bool(rows.derive().rows(PROXY_REDIRECTS))

    async with probed_envoy(tmp_path, rows) as (world, _):
        await rows.db.until(lambda now: now.count(XDS_SERVED) == 2)
        assert redirected()
        pid = world.supervisor.stats().running
        os.kill(pid, signal.SIGSTOP)
        try:
            await rows.db.until(lambda now: any(not row.healthy for row in now.all(ENVOY_CHECKS)))
            assert rows.db.snapshot().count(XDS_SERVED) == 2, "its listeners and its stream are as before"
            assert not redirected()
            [row] = rows.rows(ENVOY_CHECKS)
            assert row.reason == "does not answer: its listeners accept connections and nothing answers them"
            assert [*probing.problems(rows.db.snapshot())]
            [metric] = proxying.families("isthmus_agent", rows.db.snapshot())
            assert [sample.value for sample in metric.samples] == [0]
        finally:
            os.kill(pid, signal.SIGCONT)
        await rows.db.until(lambda now: all(row.healthy for row in now.all(ENVOY_CHECKS)))
        assert redirected()
        assert [*probing.problems(rows.db.snapshot())] == []
        assert world.supervisor.stats().running == pid


@pytest.mark.slow
@pytest.mark.needs("envoy")
async def test_one_worker_of_several_that_hangs_is_found(tmp_path: Path) -> None:
    """A part of all calls goes to it. (Stopping a thread stops its process; so another process has a socket of the
    port, as a second worker has one, and accepts nothing.)"""
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    async with probed_envoy(tmp_path, rows, workers=2):
        with socket.socket() as hung:
            hung.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            hung.bind((rows.addresses[0], 15_099))
            hung.listen(1024)
            await rows.db.until(lambda now: any(not row.healthy for row in now.all(ENVOY_CHECKS)))
        await rows.db.until(lambda now: all(row.healthy for row in now.all(ENVOY_CHECKS)))


@pytest.mark.needs("envoy")
async def test_an_envoy_that_is_killed_while_it_hangs_leaves_no_verdict_for_the_next_one(tmp_path: Path) -> None:
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    async with probed_envoy(tmp_path, rows) as (world, _):
        pid = world.supervisor.stats().running
        os.kill(pid, signal.SIGSTOP)
        await rows.db.until(lambda now: any(not row.healthy for row in now.all(ENVOY_CHECKS)))
        os.kill(pid, signal.SIGKILL)
        await rows.db.until(lambda now: not now.count(ENVOY_CHECKS))
        await rows.db.until(lambda now: any(row.healthy for row in now.all(ENVOY_CHECKS)))
        assert world.supervisor.stats().running != pid


@pytest.mark.needs("envoy")
async def test_a_verdict_ends_with_its_envoy_however_soon_the_next_one_serves(tmp_path: Path) -> None:
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    async with probed_envoy(tmp_path, rows) as (world, _):
        pid = world.supervisor.stats().running
        os.kill(pid, signal.SIGSTOP)
        try:
            await rows.db.until(lambda now: any(not row.healthy for row in now.all(ENVOY_CHECKS)))
            ended = asyncio.create_task(rows.db.until(lambda now: not now.count(ENVOY_CHECKS)))
            await asyncio.sleep(probing.PATIENCE / 2)  # into the next round, which waits for an answer
            [served] = [row for row in rows.rows(XDS_SERVED) if row.name == probing.UNIT]
            rows.delete(XDS_SERVED, served)
            await asyncio.sleep(0.01)
            rows.put(XDS_SERVED, served)
            await asyncio.wait_for(ended, 20)  # a hung Envoy is replaced after a minute
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.needs("envoy")
async def test_an_envoy_that_refuses_connections_is_passed_over(tmp_path: Path) -> None:
    """As it does when pods have opened so many that few descriptors are left."""
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    async with probed_envoy(tmp_path, rows):
        [pressure] = tmp_path.glob("*.pressure")

        def use(part: str) -> None:
            """Envoy acts on a file that was moved there."""
            (tmp_path / "new").write_text(part)
            (tmp_path / "new").replace(pressure)

        use("0.75")
        await rows.db.until(lambda now: any(not row.healthy for row in now.all(ENVOY_CHECKS)))
        [row] = rows.rows(ENVOY_CHECKS)
        assert row.reason == "does not answer: it closes connections without an answer"
        use("0.0")
        await rows.db.until(lambda now: all(row.healthy for row in now.all(ENVOY_CHECKS)))


@pytest.mark.needs("envoy")
async def test_no_pod_can_hold_connections_of_the_listener_for_probes(tmp_path: Path) -> None:
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    async with probed_envoy(tmp_path, rows):
        reader, writer = await asyncio.open_connection(rows.addresses[0], 15_099, local_addr=("127.0.0.1", 0))
        assert await reader.read() == b""
        writer.close()


async def test_where_envoy_has_no_listener_for_probes_it_counts_as_answering() -> None:
    """Its port may be another program's: that is refused, and named, as any listener is."""
    [port] = free_ports(1)
    rows = RouteWorld().service("demo/echo", "10.1.0.1:8080").routes(route(ROUTE))
    task = asyncio.create_task(Prober(rows.db, rows.addresses, port, workers=1).run())
    await asyncio.sleep(0)
    rows.put(XDS_SERVED, ServedListener("demo/echo:80"))
    assert rows.rows(PROXY_REDIRECTS)
    assert [target.proxy for plan in rows.rows(PLANS) for group in plan.groups for target in group.targets]
    assert not rows.rows(ENVOY_CHECKS)
    task.cancel()


def test_a_service_called_as_the_listener_is_another_unit() -> None:
    assert "/" not in probing.UNIT
    assert "/" in derived(ServiceName("demo/health"))
