"""The lab that a command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from isthmus_lab.layout import Lab


def find_lab(name: str) -> Lab:
    """A lab that is up; a ClickException where there is none. One without its supervisor is used, with a warning."""
    from isthmus_lab import record, supervisor_client
    from isthmus_lab.layout import Lab

    join(Lab(name))
    try:
        lab = record.read(name).lab
    except KeyError:
        raise click.ClickException(f"there is no lab {name}{other_labs()}") from None
    if supervisor_client.abandoned(lab):
        todo = f"nothing of it is restarted any more; isthmus lab down --lab {name}, then up again"
        click.echo(f"the supervisor of lab {name} has died: {todo}", err=True)
    return lab


def join(lab: Lab) -> None:
    """Go on where the lab is; a ClickException where that is not allowed."""
    from isthmus_lab import confinement

    try:
        confinement.join(lab)
    except confinement.NotConfined as error:
        raise click.ClickException(str(error)) from None


def other_labs() -> str:
    """Hint after "there is no lab": the existing labs, or how to create one."""
    from isthmus.cli import local
    from isthmus_lab import removal

    names = removal.names()
    return f"; there are: {', '.join(names)}" if names else f": isthmus lab up{local.of_root()}"
