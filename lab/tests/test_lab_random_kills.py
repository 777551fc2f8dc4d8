"""Whatever of a lab is killed, whenever: ``down`` leaves the machine as it was.

ISTHMUS_KILLS is how often, ISTHMUS_KILLS_SEED which moments: the same seed is the same series (``make soak``).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labs.lab_running import PATIENCE, Running
from labs.lab_traces import host_network, traces

from isthmus_lab import cgroups

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("own_host")]

TIMES = int(os.environ.get("ISTHMUS_KILLS", "3"))
SEED = os.environ.get("ISTHMUS_KILLS_SEED", "")


def command(running: Running, *words: str) -> subprocess.Popen[bytes]:
    verb, *rest = words
    line = [sys.executable, "-m", "isthmus", "lab", verb, "--lab", running.lab.name, *rest]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def root(running: Running) -> Path:
    return cgroups.root() / running.lab.prefix


def the_supervisor(running: Running, dice: random.Random) -> None:
    for pid in cgroups.processes(root(running) / "supervisor"):
        cgroups.send(pid, signal.SIGKILL)


def a_cluster(running: Running, dice: random.Random) -> None:
    cgroups.kill(root(running) / "c1")


def a_node(running: Running, dice: random.Random) -> None:
    cgroups.kill(root(running) / "c1" / "n1")


def some_process(running: Running, dice: random.Random) -> None:
    if pids := cgroups.processes(root(running)):
        cgroups.send(dice.choice(pids), signal.SIGKILL)


def down_itself(running: Running, dice: random.Random) -> None:
    down = command(running, "down")
    time.sleep(dice.uniform(0.1, 0.8))
    down.kill()
    down.wait()


VICTIMS: tuple[Callable[[Running, random.Random], None], ...] = (
    the_supervisor,
    a_cluster,
    a_node,
    some_process,
    down_itself,
)


@pytest.mark.parametrize("seed", range(TIMES))
def test_what_is_left_after_a_kill_goes_without_a_trace(spare: Running, seed: int) -> None:
    dice = random.Random(f"{seed} {SEED}")
    before = host_network()
    up = command(spare, "up", "--clusters", "1")
    _a_moment(up, dice)
    victim = VICTIMS[seed % len(VICTIMS)]
    victim(spare, dice)
    if dice.random() < 0.5:
        up.kill()
    else:
        up.terminate()
    up.wait()
    spare.cli("down", code=None)
    which = f"{victim.__name__}, run {seed} of ISTHMUS_KILLS_SEED={SEED}"
    assert not any(traces(spare.lab).values()), (which, traces(spare.lab))
    assert host_network() == before, which


def _a_moment(up: subprocess.Popen[bytes], dice: random.Random) -> None:
    """Somewhere in the start, or a little after it."""
    if dice.random() < 0.3:
        up.wait(PATIENCE)
        time.sleep(dice.uniform(0.0, 2.0))
    else:
        time.sleep(dice.uniform(0.5, 5.0))
