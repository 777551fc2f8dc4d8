"""Options of commands that write into the own cluster's API server, and the connection that they describe."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from isthmus.cli import sockets
from isthmus.installation import SYSTEM

if TYPE_CHECKING:
    from isthmus import kube

FIELD_MANAGER = "isthmus-cli"


class Server(Struct, frozen=True):
    """Options that choose the API server."""

    file: Path | None = None
    flags: tuple[str, ...] = ()
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    """Namespace of Isthmus; if empty the configured one, else that of deploy/ where it exists."""


_options = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="The operator's TOML file; ISTHMUS_* overrides it."
    ),
    click.option("--set", "flags", multiple=True, metavar="SECTION.FIELD=VALUE", help="Set one field; repeatable."),
    click.option("--kubeconfig", default="", help="Of the own cluster. [default: kubernetes.kubeconfig, $KUBECONFIG]"),
    click.option("--context", default="", help="The kubeconfig's. [default: that of isthmus --context, or current]"),
    click.option(
        "-n",
        "--namespace",
        default="",
        help=f"Where Isthmus runs. [default: kubernetes.namespace, else {SYSTEM} where it exists]",
    ),
)


def options(command: click.decorators.FC) -> click.decorators.FC:
    """The options of a command; it gets them as the fields of :class:`Server`."""
    for option in reversed(_options):
        command = option(command)
    return command


def carry_out(server: Server, act: Callable[[kube.Client, str], Coroutine[Any, Any, None]]) -> None:
    """Run with a client and the namespace that Isthmus runs in; what is wrong is one line."""
    from isthmus import kube
    from isthmus.config import ConfigError, KubernetesSection, load

    context = server.context or sockets.context()
    options = {"kubeconfig": server.kubeconfig, "context": context, "namespace": server.namespace}
    named = [f"kubernetes.{field}={value}" for field, value in options.items() if value]
    flags = [*_default_kubeconfig(server.file, server.flags), *server.flags, *named]
    try:
        section = load(server.file, environment=os.environ, flags=flags).kubernetes
    except ConfigError as error:
        raise click.ClickException(str(error)) from None

    configured = server.file is not None or server.namespace or section.namespace != KubernetesSection().namespace

    async def connected() -> None:
        async with await kube.connect(section) as client:
            await act(client, section.namespace if configured else await _namespace(client, section.namespace))

    try:
        asyncio.run(connected())
    except (kube.KubeError, ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None


async def _namespace(client: kube.Client, default: str) -> str:
    """Namespace of ``deploy/`` unless the cluster has none, as a lab: there is Isthmus in ``default``.

    Objects in another one would have no effect, without any sign of it.
    """
    from isthmus import kube
    from isthmus.kube.objects.core import NAMESPACE

    try:
        await client.get(NAMESPACE, SYSTEM)
    except kube.Forbidden:
        pass  # a person who may write into one namespace: that one
    except kube.NotFound:
        return default
    return SYSTEM


def _default_kubeconfig(file: Path | None, flags: tuple[str, ...]) -> list[str]:
    """Without a configuration a person runs the command: use the kubeconfig that kubectl would use."""
    if file is not None or any(flag.startswith("kubernetes.kubeconfig=") for flag in flags):
        return []
    kubeconfig = Path(os.environ.get("KUBECONFIG", "").partition(":")[0] or Path.home() / ".kube" / "config")
    return [f"kubernetes.kubeconfig={kubeconfig}"] if kubeconfig.exists() else []
