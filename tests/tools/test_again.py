"""`tools/again.py` runs few failed tests once more and names them; .ci/run runs its suites by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

AGAIN = Path(__file__).resolve().parents[2] / "tools" / "again.py"
PASSES = "def test_passes(): pass\n"
PASSES_LATER = """
from pathlib import Path
def test_passes_later():
    ran = Path(__file__).with_name("ran")
    later = ran.exists()
    ran.touch()
    assert later
"""
FAILS = "".join(f"def test_fails_{number}(): assert False\n" for number in range(4))
CRASHES = "import os\ndef test_crashes(): os._exit(3)\n"
ONE, FOUR = "\n".join(FAILS.splitlines()[:1]), FAILS


@pytest.mark.parametrize(
    ("tests", "code", "runs", "flaky"),
    [
        (PASSES, 0, 1, []),
        (PASSES + PASSES_LATER, 0, 2, ["flaky: test_it.py::test_passes_later"]),
        (PASSES + ONE, 1, 2, []),
        (PASSES_LATER + ONE, 1, 2, []),
        (PASSES + FOUR, 1, 1, []),
        (CRASHES, 3, 1, []),
    ],
    ids=["none", "one that passes then", "one that fails again", "one of two fails again", "many", "pytest ends"],
)
def test_few_failed_tests_run_once_more(tmp_path: Path, tests: str, code: int, runs: int, flaky: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(tests)
    (tmp_path / "conftest.py").write_text("def pytest_sessionstart(): open('runs', 'a').write('.')\n")
    command = [sys.executable, str(AGAIN), sys.executable, "-m", "pytest", "-q", "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "runs").read_text() == "." * runs
    assert [line for line in done.stdout.splitlines() if line.startswith("flaky:")] == flaky


def test_only_those_that_failed_run_once_more(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PASSES + PASSES_LATER)
    command = [sys.executable, str(AGAIN), sys.executable, "-m", "pytest", "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "1 failed, 1 passed" in done.stdout
    assert "1 passed" in done.stdout.partition("again: ")[2]
    assert "2 passed" not in done.stdout


def test_a_failure_of_an_earlier_run_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PASSES_LATER)
    subprocess.run([sys.executable, "-m", "pytest", "--rootdir", "."], cwd=tmp_path, capture_output=True, check=False)
    done = subprocess.run([sys.executable, str(AGAIN), "false"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
