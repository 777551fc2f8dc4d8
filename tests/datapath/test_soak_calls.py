"""Random churn under calls: backends die and come back, plans change; no connect fails and nothing piles up.

A few seconds in ``make test-all``; ``make soak-calls MINUTES=10 SEED=…`` for as long as is wanted.
"""

from __future__ import annotations

import os
import random
import subprocess
import time

import pytest
from datapath_worlds.bpf_world import Load, World, group, places, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, SILENT, SILENT6, VIP, VIP6, host
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Plan
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

SECONDS = float(os.environ.get("ISTHMUS_SOAK_SECONDS", "4"))
SEED = int(os.environ.get("ISTHMUS_SOAK_SEED", "1"))
AT_ONCE = 10
FLAPPING = ("10.8.1.3:8080", "10.8.1.4:8080", "[fd00:8::13]:8080", "[fd00:8::14]:8080")
GROWING = ("flows", "failing", "trials", "frontends", "plans", "slots", "backends", "members")


class Churn:
    """Backends that are killed and started again, and plans that have them or not."""

    def __init__(self, world: World, datapath: Datapath, *, seed: int) -> None:
        self._world = world
        self._target = datapath.target()
        self._random = random.Random(seed)
        self._served: dict[str, subprocess.Popen[str]] = {}
        self.kills = 0

    def plans(self, *endpoints: str) -> tuple[Plan, Plan]:
        four = [each for each in endpoints if not each.startswith("[")]
        six = [each for each in endpoints if each.startswith("[")]
        return plan("echo", VIP, group(GOOD[0], *four)), plan("echo6", VIP6, group(GOOD6[0], *six))

    def step(self) -> None:
        """One random change of backends or plans."""
        endpoint = self._random.choice(FLAPPING)
        if self._random.random() < 0.3:
            some = self._random.sample((*FLAPPING, SILENT, SILENT6), self._random.randint(1, 6))
            programmed(self._target, *self.plans(*some))
        elif endpoint in self._served:
            self._kill(endpoint)
        else:
            self._served[endpoint] = self._world.serve(endpoint)
        time.sleep(self._random.uniform(0.03, 0.4))

    def end(self) -> None:
        """Everything as at the start."""
        for endpoint in list(self._served):
            self._kill(endpoint)
        programmed(self._target, *self.plans())

    def _kill(self, endpoint: str) -> None:
        process = self._served.pop(endpoint)
        process.kill()
        process.wait(60)
        self.kills += 1


def entries(datapath: Datapath) -> dict[str, int]:
    """How many entries the maps have that could grow."""
    return {name: sum(1 for _ in datapath.maps.items(name)) for name in GROWING}


@pytest.mark.slow
def test_no_connect_fails_and_nothing_piles_up(rescuing: Datapath, world: World, load: Load) -> None:
    print(f"seed {SEED}")
    world.address("add", *map(host, FLAPPING))
    six = world.load_from(world.cgroup)
    db = Database(tables.BACKENDS, tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS)
    watching = FailureWatch(rescuing.maps, rescuing.state, db, longest=0.0)
    churn = Churn(world, rescuing, seed=SEED)
    churn.end()
    before, calls, cut_short, rounds = entries(rescuing), 0, 0, 0
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        for each, vip in ((load, VIP), (six, VIP6)):
            each.start(vip, calls=400, at_once=AT_ONCE, timeout=15.0)
        kills = churn.kills
        for _ in range(12):
            churn.step()
        for each in (load, six):
            result = each.result()
            connected = {how: n for how, n in result.ended.items() if how not in ("ok", "empty", "ECONNRESET")}
            assert connected == {}, result.failures
            calls += 400
            cut_short += result.failed
            assert result.failed <= (churn.kills - kills) * AT_ONCE, "at most the calls under way when a server died"
        watching.step()
        rounds += 1
    churn.end()
    print(f"{rounds} rounds, {calls} calls, {churn.kills} servers killed, {cut_short} calls cut short")
    watching = FailureWatch(rescuing.maps, rescuing.state, db, longest=0.0, closing=0)
    deadline = time.monotonic() + 90
    while entries(rescuing) != before and time.monotonic() < deadline:
        watching.step()
        time.sleep(0.1)
    assert entries(rescuing) == before
    assert view.rows(rescuing.maps, "flows") == []
    until(lambda: not places(rescuing), what="no place is kept for a socket that has ended")
    until(lambda: not world.sockets("state", "last-ack") + world.sockets("state", "close-wait"), what="none there")
    until(
        lambda: not world.sockets("state", "connected", "exclude", "time-wait", namespace=world.client),
        what="none here",
    )
