"""``--help`` of every command: an example, which the command takes."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from isthmus.cli import root


def commands(command: click.Command, context: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            inner = click.Context(found, info_name=name, parent=context)
            yield from commands(found, inner, f"{path} {name}")


COMMANDS = dict(commands(root, click.Context(root, info_name="isthmus"), "isthmus"))


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_the_command_takes(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("token", "karmada-apiserver.config"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    help_text = inspect.cleandoc(COMMANDS[path].help or "")
    [example] = [line for line in help_text.splitlines() if line.startswith("Example: ")]
    words = shlex.split(example.removeprefix(f"Example: {path}"))
    assert example.startswith(f"Example: {path}")
    with COMMANDS[path].make_context(path, words, parent=click.Context(root, info_name="isthmus")):
        pass
