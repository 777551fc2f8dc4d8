"""``isthmus bpf``: what is really in the kernel, decoded; it needs no process of ours to be running."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from isthmus.cli import groups, local, output
from isthmus.config import DatapathSection


@click.group(cls=groups.Group)
def group() -> None:
    """What is really in the kernel."""


@group.command()
@click.argument("only", metavar="[MAP]...", nargs=-1)
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--mask-ids", is_flag=True, help="Leave out ids and generations, which differ from run to run.")
@click.option("--pin", metavar="DIR", help=f"Where the maps are pinned. [default: {DatapathSection().pin}]")
@local.cluster_option
@local.lab_option
def maps(
    only: tuple[str, ...], form: str, mask_ids: bool, pin: str | None, cluster: str | None, lab: str | None
) -> None:
    """Every entry of our maps, or of the maps named, with names beside numbers.

    Example: isthmus bpf maps plans backends --cluster c3
    """
    from isthmus import datapath
    from isthmus.datapath import view

    where = pin or (local.cluster(cluster, lab=lab).pin if cluster or lab else DatapathSection().pin)
    if not where:
        raise click.ClickException(
            "there are no BPF maps: this lab runs without privileges, with nftables or an Envoy in their place"
        )
    try:
        opened = datapath.open_maps(where)
    except datapath.DatapathError as error:
        raise click.ClickException(str(error)) from None
    try:
        dumped = view.dump(opened, masked=mask_ids)
    finally:
        opened.close()
    if unknown := [name for name in only if name not in dumped]:
        raise click.UsageError(f"no map '{unknown[0]}'; there are: {', '.join(dumped)}")
    chosen = {name: rows for name, rows in dumped.items() if not only or name in only}
    if form == "json":
        output.json(chosen)
    else:
        _print(chosen)


@group.command()
@click.option(
    "--pin", metavar="DIR", default=DatapathSection().pin, show_default=True, help="Where the maps are pinned."
)
@click.option("--everything", is_flag=True, help="Addresses of the name server, and files in /run and /var/lib, too.")
@click.option("--root", default="/", type=click.Path(path_type=Path), help="The node's root, as it is mounted here.")
def remove(pin: str, everything: bool, root: Path) -> None:
    """Detach our programs from this node and unpin its maps: calls by clusterset name end here. Stop the agent first.

    Example: isthmus bpf remove --everything
    """
    from isthmus import datapath

    try:
        datapath.remove(pin)
    except (datapath.DatapathError, OSError) as error:
        raise click.ClickException(str(error)) from None
    output.line(f"{pin}: no program is attached, no map is pinned")
    if everything:
        _remove_addresses()
        for place in ("run/isthmus", "var/lib/isthmus"):
            _remove_folder(root / place)


def _remove_addresses() -> None:
    """Remove the addresses that deploy/agent gives ``lo``; one that is not there is fine."""
    from isthmus.installation.plan import LINK_LOCAL

    for address in LINK_LOCAL.values():
        prefix = 128 if ":" in address else 32
        command = ["ip", "address", "del", f"{address}/{prefix}", "dev", "lo"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        output.line(f"{address}: {'removed from lo' if not done.returncode else 'not on lo'}")


def _remove_folder(place: Path) -> None:
    if not place.is_dir():
        return
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise click.ClickException(f"{place}: {error.strerror}: {error.filename}") from None
    output.line(f"{place}: removed")


def _print(maps: Mapping[str, list[dict[str, Any]]]) -> None:
    for name, rows in maps.items():
        if not rows:
            continue
        fields = list(dict.fromkeys(field for row in rows for field in row))
        print(f"{name} ({len(rows)})")
        heads = ["  " + fields[0].upper(), *(field.upper().replace("_", "-") for field in fields[1:])]
        output.table(heads, [_cells(fields, row) for row in rows])
        print()


def _cells(fields: list[str], row: Mapping[str, Any]) -> list[str]:
    first, *rest = (_text(row.get(field)) for field in fields)
    return ["  " + first, *rest]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(" ".join(f"{name}={each}" for name, each in part.items()) for part in value)
    return "" if value is None else str(value)
