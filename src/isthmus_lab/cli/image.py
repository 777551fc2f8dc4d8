"""``isthmus lab image``: the programs that stand in for images, while a lab runs."""

from __future__ import annotations

import click

from isthmus.cli import groups
from isthmus_lab.cli.labs import known
from isthmus_lab.cli.options import lab_name


@click.group("image", cls=groups.Group)
def group() -> None:
    """Programs that stand in for images."""


@group.command()
@lab_name
@click.option("--stand-in", is_flag=True, help="Only listen on the container's ports and answer: give names alone.")
@click.argument("images", nargs=-1, required=True, metavar="NAME=COMMAND…")
def add(name: str, stand_in: bool, images: tuple[str, ...]) -> None:
    """Add stand-ins to a lab; pods that wait for them start, others keep what they run until they are restarted."""
    import msgspec

    from isthmus_lab import images as table
    from isthmus_lab import record

    known(name)
    try:
        added = dict.fromkeys(images, table.STAND_IN) if stand_in else dict(map(table.given, images))
    except ValueError as why:
        raise click.ClickException(str(why)) from None
    before = record.read(name)
    record.write(msgspec.structs.replace(before, images={**before.images, **added}))
    click.echo(f"lab {name} has a stand-in for {', '.join(added)}")


@group.command("list")
@lab_name
def list_images(name: str) -> None:
    """List the lab's own stand-ins, then those built in."""
    from isthmus.cli import output
    from isthmus_lab import images as table
    from isthmus_lab import record

    known(name)
    rows = [[each, table.shown(image), "lab"] for each, image in record.read(name).images.items()]
    rows += [[each, table.shown(image), "built in"] for each, image in table.BUILT_IN.items()]
    output.table(["IMAGE", "COMMAND", "FROM"], rows)
