"""Clusters on this machine other than the one of ``/run/isthmus``: a lab lists those it runs in a small file.

``/run/isthmus/labs/LAB/clusters.json`` has an object per cluster, with the admin sockets of its processes and the
directory where its (first) node's agent pins BPF maps. Whatever writes such a file is found; nothing is imported.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

LABS = Path("/run/isthmus/labs")
FILE = "clusters.json"


lab_option = click.option(
    "--lab", metavar="LAB", envvar="ISTHMUS_LAB", help="Which lab; or $ISTHMUS_LAB.  [default: demo, or the only one]"
)
"""Shared by commands about a lab and commands about a cluster of one."""


class LocalCluster(msgspec.Struct, frozen=True):
    """One cluster of the file: absolute paths."""

    sockets: dict[str, str]
    """Of the admin sockets, by process."""
    pin: str


def labs() -> list[str]:
    """The names of the labs of this machine; a ClickException where they cannot be read."""
    try:
        return sorted(path.parent.name for path in LABS.glob(f"*/{FILE}"))
    except PermissionError:
        raise click.ClickException(f"{LABS} is root's only: run this command with sudo") from None


def default_lab() -> str:
    """The lab that is meant where none is named."""
    present = labs()
    return present[0] if len(present) == 1 else "demo"


def clusters(lab: str) -> dict[str, LocalCluster]:
    """The clusters of a lab by name; a ClickException where its file cannot be read."""
    path = LABS / lab / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, LocalCluster])
    except PermissionError:
        raise click.ClickException(f"{path.parent} is root's only: run this command with sudo") from None
    except (OSError, msgspec.MsgspecError) as why:
        raise click.ClickException(f"{path}: {why}") from None


def cluster(name: str | None, *, lab: str | None) -> LocalCluster:
    """The cluster that ``--cluster`` and ``--lab`` mean; a ClickException that lists the choice where there is none."""
    present = labs()
    lab = lab or default_lab()
    if lab not in present:
        up = f"; up are: {', '.join(present)}" if present else ""
        raise click.ClickException(f"no lab '{lab}' on this machine{up}; start it with: isthmus lab up")
    found = clusters(lab)
    if name is None:
        raise click.UsageError(f"which cluster of lab '{lab}'? add --cluster {'|'.join(found)}")
    if name not in found:
        raise click.ClickException(f"lab '{lab}' has no cluster '{name}'; it has: {', '.join(found)}")
    return found[name]
