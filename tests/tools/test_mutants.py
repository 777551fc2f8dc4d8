"""`make mutants` ends what it starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from labs.lab_running import until

MUTANTS = Path(__file__).resolve().parents[2] / "tools" / "mutants.py"
INTERRUPTED = """
import runpy, signal, sys, threading
mutants = runpy.run_path({path!r})
script = "setsid sleep 1000 & echo $! > {pid}; sleep 1000"
with mutants["workers"](2) as pool:
    command = [*mutants["CONTAINED"], "sh", "-c", script]
    for _ in pool.map(lambda _: mutants["exit_code"](command, environment={{}}), range(9)):
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_tests_of_edits_and_their_daemons_end_when_it_is_interrupted(tmp_path: Path, number: int) -> None:
    pid = tmp_path / "pid"
    program = subprocess.Popen([sys.executable, "-c", INTERRUPTED.format(path=str(MUTANTS), pid=pid)])
    until(lambda: pid.exists() and pid.read_text())
    program.send_signal(number)  # to this process alone, as `kill` does, and not to those of the terminal
    assert program.wait(60) != 0
    until(lambda: not Path("/proc", pid.read_text().strip()).exists(), what="the daemon has ended")
