"""Values that a shell completes: contexts, labs, clusters, tables, and services that a process knows.

Errors complete nothing: a shell shows what a completion prints in the middle of the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from isthmus.admin.query import Socket

PATIENCE: Final = 1.0
"""Seconds that a process has to answer."""
Values = Callable[[click.Context, click.Parameter, str], list[str]]


def _matching(values: Callable[[click.Context], Iterable[str]]) -> Values:
    """Return a completion of the values that begin with what was typed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from isthmus.admin.query import QueryError

        try:
            return sorted(value for value in values(ctx) if value.startswith(incomplete))
        except (click.ClickException, QueryError, OSError):
            return []

    return complete


def _contexts(ctx: click.Context) -> Iterable[str]:
    import yaml

    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    for path in paths.split(os.pathsep):
        try:
            document = yaml.safe_load(Path(path).read_text())
            yield from [str(each["name"]) for each in document["contexts"]]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            continue


def _labs(ctx: click.Context) -> Iterable[str]:
    from isthmus.cli import local

    return local.labs()


def _clusters(ctx: click.Context) -> Iterable[str]:
    from isthmus.cli import local

    return local.clusters(ctx.params.get("lab") or local.default_lab())


def _asked(ctx: click.Context) -> list[Socket]:
    """Sockets on this machine that the options before the cursor select; pods are too far away for a completion."""
    from isthmus.admin.query import Socket
    from isthmus.cli import sockets

    if sockets.context():
        return []
    options = ctx.params
    selected = sockets.find(socket=options.get("socket"), cluster=options.get("cluster"), lab=options.get("lab"))
    return [Socket(each.path, timeout=PATIENCE) for each in selected]


def _tables(ctx: click.Context) -> Iterable[str]:
    return {table for socket in _asked(ctx) for table in socket.tables()}


def _services(ctx: click.Context) -> Iterable[str]:
    """Names of imports and Services as NAMESPACE/NAME, of the process that is asked first."""
    for socket in _asked(ctx)[:1]:
        for table in ("imports", "services"):
            yield from {row["name"] for row in socket.table(table).rows}


contexts = _matching(_contexts)
labs = _matching(_labs)
clusters = _matching(_clusters)
tables = _matching(_tables)
services = _matching(_services)
