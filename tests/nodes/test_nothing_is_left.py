"""A world of nodes ends with the process that made it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nodes.cluster import until

from nodes import reaper

pytestmark = [pytest.mark.nodes]

PROGRAM = """
import signal
from nodes.node import Node
from nodes.world import World

world = World()
node = Node(world, "c1", "172.30.0.11", "10.1.0.0/24")
node.start_containerd([])
print(world.name, world.folder, flush=True)
signal.pause()
"""


def traces(name: str, folder: Path) -> list[str]:
    """Everything that a world has on this machine."""
    groups = [hierarchy / name for hierarchy in reaper.hierarchies("cgroup", "cgroup2")]
    found = [str(path) for path in (*groups, folder) if path.exists()]
    found += [str(path) for path in Path("/run/netns").glob(f"{name}-*")]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [command] if name in command else []
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_nothing_is_left_of_a_node_after_a_signal(number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(reaper.__file__).parents[1])}
    made = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert made.stdout is not None
    name, folder = made.stdout.readline().split()
    assert len(traces(name, Path(folder))) > 5
    made.send_signal(number)
    made.communicate(timeout=60)
    until(lambda: traces(name, Path(folder)) == [], what="end of all processes, groups, namespaces and files")
