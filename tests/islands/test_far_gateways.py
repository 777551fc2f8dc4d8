"""An island that is far away: ``make test-islands`` prints when the first answers come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from machine import delay
from meshes.island_datagrams import UDP, DatagramPod, ask, endpoint_set
from meshes.island_world import Islands, cancelled, islands
from meshes.route_world import C2

from isthmus.gateway import checks
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ServiceName

pytestmark = [pytest.mark.needs("envoy"), pytest.mark.islands, pytest.mark.lab, pytest.mark.usefixtures("own_host")]

ECHO = ServiceName("demo/echo")


@pytest.fixture
async def line(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """What is sent to ``delay.FAR`` reaches ``delay.NEAR`` by a line of so many ms there and back."""
    command = (sys.executable, delay.__file__, str(request.param))
    relay = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert relay.stdout is not None
    assert await relay.stdout.readline() == b"ready\n"
    yield
    relay.kill()
    await relay.wait()


@pytest.fixture
async def world(line: None) -> AsyncIterator[Islands]:
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with islands(Path(short), host=delay.NEAR, connect_timeout=0.25) as made:
            for running in (made.rows.derivations.run(), checks.follow(made.rows.db, made.node_of.directory)):
                made.stack.push_async_callback(cancelled, asyncio.create_task(running))
            yield made


@pytest.mark.parametrize("line", [100, 300], indirect=True)
async def test_the_first_datagram_to_an_island_that_is_far_away_is_answered(world: Islands) -> None:
    """No connect is done in the time that is configured: the round trip has to be known first."""
    world.export(ECHO, ports=UDP)
    world.put_gateway(tables.ENDPOINT_SETS, endpoint_set(ECHO, C2, await DatagramPod("c2").start(world.stack)))
    at = f"{delay.FAR}:{world.gateways[0].port}"
    world.rows.put(tables.CLUSTERS, Cluster(name=C2, network="two", gateways=(at,)))
    world.rows.imported(ECHO, protocol="UDP", c2=["10.1.0.1:8080"])
    async with asyncio.timeout(60):
        served = await world.rows.db.until(lambda now: now.count(tables.XDS_SERVED) > 0)
    [row] = served.all(tables.ISLAND_LISTENERS)
    began = monotonic()
    assert await ask((row.addresses[0], row.listen_port), b"x", within=60, again=0.25) == b"c2 x"
    print(f"first answer after {monotonic() - began:.1f} s")
