"""Logging: a line per event on stderr, readable by eyes or by machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from isthmus import logs
early = logs.get("early")
logs.configure(level={level!r}, form={form!r})
early.info("made before the set-up")
logs.get("part").warning("two words", why="a = b", lines="one\\ntwo", name="café")
logs.get("part").debug("a detail")
"""


def said(*, level: str = "info", form: str = "text") -> list[str]:
    """What a process logs."""
    program = PROGRAM.format(level=level, form=form)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    return ran.stderr.splitlines()


def test_text_says_when_how_grave_what_and_who() -> None:
    lines = said()
    assert len(lines) == 2
    assert "[warning  ] two words" in lines[1]
    assert "part=part" in lines[1]
    assert "why='a = b'" in lines[1]
    assert "\x1b" not in lines[1]


def test_json_is_an_object_per_line() -> None:
    early, later = map(json.loads, said(form="json"))
    assert (early["event"], early["part"]) == ("made before the set-up", "early")
    assert (later["level"], later["lines"], later["name"]) == ("warning", "one\ntwo", "café")
    assert later["timestamp"].endswith("Z")


def test_the_level_is_the_least_that_is_said() -> None:
    assert len(said(level="debug")) == 3
    assert len(said(level="warning")) == 1
    assert said(level="error") == []


BROKEN = """
from isthmus import logs
logs.configure(form={form!r})
def connect(password):
    raise ValueError("refused")
try:
    connect("".join(["hunt", "er2"]))
except ValueError:
    logs.get("part").exception("broken")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_has_the_lines_of_code_and_no_values_of_variables(form: str) -> None:
    command = [sys.executable, "-c", BROKEN.format(form=form)]
    logged = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "in connect" in logged
    assert "ValueError: refused" in logged
    assert "hunter2" not in logged


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_cannot_be_written_costs_nothing_else(form: str) -> None:
    program = PROGRAM.format(level="debug", form=form)
    with Path("/dev/full").open("w") as full:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        subprocess.run([sys.executable, "-c", program], stderr=full, check=True, env=environment)
