"""Three whole operators over three etcds and API servers, disturbed at random, come to equal imports.

``ISTHMUS_CHAOS_RUNS`` is the number of stories, ``ISTHMUS_CHAOS_SEED`` the seed of the first: the same seed is the same
disturbances. The last of them is over when every cluster has an operator that leads: after a kill the lease
has to run out first.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clusters.chaos_clusters import CLUSTERS, NAMES, Cluster, Served, clusterset, expected, lab_server, real_server
from peers.etcd_server import EtcdServer

from isthmus.etcd import binary
from isthmus.kube.objects.core import SERVICE
from isthmus.kube.objects.mcs import SERVICE_EXPORT

FIRST_SEED = int(os.environ.get("ISTHMUS_CHAOS_SEED", "1"))
RUNS = int(os.environ.get("ISTHMUS_CHAOS_RUNS", "3"))
SETTLE = 90.0
"""Seconds; no claim: the time is printed. A machine that is busy, or stands still, takes longer than another."""
STEPS = 25


@pytest.fixture(scope="module", params=["lab", pytest.param("kube", marks=pytest.mark.kube)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    """Three clusters without operators, on each API server in turn."""
    make = {"lab": lab_server, "kube": real_server}[request.param]
    with ExitStack() as stack:
        made = []
        for name in CLUSTERS:
            etcd = EtcdServer(binary.find(), tmp_path_factory.mktemp(f"{name}-etcd"))
            etcd.start()
            stack.callback(etcd.stop)
            made.append(Served(etcd, make(etcd, tmp_path_factory.mktemp(name) / "apiserver", stack)))
        yield made


async def disturb(chance: random.Random, clusters: list[Cluster]) -> str:
    """One event; a sentence on it."""
    cluster, name = chance.choice(clusters), chance.choice(NAMES)
    where = f"{cluster.name} {name}"
    match chance.randrange(13):
        case 0 | 1:
            await cluster.client.delete(SERVICE, cluster.namespace, name)
            ports = [{"name": "http", "port": chance.choice([80, 81])}, {"name": "metrics", "port": 9090}]
            spec = {"ports": chance.sample(ports, chance.randrange(1, 3))}
            headless = {"clusterIP": "None"} if chance.random() < 0.3 else {}
            await cluster.client.create(
                SERVICE, cluster.namespace, {"metadata": {"name": name}, "spec": {**spec, **headless}}
            )
            return f"{where}: another Service"
        case 2 | 3:
            labels = {"exportedLabels": {"team": "red"}} if chance.random() < 0.5 else {}
            await cluster.client.apply(
                SERVICE_EXPORT, cluster.namespace, name, {"spec": labels}, field_manager="people"
            )
            return f"{where}: exported"
        case 4:
            await cluster.client.delete(SERVICE_EXPORT, cluster.namespace, name)
            return f"{where}: no longer exported"
        case 5 | 6:
            cluster.pods[name] = [f"10.{cluster.number}.1.{n}" for n in chance.sample(range(1, 9), chance.randrange(4))]
            await cluster.scale(name)
            return f"{where}: pods {cluster.pods[name]}"
        case 7:
            await cluster.end(signal.SIGTERM)
            return f"{cluster.name}: operator stopped"
        case 12:
            await cluster.end(signal.SIGKILL)
            return f"{cluster.name}: operator killed"
        case 8 | 9:
            cluster.start()
            return f"{cluster.name}: operator started"
        case 10:
            if cluster.held_up:
                cluster.go_on()
                return f"{cluster.name}: operator goes on"
            cluster.hold_up()
            return f"{cluster.name}: operator held up"
        case _:
            wire = chance.choice(cluster.wires)
            wire.cut = not wire.cut
            if wire.cut:
                wire.sever()
            return f"{cluster.name}: a peer is {'cut off' if wire.cut else 'back'}"


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
@pytest.mark.slow
async def test_operators_come_to_equal_imports(served: list[Served], seed: int, tmp_path: Path) -> None:
    print(f"ISTHMUS_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    async with clusterset(served, tmp_path, namespace=f"story-{seed}") as clusters:
        story = []
        for _ in range(STEPS):
            story.append(await disturb(chance, clusters))
            for cluster in clusters:
                cluster.not_too_long()
            await asyncio.sleep(chance.random() * 0.2)  # time passes between what people do
        for cluster in clusters:
            for wire in cluster.wires:
                wire.cut = False
        await asyncio.gather(*(cluster.at_work() for cluster in clusters))
        await equal(clusters, story)


async def equal(clusters: list[Cluster], story: list[str]) -> None:
    """All see what they should in time."""
    began = time.monotonic()
    wanted = await expected(clusters)
    found: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(SETTLE):
            while not found or any(each != wanted for each in found):
                for cluster in clusters:
                    cluster.check()
                found = [await cluster.seen() for cluster in clusters]
                await asyncio.sleep(0.02)
    except TimeoutError:
        events = "\n".join(story)
        pytest.fail(f"after\n{events}\nwanted {wanted}\nfound {found}")
    print(f"equal after {time.monotonic() - began:.2f} s: {len(story)} disturbances")
