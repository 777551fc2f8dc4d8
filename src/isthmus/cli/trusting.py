"""``isthmus clusters distrust`` and ``trust``: take a peer's records out of the own cluster at once, and back.

What is decided is an object of the own API server, so it outlives every process, and every agent and the operator see
it at the same time.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from isthmus.cli import output

FIELD_MANAGER = "isthmus-cli"

_options = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="The operator's TOML file; ISTHMUS_* overrides it."
    ),
    click.option("--set", "flags", multiple=True, metavar="SECTION.FIELD=VALUE", help="Set one field; repeatable."),
    click.option("--kubeconfig", default="", help="Of the own cluster. [default: kubernetes.kubeconfig, $KUBECONFIG]"),
    click.option("--context", default="", help="The kubeconfig's context. [default: its current one]"),
    click.option("-n", "--namespace", default="", help="Where Isthmus runs. [default: kubernetes.namespace]"),
)


def _of_an_apiserver(command: click.decorators.FC) -> click.decorators.FC:
    for option in reversed(_options):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@_of_an_apiserver
def distrust(
    name: str, file: Path | None, flags: tuple[str, ...], kubeconfig: str, context: str, namespace: str
) -> None:
    """Take all records of the cluster NAME out at once, here, until `isthmus clusters trust NAME`."""
    _decide(name, True, file=file, flags=flags, kubeconfig=kubeconfig, context=context, namespace=namespace)
    output.note(f"no record of cluster {name} counts here any more; undo: isthmus clusters trust {name}")


@click.command()
@click.argument("name")
@_of_an_apiserver
def trust(name: str, file: Path | None, flags: tuple[str, ...], kubeconfig: str, context: str, namespace: str) -> None:
    """Undo `isthmus clusters distrust NAME`: its records count again as soon as they are read."""
    _decide(name, False, file=file, flags=flags, kubeconfig=kubeconfig, context=context, namespace=namespace)
    output.note(f"cluster {name} is trusted again: isthmus clusters status")


def _decide(
    name: str,
    distrusted: bool,
    *,
    file: Path | None,
    flags: tuple[str, ...],
    kubeconfig: str,
    context: str,
    namespace: str,
) -> None:
    """Write the decision; what is wrong is one line."""
    from isthmus import kube
    from isthmus.config import ConfigError, load
    from isthmus.kube.objects.core import CONFIG_MAP
    from isthmus.model.names import ClusterName, valid_cluster
    from isthmus.sources import peer_policies

    if not valid_cluster(name):
        raise click.ClickException(f"'{name}' cannot be a cluster's name")
    given = {"kubeconfig": kubeconfig, "context": context, "namespace": namespace}
    named = [f"kubernetes.{field}={value}" for field, value in given.items() if value]
    try:
        section = load(
            file, environment=os.environ, flags=[*_default_kubeconfig(file, flags), *flags, *named]
        ).kubernetes
    except ConfigError as why:
        raise click.ClickException(str(why)) from None
    cluster = ClusterName(name)

    async def write() -> None:
        async with await kube.connect(section) as client:
            await client.apply(
                CONFIG_MAP,
                section.namespace,
                peer_policies.name_of(cluster),
                peer_policies.body(cluster, distrusted=distrusted),
                field_manager=FIELD_MANAGER,
            )

    try:
        asyncio.run(write())
    except (kube.KubeError, ConfigError, OSError) as why:
        raise click.ClickException(str(why)) from None


def _default_kubeconfig(file: Path | None, flags: tuple[str, ...]) -> list[str]:
    """Without a configuration the command is run by a person, whose kubeconfig is where kubectl looks for it."""
    if file is not None or any(flag.startswith("kubernetes.kubeconfig=") for flag in flags):
        return []
    found = Path(os.environ.get("KUBECONFIG", "").partition(":")[0] or Path.home() / ".kube" / "config")
    return [f"kubernetes.kubeconfig={found}"] if found.exists() else []
