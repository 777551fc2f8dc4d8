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

if TYPE_CHECKING:
    from isthmus import kube

FIELD_MANAGER = "isthmus-cli"


class Server(Struct, frozen=True):
    """Which API server is meant, as the options say it."""

    file: Path | None = None
    flags: tuple[str, ...] = ()
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""
    """Where Isthmus runs; empty: as configured."""


_options = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="The operator's TOML file; ISTHMUS_* overrides it."
    ),
    click.option("--set", "flags", multiple=True, metavar="SECTION.FIELD=VALUE", help="Set one field; repeatable."),
    click.option("--kubeconfig", default="", help="Of the own cluster. [default: kubernetes.kubeconfig, $KUBECONFIG]"),
    click.option("--context", default="", help="The kubeconfig's. [default: that of isthmus --context, or current]"),
    click.option("-n", "--namespace", default="", help="Where Isthmus runs. [default: kubernetes.namespace]"),
)


def options(command: click.decorators.FC) -> click.decorators.FC:
    """The options of a command; it gets them as the fields of :class:`Server`."""
    for option in reversed(_options):
        command = option(command)
    return command


def carry_out(server: Server, act: Callable[[kube.Client, str], Coroutine[Any, Any, None]]) -> None:
    """Run with a client and the namespace that Isthmus runs in; what is wrong is one line."""
    from isthmus import kube
    from isthmus.config import ConfigError, load

    context = server.context or sockets.context()
    given = {"kubeconfig": server.kubeconfig, "context": context, "namespace": server.namespace}
    named = [f"kubernetes.{field}={value}" for field, value in given.items() if value]
    flags = [*_default_kubeconfig(server.file, server.flags), *server.flags, *named]
    try:
        section = load(server.file, environment=os.environ, flags=flags).kubernetes
    except ConfigError as why:
        raise click.ClickException(str(why)) from None

    async def connected() -> None:
        async with await kube.connect(section) as client:
            await act(client, section.namespace)

    try:
        asyncio.run(connected())
    except (kube.KubeError, ConfigError, OSError) as why:
        raise click.ClickException(str(why)) from None


def _default_kubeconfig(file: Path | None, flags: tuple[str, ...]) -> list[str]:
    """Without a configuration the command is run by a person, whose kubeconfig is where kubectl looks for it."""
    if file is not None or any(flag.startswith("kubernetes.kubeconfig=") for flag in flags):
        return []
    found = Path(os.environ.get("KUBECONFIG", "").partition(":")[0] or Path.home() / ".kube" / "config")
    return [f"kubernetes.kubeconfig={found}"] if found.exists() else []
