"""``--lab`` of commands about labs: the option of every other command, resolved to a name."""

from __future__ import annotations

import click

from isthmus.cli import local


def _named(_context: click.Context, _option: click.Parameter, value: str | None) -> str:
    return value or local.default_lab()


lab_name = click.option(
    "--lab", "name", metavar="LAB", envvar="ISTHMUS_LAB", callback=_named,
    help="Which lab; or $ISTHMUS_LAB.  [default: demo, or the only one]",
)  # fmt: skip
new_lab_name = click.option(
    "--lab", "name", metavar="LAB", envvar="ISTHMUS_LAB", default="demo", show_default=True,
    help="What to call the lab; or $ISTHMUS_LAB.",
)  # fmt: skip
