"""Options that several commands share."""

from __future__ import annotations

import click

lab_name = click.option(
    "--name", default="demo", show_default=True, envvar="ISTHMUS_LAB", help="What the lab is called; or $ISTHMUS_LAB."
)
