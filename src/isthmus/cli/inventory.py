"""Clusters of an inventory as contexts of the kubeconfig.

A ClusterProfile has the address of a cluster's API server and the names of plugins for credentials, but no credentials.
Those are in the kubeconfig, with its own plugins, so a profile is the context that has its server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
import msgspec
from msgspec import Struct

from isthmus.cli import proxied

if TYPE_CHECKING:
    from isthmus.kube.objects.inventory import ClusterProfile

CLUSTER_NAME: Final = "cluster.clusterset.k8s.io"
"""Property with a cluster's name in the clusterset (KEP-2149)."""


class _Server(Struct, frozen=True):
    server: str = ""


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: _Server = _Server()


class _Reference(Struct, frozen=True):
    cluster: str = ""


class _NamedContext(Struct, frozen=True):
    name: str
    context: _Reference = _Reference()


class Kubeconfig(Struct, frozen=True):
    """Contexts of a kubeconfig and their servers, as ``kubectl config view -o json`` prints them."""

    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None

    def servers(self) -> dict[str, str]:
        """Server of each context, in the order of the file."""
        servers = {each.name: _normal(each.cluster.server) for each in self.clusters or ()}
        return {each.name: servers.get(each.context.cluster, "") for each in self.contexts or ()}


class Member(NamedTuple):
    """A cluster of the inventory."""

    profile: str
    context: str
    """Empty if the kubeconfig has none for it."""
    cluster: str
    """Name in the clusterset by its properties; empty if they have none."""
    reason: str = ""
    """Reason why there is no context."""


def members(profiles: Sequence[ClusterProfile], config: Kubeconfig) -> list[Member]:
    """Find the context of each profile: of those that have its server the one with its name, else the first.

    A profile without any server is the context of its name.
    """
    return [
        _member(profile, config.servers()) for profile in sorted(profiles, key=lambda profile: profile.metadata.name)
    ]


def _member(profile: ClusterProfile, servers: dict[str, str]) -> Member:
    name, status = profile.metadata.name, profile.status
    providers = [*(status.access_providers or ()), *(status.credential_providers or ())]
    addresses = {_normal(provider.cluster.server) for provider in providers} - {""}
    matches = [
        context for context, server in servers.items() if (server in addresses if addresses else context == name)
    ]
    cluster = next((item.value for item in status.properties or () if item.name == CLUSTER_NAME), "")
    if matches:
        return Member(name, name if name in matches else matches[0], cluster)
    reason = f"has its server {min(addresses)}" if addresses else "is called so, and it has no server"
    return Member(name, "", cluster, f"ClusterProfile {name}: no context of the kubeconfig {reason}")


def _normal(server: str) -> str:
    """Return a server without what kubeconfigs may leave out: the last slash and the default port."""
    return server.strip().lower().rstrip("/").removesuffix(":443")


async def read(context: str, namespace: str, kubeconfig: Path | None) -> list[Member]:
    """Read the inventory of a namespace; ClickException if the API server has no such kind."""
    from isthmus import kube
    from isthmus.kube.objects.inventory import CLUSTER_PROFILE

    config = msgspec.json.decode(await proxied.view(kubeconfig), type=Kubeconfig)
    async with proxied.client(context, kubeconfig) as client:
        try:
            profiles = await client.list(CLUSTER_PROFILE, namespace)
        except kube.NotServed:
            what = "the API server has no ClusterProfiles (multicluster.x-k8s.io/v1alpha1)"
            raise click.ClickException(what) from None
    return members(profiles, config)
