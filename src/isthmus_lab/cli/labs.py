"""The lab that a command names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from isthmus_lab.layout import Lab


def known(name: str) -> Lab:
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
    except confinement.NotConfined as why:
        raise click.ClickException(str(why)) from None


def other_labs() -> str:
    """What to say after "there is no lab": those that are there, or how to make one."""
    from isthmus.cli import local
    from isthmus_lab import removal

    found = removal.names()
    return f"; there are: {', '.join(found)}" if found else f": isthmus lab up{local.of_root()}"
