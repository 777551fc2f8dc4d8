"""``isthmus lab image``: the programs that stand in for images, while a lab runs."""

from __future__ import annotations

import click

from isthmus.cli import groups
from isthmus_lab.cli.labs import find_lab
from isthmus_lab.cli.options import lab_name


@click.group("image", cls=groups.Group)
def group() -> None:
    """Programs that stand in for images."""


@group.command()
@lab_name
@click.option("--stand-in", is_flag=True, help="Only listen on the container's ports and answer: give names alone.")
@click.argument("images", nargs=-1, required=True, metavar="NAME=COMMAND…")
def add(name: str, stand_in: bool, images: tuple[str, ...]) -> None:
    """Add stand-ins to a lab; pods that wait for them start, others keep what they run until they are restarted.

    Example: isthmus lab image add acme/shop python3 /srv/shop.py
    """
    import msgspec

    from isthmus_lab import images as table
    from isthmus_lab import record

    find_lab(name)
    try:
        added = dict.fromkeys(images, table.STAND_IN) if stand_in else dict(map(table.parse_option, images))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    before = record.read(name)
    record.write(msgspec.structs.replace(before, images={**before.images, **added}))
    click.echo(f"lab {name} has a stand-in for {', '.join(added)}")


@group.command("list")
@lab_name
def list_images(name: str) -> None:
    """List the lab's own stand-ins, then those built in.

    Example: isthmus lab image list
    """
    from isthmus.cli import output
    from isthmus_lab import images as table
    from isthmus_lab import record

    find_lab(name)
    rows = [[each, table.shown(image), "lab"] for each, image in record.read(name).images.items()]
    rows += [[each, table.shown(image), "built in"] for each, image in table.BUILT_IN.items()]
    output.table(["IMAGE", "COMMAND", "FROM"], rows)
