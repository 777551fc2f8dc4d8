"""``isthmus clusters distrust`` and ``trust``: take a peer's records out of the own cluster at once, and back.

What is decided is an object of the own API server, so it outlives every process, and every agent and the operator see
it at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from isthmus.cli import apiserver, output
from isthmus.cli.apiserver import FIELD_MANAGER, Server

if TYPE_CHECKING:
    from isthmus import kube


@click.command()
@click.argument("name")
@apiserver.options
def distrust(name: str, **server: Any) -> None:
    """Take all records of the cluster NAME out at once, here, until `isthmus clusters trust NAME`.

    Example: isthmus clusters distrust c2 --context c1
    """
    _decide(name, True, Server(**server))
    output.note(f"no record of cluster {name} counts here any more; undo: isthmus clusters trust {name}")


@click.command()
@click.argument("name")
@apiserver.options
def trust(name: str, **server: Any) -> None:
    """Undo `isthmus clusters distrust NAME`: its records count again as soon as they are read.

    Example: isthmus clusters trust c2 --context c1
    """
    _decide(name, False, Server(**server))
    output.note(f"cluster {name} is trusted again: isthmus clusters status")


def _decide(name: str, distrusted: bool, server: Server) -> None:
    """Write the decision; what is wrong is one line."""
    from isthmus.kube.objects.core import CONFIG_MAP
    from isthmus.model.names import ClusterName, valid_cluster
    from isthmus.sources import peer_policies

    if not valid_cluster(name):
        raise click.ClickException(f"'{name}' cannot be a cluster's name")
    cluster = ClusterName(name)

    async def write(client: kube.Client, namespace: str) -> None:
        body = peer_policies.body(cluster, distrusted=distrusted)
        await client.apply(CONFIG_MAP, namespace, peer_policies.name_of(cluster), body, field_manager=FIELD_MANAGER)

    apiserver.carry_out(server, write)
