"""The main job, end to end, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]


def test_the_story_holds_and_json_is_all_that_stands_on_stdout() -> None:
    command = [sys.executable, "-m", "isthmus", "lab", "demo", "--json", "--name", "story"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)

    outcome = json.loads(told.stdout)

    assert [step["name"] for step in outcome["steps"] if not step["ok"]] == [], told.stderr
    assert outcome["ok"]
    assert told.returncode == 0
    assert len(outcome["steps"]) == 9
    assert sum(step["seconds"] for step in outcome["steps"]) < 60


def test_without_its_manifests_the_story_is_one_line_and_exit_code_1() -> None:
    command = [sys.executable, "-m", "isthmus", "lab", "demo", "--json", "--from", "/nowhere", "--name", "story"]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert told.returncode == 1
    assert json.loads(told.stdout)["steps"][0]["detail"] == "/nowhere: is no directory"
    assert "Traceback" not in told.stderr
