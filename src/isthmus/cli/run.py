"""``isthmus agent``, ``operator`` and the other processes: read the configuration and become that process."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from isthmus.cli import groups
from isthmus.cli.dnsquery import query
from isthmus.config import Config, ConfigError, load

_OPTIONS = (
    click.option(
        "--config", "file", type=click.Path(path_type=Path), help="A TOML file; ISTHMUS_SECTION_FIELD overrides it."
    ),
    click.option("--set", "flags", multiple=True, metavar="SECTION.FIELD=VALUE", help="Set one field; repeatable."),
)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_with_options
def agent(file: Path | None, flags: tuple[str, ...]) -> None:
    """Run a node's agent: rows from the API server and from peers become entries of the kernel's maps.

    Example: isthmus agent --config agent.toml --set log.level=debug
    """
    _run("agent", file, flags)


@click.group(cls=groups.Group, invoke_without_command=True)
@_with_options
@click.pass_context
def dns(context: click.Context, file: Path | None, flags: tuple[str, ...]) -> None:
    """Run a node's name server: the names of the clusterset, from the agent's tables. Or ask about a name: query.

    Example: isthmus dns --config dns.toml
    """
    if context.invoked_subcommand is None:
        _run("dns", file, flags)


dns.add_command(query)


@click.command()
@_with_options
def operator(file: Path | None, flags: tuple[str, ...]) -> None:
    """Run a cluster's operator: its exports out to the peers, the peers' exports in.

    Example: isthmus operator --config operator.toml
    """
    _run("operator", file, flags)


@click.command()
@_with_options
def mirror(file: Path | None, flags: tuple[str, ...]) -> None:
    """Run a cluster's mirror: the records of peers into the own etcd.

    Example: isthmus mirror --config mirror.toml
    """
    _run("mirror", file, flags)


@click.command()
@_with_options
def keys(file: Path | None, flags: tuple[str, ...]) -> None:
    """Keep a cluster's authority, certificates and the users of its etcd, in Secrets.

    Example: isthmus keys --config keys.toml
    """
    _run("keys", file, flags)


@click.command()
@_with_options
def gateway(file: Path | None, flags: tuple[str, ...]) -> None:
    """Run a gateway of an island: what the cluster exports, for nodes of the clusters that may import it.

    Example: isthmus gateway --config gateway.toml
    """
    _run("gateway", file, flags)


@click.command()
@_with_options
def envoy(file: Path | None, flags: tuple[str, ...]) -> None:
    """Keep a node's or a gateway's Envoy running while it is needed. SIGHUP: replace it without a refused call.

    Example: isthmus envoy --config envoy.toml
    """
    _run("envoy", file, flags)


def _run(process: str, file: Path | None, flags: tuple[str, ...]) -> None:
    try:
        config = load(file, environment=os.environ, flags=flags)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    run: Callable[[Config], int] = importlib.import_module(f"isthmus.processes.{process}").run
    sys.exit(run(config))
