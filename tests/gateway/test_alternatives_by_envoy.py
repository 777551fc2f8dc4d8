"""Where calls go on to when an island's gateways end, of three islands: by real Envoys."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from meshes.island_load import Gateway, LoadedIslands, loaded_islands, tcp
from meshes.island_world import C3
from meshes.route_world import C2

from isthmus.clusterset import certificates
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.tables import CLUSTERS, POLICIES

pytestmark = pytest.mark.needs("envoy")

ECHO = "demo/echo"
C4 = ClusterName("c4")


@pytest.fixture
async def world() -> AsyncIterator[LoadedIslands]:
    """The islands c2, c3 and c4, each with a pod; plans follow no checks, as in the moment before they change."""
    with TemporaryDirectory() as short:  # a path of a socket has 108 characters
        async with loaded_islands(Path(short), connect_timeout=5.0) as made:
            await add(made, C4)
            for cluster in (C2, C3, C4):
                made.export(ECHO, cluster, await made.pod(cluster))
            there = ["10.1.0.1:8080"]
            made.world.rows.imported(ECHO, c2=there, c3=there, c4=there)
            made.renew()
            await made.healthy(C2, C3, C4)
            yield made


async def add(made: LoadedIslands, island: ClusterName) -> None:
    """One more island, with one gateway."""
    world = made.world
    world.authorities[island] = certificates.authority(f"isthmus clusterset {island}")
    (world.trust / f"{island}.ca.crt").write_bytes(world.authorities[island].certificate)
    made.gateways[island] = [await Gateway(world, island, 4).start()]
    at = tuple(str(each.at) for each in made.gateways[island])
    world.rows.put(CLUSTERS, Cluster(name=island, network=f"of {island}", gateways=at))


def put_policy(made: LoadedIslands, *tiers: Share) -> None:
    """A policy of one share in each tier."""
    row = Policy(name=ServiceName(ECHO), target=ServiceName(ECHO), tiers=tuple(Tier((share,)) for share in tiers))
    made.world.rows.put(POLICIES, row)


async def end(made: LoadedIslands, island: ClusterName) -> None:
    """End an island's gateways for good."""
    for each in made.gateways[island]:
        await each.envoy.stop("supervisor")
        each.signal(signal.SIGKILL)


async def answers(made: LoadedIslands, count: int) -> Counter[str]:
    """Who answers so many calls that the plan sends to c2; nobody: ''."""
    found: Counter[str] = Counter()
    for number in range(count):
        target = made.target(ECHO)
        assert target is not None
        assert target.cluster == C2
        try:
            found[await tcp(target.address, target.port, number)] += 1
        except OSError:
            found[""] += 1
    return found


async def until(made: LoadedIslands, who: str) -> None:
    async with asyncio.timeout(90):
        while await answers(made, 1) != {who: 1}:  # noqa: ASYNC110 of other processes
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_second_island_is_that_of_the_second_tier_and_one_of_weight_0_is_never_called(
    world: LoadedIslands,
) -> None:
    put_policy(world, Share(C2), Share(C4), Share(C3))
    await world.planned(ECHO, C2, C3, C4)
    await until(world, "c2")
    await end(world, C2)
    await until(world, "c4")
    assert await answers(world, 20) == {"c4": 20}, "not c3, which is the next by name"
    await end(world, C4)
    await until(world, "c3")
    put_policy(world, Share(C2), Share(C4), Share(C3, weight=0))
    await until(world, "")
    assert await answers(world, 20) == {"": 20}
