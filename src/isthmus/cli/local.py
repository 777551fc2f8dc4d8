"""Clusters on this machine other than the one of ``/run/isthmus``: a lab lists those it runs in a small file.

``LAB/clusters.json`` in the directory of labs has an object per cluster, with the admin sockets of its processes and
the directory where its (first) node's agent pins BPF maps. Whatever writes such a file is found; nothing is imported.
"""

from __future__ import annotations

import click
import msgspec
from click.core import ParameterSource

from isthmus import host_user
from isthmus.cli import completion, contexts

LABS = host_user.LABS
FILE = "clusters.json"


def _without_context(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value, unless ``isthmus --context`` is given: beside one a variable has no effect, an option is refused."""
    if value is None or not contexts.selected(ctx):
        return value
    if param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.ENVIRONMENT:
        return None
    raise click.UsageError(f"--context and {param.opts[0]} exclude each other")


lab_option = click.option(
    "--lab",
    metavar="LAB",
    envvar="ISTHMUS_LAB",
    callback=_without_context,
    shell_complete=completion.labs,
    help="Which lab; or $ISTHMUS_LAB.  [default: demo, or the only one]",
)
"""Shared by commands about a lab and commands about a cluster of one."""
cluster_option = click.option(
    "--cluster",
    metavar="CLUSTER",
    callback=_without_context,
    shell_complete=completion.clusters,
    help="A cluster of a lab on this machine: c1, c2, …",
)


class LocalCluster(msgspec.Struct, frozen=True):
    """One cluster of the file: absolute paths."""

    sockets: dict[str, str]
    """Paths of the admin sockets, by process."""
    pin: str
    """Directory of pinned maps; empty if the lab runs without privileges and so has none."""
    agents: dict[str, str] = {}
    """Admin sockets of the agents of further nodes, by node."""


def labs() -> list[str]:
    """The names of this user's labs; a ClickException where they cannot be read."""
    if reason := host_user.refusal():
        raise click.ClickException(reason)
    return sorted(path.parent.name for path in LABS.glob(f"*/{FILE}"))


def of_root() -> str:
    """Text after "there is no lab" for an ordinary user: root may have one."""
    roots_labs = host_user.HOST_USER != 0 and (host_user.RUN_OF_ROOT / "labs").exists()
    return "; labs of root are seen with sudo" if roots_labs else ""


def default_lab() -> str:
    """The default lab."""
    names = labs()
    return names[0] if len(names) == 1 else "demo"


def clusters(lab: str) -> dict[str, LocalCluster]:
    """The clusters of a lab by name; a ClickException where its file cannot be read."""
    path = LABS / lab / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, LocalCluster])
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{path}: {error}") from None


def cluster(name: str | None, *, lab: str | None) -> LocalCluster:
    """The cluster that ``--cluster`` and ``--lab`` mean; a ClickException that lists the choice where there is none."""
    names = labs()
    lab = lab or default_lab()
    if lab not in names:
        up = f"; up are: {', '.join(names)}" if names else ""
        raise click.ClickException(f"no lab '{lab}' on this machine{up}; start it with: isthmus lab up{of_root()}")
    found = clusters(lab)
    if name is None:
        raise click.UsageError(f"which cluster of lab '{lab}'? add --cluster {'|'.join(found)}")
    if name not in found:
        raise click.ClickException(f"lab '{lab}' has no cluster '{name}'; it has: {', '.join(found)}")
    return found[name]
