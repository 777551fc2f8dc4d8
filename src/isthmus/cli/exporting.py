"""``services export``: write ServiceExports for the Services of a namespace, all or those that a selector matches.

It runs once and leaves no rule behind: an export opens a Service to other clusters, so a person decides on each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from isthmus.cli import apiserver, output
from isthmus.cli.apiserver import Server

if TYPE_CHECKING:
    from isthmus import kube
    from isthmus.kube.objects.core import Service

API: Final = ("default", "kubernetes")
"""The Service of the API server itself, which every cluster has."""


@click.command("export")
@click.argument("tenant", metavar="NAMESPACE")
@click.option(
    "-l", "--selector", default="", help="Label selector of the Services, as in kubectl. [default: all Services]"
)
@click.option("--dry-run", is_flag=True, help="Print what would be exported, and write nothing.")
@apiserver.options
def export(tenant: str, selector: str, dry_run: bool, **server: Any) -> None:
    """Export the Services that NAMESPACE has now. Services that are created later need another run.

    Example: isthmus services export demo -l app=web
    """
    from isthmus.kube.objects.core import SERVICE
    from isthmus.kube.objects.mcs import SERVICE_EXPORT

    async def write(client: kube.Client, namespace: str) -> None:
        services = await client.list(SERVICE, tenant, label_selector=selector)
        if not services:
            chosen = f" with {selector}" if selector else ""
            raise click.ClickException(
                f"there is no service{chosen} in namespace {tenant}: kubectl get services -n {tenant}"
            )
        exported = {each.metadata.name for each in await client.list(SERVICE_EXPORT, tenant)}
        for service in services:
            name = service.metadata.name
            if reason := left_out(service):
                output.line(f"service/{name} left out: {reason}")
            elif name in exported:
                output.line(f"serviceexport/{name} unchanged")
            else:
                if not dry_run:
                    await _create(client, tenant, name)
                output.line(f"serviceexport/{name} {'would be created' if dry_run else 'created'}")

    apiserver.carry_out(Server(**server), write)


def left_out(service: Service) -> str:
    """Reason why a Service is not exported; empty if it is."""
    from isthmus.mcs.words import SERVICE_NAME

    labels = service.metadata.labels or {}
    if (service.metadata.namespace, service.metadata.name) == API:
        return "the API server of each cluster is its own"
    if SERVICE_NAME in labels:
        return f"it stands for the import {labels[SERVICE_NAME]}"
    return "of type ExternalName, which cannot be exported" if service.spec.type == "ExternalName" else ""


async def _create(client: kube.Client, namespace: str, name: str) -> None:
    from isthmus import kube
    from isthmus.kube.objects.mcs import SERVICE_EXPORT

    try:
        await client.create(SERVICE_EXPORT, namespace, {"metadata": {"name": name, "namespace": namespace}})
    except kube.AlreadyExists:
        pass  # another writer was quicker
