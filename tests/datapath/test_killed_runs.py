"""A test run that is killed leaves nothing for the next one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import leftovers, processes, sweep
from labs.lab_running import until

SUPPORT = Path(__file__).resolve().parents[1] / "support"
KILLED = """
import os, signal, sys
from pathlib import Path
from datapath_worlds.bpf_world import World
World(Path(sys.argv[1])).open()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.bpf
@pytest.mark.slow
def test_what_a_killed_run_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env={"PYTHONPATH": str(SUPPORT)})
    try:
        assert killed.wait(240) == -signal.SIGKILL
        [name] = [each for each in leftovers() if f"-{killed.pid}-" in each]
        assert len(leftovers()[name]) == 4, "a cgroup, a bpffs and two namespaces"
        [server] = processes(f"{name}-b")
    finally:
        sweep()
    assert name not in leftovers()
    until(lambda: not Path(f"/proc/{server}").exists(), what="its echo server has ended")
