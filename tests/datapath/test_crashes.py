"""The reconciler is killed at any map operation: calls never notice, and the next one puts everything right."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from datapath_worlds import bpf_lives
from datapath_worlds.bpf_model import TellingMaps, canonical
from datapath_worlds.bpf_world import BACKENDS, World, done, programmed

from isthmus.datapath import Datapath, PlanTarget, view
from isthmus.datapath.core.manifest import Row
from isthmus.datapath.services.installed import State

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

LIVES = 15


@pytest.mark.parametrize("seed", [1])
@pytest.mark.slow
async def test_killed_at_any_map_operation_it_converges_with_its_numbers_and_no_call_fails(
    world: World, datapath: Datapath, seed: int
) -> None:
    programmed(datapath.target(), bpf_lives.STABLE)
    before = numbers(datapath)
    datapath.close()
    lives = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "datapath_worlds.bpf_lives",
        *(world.pin, str(world.cgroup), str(seed), str(LIVES)),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(bpf_lives.__file__).parents[1])},
    )
    output = asyncio.create_task(lives.communicate())
    answers: list[dict[str, str]] = []
    while not output.done():
        answers += await asyncio.to_thread(
            world.caller.calls, "tcp", bpf_lives.STABLE.frontends[0].address, 80, times=50
        )
    ends = (await output)[0].split()
    reopened = world.open()
    after, dumped = numbers(reopened), canonical(reopened.maps)
    reopened.close()
    assert lives.returncode == 0
    assert ends.count(str(-signal.SIGKILL).encode()) > LIVES // 2
    assert {each.get("error") or each["answer"].split()[0] for each in answers} == set(BACKENDS[:3])
    assert before == after
    assert dumped == fresh(seed)


def numbers(datapath: Datapath) -> dict[str, list[Row]]:
    """The stable service's entries, with every number."""
    dumped = view.dump(datapath.maps)
    of_stable = [row for row in dumped["frontends"] + dumped["slots"] if "stable" in row["plan"]]
    backends = {row["backend_id"] for row in of_stable if "backend_id" in row}
    return {
        "service": [row for row in dumped["services"] if "stable" in row["name"]],
        "plan": of_stable,
        "backends": [row for row in dumped["backends"] if row["id"] in backends],
    }


def fresh(seed: int) -> dict[str, list[Row]]:
    """What the maps are when the last life's plans are all there ever was."""
    maps = TellingMaps()
    assert done(PlanTarget(maps, State()).update(bpf_lives.final(seed))) == {}
    return canonical(maps)
