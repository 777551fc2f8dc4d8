"""Every tutorial's commands print what the tutorial shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from labs.lab_running import lab_name
from labs.tutorial import Shell, Step, matches, steps
from machine import programs

from isthmus_lab import removal
from isthmus_lab.layout import Lab

ROOT = Path(__file__).parents[2]
TEXTS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "README.md")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_a_tutorials_commands_print_what_it_shows(text: Path) -> None:
    name = lab_name("t")
    tools = [str(Path(sys.executable).parent), str(Path(programs.path("kubectl")).parent), os.environ["PATH"]]
    shell = Shell(ROOT, {**os.environ, "PATH": ":".join(tools), "ISTHMUS_LAB": name})
    try:
        for step in steps(text.read_text()):
            shell.run(step)
    finally:
        removal.remove(Lab(name))


def test_every_tutorial_is_listed() -> None:
    listed = (ROOT / "docs" / "tutorials" / "README.md").read_text()
    assert [path.name for path in TEXTS if f"({path.name})" not in listed] == []


def test_commands_and_what_they_print_are_distinguished() -> None:
    text = "prose\n```console\n$ one\nprints\n$ two \\\n    more\n```\nprose\n"
    assert list(steps(text)) == [Step(3, "one", ["prints"]), Step(5, "two  more", [])]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["a…c"], "abc\n", True),
        (["a…c"], "abd\n", False),
        (["…", "last"], "one\ntwo\nlast\n", True),
        (["only"], "only\nmore\n", False),
        (["NAME   AGE"], "NAME     AGE\n", True),
        ([], "", True),
        ([], "something\n", False),
    ],
)
def test_an_ellipsis_stands_for_anything(expected: list[str], printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
