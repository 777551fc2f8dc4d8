"""Every command of docs/install.md and docs/upgrade.md is run by a test on real nodes, named here by its heading."""

from __future__ import annotations

import shlex

import click
import pytest

from isthmus.cli import root
from nodes import page

COMMANDS, LIFE, ISLANDS = (f"tests/nodes/test_{each}.py" for each in ("commands", "life", "islands"))
WALK = "tests/support/nodes/walk.py"
RUN = {
    "install.md": {
        "By one command": COMMANDS,
        "With Helm": LIFE,
        "Keys by hand": WALK,
        "Three etcds": COMMANDS,
        "4. Apply": WALK,
        "5. Connect": COMMANDS,
        "Links by hand": WALK,
        "6. See that it works": LIFE,
        "Islands": ISLANDS,
        "The mirror": WALK,
        "Remove": LIFE,
        "What Helm installed": LIFE,
        "Objects by hand": LIFE,
    },
    "upgrade.md": {
        "Before": COMMANDS,
        "By command": COMMANDS,
        "By kubectl": LIFE,
        "By Helm": LIFE,
        "Going back": COMMANDS,
    },
}
"""Test of each heading's commands, or the walk that tests take."""
LINES = sorted({line for name in RUN for lines in page.commands(name).values() for line in lines})


@pytest.mark.parametrize("name", RUN)
def test_each_heading_with_commands_has_a_test_that_runs_them(name: str) -> None:
    assert page.commands(name).keys() == RUN[name].keys()
    for heading, path in RUN[name].items():
        source = (page.DOCS.parent / path).read_text()
        assert f'"{heading}"' in source, f"{path} runs no command below '{heading}'"


@pytest.mark.parametrize("line", [each for each in LINES if each.startswith("isthmus ")])
def test_its_commands_exist_with_their_options(line: str) -> None:
    _, *words = shlex.split(line)
    command: click.Command = root
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    assert {word for word in words if word.startswith("-")} <= {
        option for each in command.params for option in each.opts
    }
