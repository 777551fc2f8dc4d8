"""The simulator repeats a run exactly, finds planted defects, and replays stories that failed once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus_sim import cases, events
from isthmus_sim.shrinking import shrunk

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isthmus_sim", *arguments]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_story_of_faults_ends_with_equal_imports_and_goes_alike_each_time() -> None:
    story = str(Path(__file__).parent / "cases" / "faults.txt")
    done = simulate("replay", story, story)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (line.split()[-4] for line in done.stdout.splitlines())
    assert first == second, done.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_story_that_failed_once_holds(case: Path) -> None:
    done = simulate("replay", str(case))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_story_is_a_text_that_can_be_read_back(tmp_path: Path) -> None:
    case = cases.Case(7, events.parse("1.5 export c1 demo/echo red\n# a comment\n\n2.000 cut c1.a c2.etcd 20\n"))
    file = tmp_path / "case.txt"
    file.write_text(cases.text(case, comments=("what it showed",)))
    assert cases.read(file) == case
    assert case.events[1].lasts == 20


def test_shrinking_keeps_what_the_failure_needs_and_nothing_else() -> None:
    kept = shrunk(range(40), lambda fewer: {3, 17, 31} <= set(fewer))
    assert kept == [3, 17, 31]
