"""Calls while plans change under them: none fails, none goes to a backend that no plan had."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, done, group, plan
from rows.balancing_world import PERMISSIVE, make
from rows.balancing_world import World as Rows

from isthmus.datapath import Datapath, PlanTarget, remove
from isthmus.model.services import Endpoint, Port
from isthmus.model.tables import PLANS
from isthmus.statedb import Reconciler

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"
CALLS = 3000
TURN = 0.005
"""Seconds at least: the plans of a grace period have room in the maps."""


async def calls_during(world: World, target: PlanTarget, *, affinity: int) -> Counter[str]:
    """What became of many calls while one service's plan changes as fast as it can."""
    chance = random.Random(1)
    calling = asyncio.create_task(asyncio.to_thread(world.caller.calls, "tcp", VIP, 80, times=CALLS))
    for turn in itertools.count():
        if calling.done():
            break
        chosen = chance.sample(BACKENDS[:4], chance.randint(1, 4))
        tier = turn % 2 if chance.random() < 0.3 else 0
        done(target.update([plan("echo", VIP, group(*chosen, tier=tier), affinity=affinity)]))
        noise = [plan(f"n{n}", f"10.97.0.{n}", group(BACKENDS[4 + n % 4])) for n in range(chance.randint(1, 20))]
        done(target.update(noise) if turn % 2 else target.delete(noise))
        target.sweep_due()
        await asyncio.sleep(0)
    return Counter(result.get("error") or result["answer"].split()[0] for result in await calling)


@pytest.mark.parametrize("affinity", [0, 600])
@pytest.mark.slow
async def test_no_call_fails_while_its_plan_changes(world: World, affinity: int) -> None:
    datapath: Datapath = world.open(grace=1.0)
    target = datapath.target()
    done(target.update([plan("echo", VIP, group(*BACKENDS[:4]), affinity=affinity)]))
    answers = await calls_during(world, target, affinity=affinity)
    calls = {(row["verdict"], row["cluster"]): row["calls"] for row in datapath.counters()}
    datapath.close()
    remove(world.pin)
    assert set(answers) <= set(BACKENDS[:4])
    assert calls.pop(("called", "c1")) >= CALLS
    assert calls == {}


async def test_no_call_fails_while_an_address_passes_from_service_to_service(world: World) -> None:
    """Two claim it; the older one has it, goes and comes back, by the ordinary rows and the ordinary reconciler."""
    datapath: Datapath = world.open(grace=1.0)
    target = datapath.target()
    rows = Rows("all", rules=PERMISSIVE)
    reconciler = Reconciler(rows.db, PLANS, target)
    older, younger = (
        make.service(f"demo/{name}", cluster_ips=(), external_ips=(VIP,), created=created)
        for name, created in (("older", "2026-01-01T00:00:00Z"), ("younger", "2026-01-02T00:00:00Z"))
    )
    for service, endpoint in ((older, BACKENDS[0]), (younger, BACKENDS[1])):
        rows.put(service, make.endpoints("c1", at(endpoint), service=service.name))
    rows.settle()
    await reconciler.step()
    answers: Counter[str] = Counter()
    turns = 0
    while answers.total() < CALLS and set(answers) <= set(BACKENDS[:2]):
        calling = asyncio.create_task(asyncio.to_thread(world.caller.calls, "tcp", VIP, 80, times=100))
        while not calling.done():
            rows.delete(older) if turns % 2 == 0 else rows.put(older)
            rows.settle()
            await reconciler.step()
            assert not reconciler.failing  # as in a full map: what was there stays for the grace period
            target.sweep_due()
            turns += 1
            await asyncio.sleep(TURN)
        answers.update(result.get("error") or result["answer"].split()[0] for result in await calling)
    datapath.close()
    remove(world.pin)
    assert set(answers) == set(BACKENDS[:2])
    assert turns > 20


def at(endpoint: str) -> Endpoint:
    address, port = endpoint.split(":")
    return make.endpoint(address, ports=(Port("http", int(port)),))
