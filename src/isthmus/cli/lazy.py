"""Commands that are imported when they are called: ``isthmus --help`` and each command pay for themselves alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands known as ``module:attribute`` with a line of help, and of those other distributions add.

    An added command is an entry point of the group ``entry_points``. It is listed with the help of its own, so that
    ``--help`` imports it; a name that is declared here is never looked up there.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], entry_points: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._entry_points = entry_points

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names: first those declared, in their order, then those added."""
        return [*self._lazy, *sorted(each.name for each in self._added())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name in self._lazy:
            module, _, attribute = self._lazy[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return next((_load(each) for each in self._added() if each.name == cmd_name), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands' lines of help; of those declared here none is imported."""
        added = [(each.name, _load(each).get_short_help_str(formatter.width)) for each in self._added()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, line) for name, (_, line) in self._lazy.items()), *sorted(added)])

    def _added(self) -> list[metadata.EntryPoint]:
        if not self._entry_points:
            return []
        return [each for each in metadata.entry_points(group=self._entry_points) if each.name not in self._lazy]


def _load(entry: metadata.EntryPoint) -> click.Command:
    command: click.Command = entry.load()
    return command
