"""The story of two flat clusters and two islands, as a user runs it: ``make test-failover``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from labs.lab_running import assert_story_holds, lab_name
from labs.lab_traces import traces
from machine.ordinary_user import OrdinaryUser

from isthmus_lab.layout import Lab

LAB = Lab(lab_name("z"), 4)
COMMAND = [sys.executable, "-m", "isthmus", "lab", "demo", "--story", "islands", "--json", "--lab", LAB.name]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.failover
@pytest.mark.needs("envoy")
@pytest.mark.timeout(900)
def test_every_step_of_the_story_of_islands_holds() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, timeout=800)
    assert_story_holds(json.loads(done.stdout), 11, done.stderr)
    assert done.returncode == 0
    assert traces(LAB) == {name: [] for name in traces(LAB)}


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.failover
@pytest.mark.needs("envoy")
@pytest.mark.timeout(900)
def test_the_story_of_islands_holds_for_an_ordinary_user_without_bpf() -> None:
    user = OrdinaryUser()
    done = user.isthmus("lab", "demo", "--story", "islands", "--json", code=None)
    assert_story_holds(json.loads(done.stdout), 11, done.stderr)
    assert done.returncode == 0
    assert (user.processes(), user.directory.exists()) == ([], False)
