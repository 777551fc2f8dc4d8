"""Groups of commands in whose help every command has its whole first sentence: click cuts it at one line."""

from __future__ import annotations

from typing import Final

import click

LONGEST: Final = 1000
"""Characters of a sentence; click's own limit is what is left of a line."""


class Group(click.Group):
    """A group whose help folds what is longer than a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(LONGEST)) for name, each in commands if each is not None]
            )
