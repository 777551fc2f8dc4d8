"""The admin sockets that a command's options select, most likely first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.cli import local

NAME_SERVERS = ("dns", "dns-second")
"""Of one node; each answers while the other is away."""
PROCESSES = ("agent", "operator", *NAME_SERVERS)
RUN = Path("/run/isthmus")
VARIABLE = "ISTHMUS_ADMIN_SOCKET"

T = TypeVar("T")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that select the sockets."""
    for option in (
        click.option("--socket", type=click.Path(path_type=Path), help=f"A process's admin socket; or ${VARIABLE}."),
        local.lab_option,
        local.cluster_option,
    ):
        command = option(command)
    return command


def context() -> str:
    """What ``isthmus --context`` names; empty where it is not given."""
    current = click.get_current_context(silent=True)
    found: str = (current.find_root().params.get("context") if current is not None else "") or ""
    return found


def find(*, socket: Path | None, cluster: str | None, lab: str | None, pod: str = "") -> list[Socket]:
    """The sockets to ask in turn; a ClickException names the option to add where the choice is unclear.

    ``pod``: namespace/name of a pod; with ``--context``, the agent of its node is asked.
    """
    if named := context():
        from isthmus.cli import remote

        return remote.find(named, node=remote.node_of(named, pod) if pod else "")
    if socket is not None:
        return [Socket(socket)]
    if cluster is not None or lab is not None:
        found = local.cluster(cluster, lab=lab).sockets
        return [Socket(Path(found[name])) for name in PROCESSES if name in found]
    if VARIABLE in os.environ:
        return [Socket(Path(os.environ[VARIABLE]))]
    present = [path for name in PROCESSES if (path := RUN / f"{name}.sock").exists()]
    if not present and (labs := local.labs()):
        raise click.UsageError(f"which cluster? add --cluster {'|'.join(local.clusters(labs[0]))}")
    return [Socket(path) for path in present or [RUN / "agent.sock"]]


def ask(sockets: Sequence[Socket], question: Callable[[Socket], T]) -> tuple[Socket, T]:
    """The first answer, and the socket that gave it. Where none has one, the most specific refusal is the error."""
    refusals: list[QueryError] = []
    for socket in sockets:
        try:
            return socket, question(socket)
        except QueryError as why:
            refusals.append(why)
    raise click.ClickException(str(_most_specific(refusals)))


def _most_specific(refusals: Sequence[QueryError]) -> QueryError:
    """Where no process answers, the refusal of the first; else one line with the tables of those that answer."""
    answered = [why for why in refusals if isinstance(why, NoTable)]
    if not answered:
        return refusals[0]
    if len(answered) == len(refusals) == 1:
        return answered[0]
    tables = sorted({name for why in answered for name in why.tables})
    away = [str(why) for why in refusals if not isinstance(why, NoTable)]
    return QueryError("; ".join([f"no such table; there are: {', '.join(tables)}", *away]))
