"""What the kernel refuses is a sentence beside the plan that it is about; every other plan is programmed."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, group, plan

from isthmus.datapath import Datapath, remove
from isthmus.datapath.core import attach, libbpf
from isthmus.datapath.core.maps import KernelMaps
from isthmus.datapath.services.target import PlanTarget
from isthmus.model.balancing import Plan
from isthmus.model.tables import PLANS, PLANS_STATUS
from isthmus.statedb import Backoff, Database, Reconciler

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

PLAIN = plan("plain", "10.96.7.1", group(*BACKENDS[:2]))
STICKY = plan("sticky", "10.96.7.2", group(*BACKENDS[:2]), affinity=60)


class Agent:
    """Tables and the reconciler over real maps, as in the agent; the test moves the time."""

    def __init__(self, target: PlanTarget) -> None:
        self.now = 0.0
        self.target = target
        self.db = Database(PLANS, PLANS_STATUS)
        self.reconciler = Reconciler(
            self.db, PLANS, target, status=PLANS_STATUS, backoff=Backoff(1.0, 1.0), clock=lambda: self.now
        )

    async def wants(self, *rows: Plan) -> dict[str, str]:
        """These plans and no others; what `isthmus get plans` then prints of those that failed."""
        with self.db.write() as txn:
            for row in list(txn.all(PLANS)):
                if row not in rows:
                    txn.delete(PLANS, row.key)
            for row in rows:
                txn.put(PLANS, row)
        return await self.later()

    async def later(self) -> dict[str, str]:
        """The same, when retries are due."""
        self.now += 2.0
        await self.reconciler.step()
        self.target.sweep_due()
        return {status.key.service: status.error for status in self.db.snapshot().all(PLANS_STATUS)}


@pytest.fixture
def agent(datapath: Datapath) -> Agent:
    return Agent(datapath.target())


def reaches(world: World, row: Plan) -> bool:
    """Whether a call of the plan's frontend finds one of its backends."""
    result = world.caller.tcp(row.frontends[0].address)
    return result.get("answer", "").split(" ")[0] in BACKENDS


@pytest.mark.slow
async def test_a_full_map_is_reported_for_the_plan_that_found_no_room_until_there_is_some(world: World) -> None:
    small = world.open(max_entries=2)
    agent = Agent(small.target())
    third = plan("third", "10.96.7.3", group(BACKENDS[0]))
    assert await agent.wants(PLAIN, STICKY) == {}
    failures = await agent.wants(PLAIN, STICKY, third)
    assert failures == {"demo/third": "map services is full (2 entries): raise datapath.max_entries"}
    assert [reaches(world, row) for row in (PLAIN, STICKY, third)] == [True, True, False]
    await agent.wants(PLAIN, third)
    assert await agent.later() == {}
    assert reaches(world, third)
    small.close()
    remove(world.pin)


@pytest.mark.slow
async def test_backends_that_find_no_room_are_reported_until_others_have_gone(world: World) -> None:
    small = world.open(max_entries=2)
    agent = Agent(small.target())
    other = plan("other", "10.96.7.3", group(BACKENDS[2]))
    assert await agent.wants(PLAIN) == {}
    full = {"demo/other": "map backends is full (2 entries): raise datapath.max_entries"}
    assert await agent.wants(PLAIN, other) == full
    assert await agent.later() == full, "and what was refused leaves nothing behind"
    assert [reaches(world, row) for row in (PLAIN, other)] == [True, False]
    await agent.wants(other)
    assert await agent.later() == {}
    assert reaches(world, other)
    assert small.state.sizes()["backend_ids"] == 1, "those that were refused are given back"
    small.close()
    remove(world.pin)


@pytest.mark.slow
async def test_a_map_that_may_not_be_written_is_reported_for_the_plans_that_need_it(
    world: World, datapath: Datapath, agent: Agent
) -> None:
    freeze = libbpf.library().bpf_map_freeze
    freeze.argtypes, freeze.restype = (ctypes.c_int,), ctypes.c_int
    assert freeze(datapath.maps.fd("members")) == 0
    failures = await agent.wants(PLAIN, STICKY)
    assert failures == {"demo/sticky": "map members may not be written: the agent needs CAP_BPF and CAP_NET_ADMIN"}
    assert [reaches(world, row) for row in (PLAIN, STICKY)] == [True, False]
    assert await agent.wants(plan("plain", "10.96.7.1", group(BACKENDS[3])), STICKY) == failures
    assert world.caller.tcp("10.96.7.1")["answer"].startswith(BACKENDS[3])


@pytest.fixture
def no_memory(datapath: Datapath, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel has no memory for what plans with affinity need; every other write is real."""
    real = libbpf.update_batch

    def update(fd: int, items: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
        return (0, errno.ENOMEM) if fd == datapath.maps.fd("members") else real(fd, items)

    with monkeypatch.context() as patch:
        patch.setattr(libbpf, "update_batch", update)
        yield


@pytest.mark.slow
async def test_no_memory_is_tried_again_and_then_reported(world: World, agent: Agent, no_memory: None) -> None:
    failures = await agent.wants(PLAIN, STICKY)
    assert failures == {"demo/sticky": "map members: the kernel has no memory for another entry"}
    assert [reaches(world, row) for row in (PLAIN, STICKY)] == [True, False]


@pytest.mark.slow
async def test_a_map_deleted_under_it_is_pinned_again_with_all_that_is_in_it(
    world: World, datapath: Datapath, agent: Agent
) -> None:
    pinned = attach.pinned(world.pin) / "slots"
    await agent.wants(PLAIN)
    pinned.unlink()
    assert await agent.wants(PLAIN, STICKY) == {}
    datapath.close()
    reopened = world.open()
    assert reopened.restored
    assert len(list(reopened.maps.items("slots"))) == 4
    reopened.close()
    assert [reaches(world, row) for row in (PLAIN, STICKY)] == [True, True]


async def test_a_map_that_cannot_be_pinned_again_is_reported_for_the_plans_that_need_it(
    world: World, datapath: Datapath, tmp_path: Path
) -> None:
    for name in ("services", "clusters", "backends", "slots", "plans", "frontends"):
        (tmp_path / name).touch()
    fds = {name: datapath.maps.fd(name) for name in ("members", "frontends", "plans", "slots", "backends")}
    fds |= {name: datapath.maps.fd(name) for name in ("services", "clusters", "counters", "rings", "skips")}
    agent = Agent(PlanTarget(KernelMaps(fds, pinned=tmp_path), datapath.state))
    [(service, failure)] = (await agent.wants(PLAIN, STICKY)).items()
    assert service == "demo/sticky"
    assert failure.startswith(f"map members was deleted from {tmp_path} and cannot be pinned there again: ")
    assert reaches(world, PLAIN)
