"""An agent's reconciler that is killed again and again: each life is a process that dies at a random map operation.

    bpf_lives.py PIN CGROUP SEED LIVES

Every life opens the datapath over what the one before left, drives the ordinary reconciler through a few turns of
random plans, and is killed by SIGKILL in the middle of them. The last one lives, and ends with the plans of ``final``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence

from datapath_worlds.bpf_world import BACKENDS, group, plan

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, PlanTarget
from isthmus.datapath.core.maps import Maps
from isthmus.model.balancing import Plan
from isthmus.model.tables import PLANS
from isthmus.statedb import Database, Reconciler

STABLE = plan("stable", "10.96.7.1", group(*BACKENDS[:3]), affinity=0)
MOVING = 6
GRACE = 0.02
TURNS = 8


class Mortal:
    """Maps that write one entry at a time, and after a number of them kill the process."""

    def __init__(self, maps: Maps, *, left: int) -> None:
        self._maps = maps
        self._left = left

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries."""
        for item in items:
            self._live_on()
            assert not self._maps.put(name, [item])
        return {}

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries."""
        for key in keys:
            self._live_on()
            assert not self._maps.drop(name, [key])
        return {}

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        return self._maps.items(name)

    def _live_on(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def some(chance: random.Random) -> list[Plan]:
    """The stable service, and others as they come: of one to six backends, with and without affinity, some gone."""
    rows = [STABLE]
    for n in range(MOVING):
        if chance.random() < 0.7:
            chosen = chance.sample(BACKENDS, chance.randint(1, 6))
            rows.append(
                plan(f"moving-{n}", f"10.96.8.{n}", group(*chosen), affinity=600 if chance.random() < 0.3 else 0)
            )
    return rows


def final(seed: int) -> list[Plan]:
    """What the last life ends with."""
    return some(random.Random(-seed))


async def live(pin: str, cgroup: str, turns: Iterable[list[Plan]], *, left: int) -> None:
    """One life."""
    section = DatapathSection(cgroup=cgroup, pin=pin, max_entries=1024, grace=GRACE)
    datapath = Datapath.open(section, DnsSection())
    target = PlanTarget(Mortal(datapath.maps, left=left), datapath.state, grace=GRACE)
    db = Database(PLANS)
    source = db.initializer(PLANS, "test")
    reconciler = Reconciler(db, PLANS, target, prune_every=0.0)
    for rows in turns:
        with db.write() as txn:
            for key in {row.key for row in txn.all(PLANS)} - {row.key for row in rows}:
                txn.delete(PLANS, key)
            for row in rows:
                txn.put(PLANS, row)
            source.complete(txn)
        await reconciler.step()
        assert not reconciler.failing
        target.sweep_due()
    for _ in range(3):
        await asyncio.sleep(GRACE)  # the grace period is real: callers are
        target.sweep_due()
    datapath.close()


def main(pin: str, cgroup: str, seed: int, lives: int) -> None:
    """All lives; prints how each ended."""
    chance = random.Random(seed)
    for _ in range(lives):
        turns, left = [some(chance) for _ in range(TURNS)], chance.randint(1, 120)
        child = os.fork()
        if not child:
            asyncio.run(live(pin, cgroup, turns, left=left))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    asyncio.run(live(pin, cgroup, [final(seed)], left=0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
