"""Commands that are imported when they are called: ``isthmus --help`` and each command pay for themselves alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from importlib import metadata


class LazyGroup(click.Group):
    """A group of commands known as ``module:attribute`` with a line of help, and of those other distributions add.

    An added command is an entry point of the group ``entry_points``, listed with the summary of its distribution. A
    name that is declared here is never looked up there.
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
        for each in self._added():
            if each.name == cmd_name:
                added: click.Command = each.load()
                return added
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an option of this group that follows the command is refused with its right place."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if not any(error.option_name in each.opts for each in self.params):
                raise
            place = f"{error.option_name} comes before the command: {ctx.command_path} {error.option_name} ..."
            raise click.UsageError(place, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands' lines of help, without importing any."""
        added = [(each.name, each.dist.metadata["Summary"] if each.dist else "") for each in self._added()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, line) for name, (_, line) in self._lazy.items()), *sorted(added)])

    def _added(self) -> list[metadata.EntryPoint]:
        if not self._entry_points:
            return []
        from importlib import metadata

        return [each for each in metadata.entry_points(group=self._entry_points) if each.name not in self._lazy]
