"""The admin sockets that a command's options select, most likely first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.cli import contexts, local

NAME_SERVERS = ("dns", "dns-second")
"""Name servers of one node; each answers while the other is down."""
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
        contexts.context_option,
    ):
        command = option(command)
    return command


def context() -> str:
    """Value of ``isthmus --context``; empty if it is not given."""
    current = click.get_current_context(silent=True)
    return contexts.selected(current) if current is not None else ""


def find(
    *, socket: Path | None, cluster: str | None, lab: str | None, pod: str = "", keepers: bool = False
) -> list[Socket]:
    """The sockets to ask in turn; a ClickException names the option to add where the choice is unclear.

    ``pod``: namespace/name of a pod; with ``--context``, the agent of its node is asked. ``keepers``: with
    ``--context``, ``isthmus keys`` too, which has a status and no rows.
    """
    if named := context():
        if socket is not None:
            raise click.UsageError("--context and --socket exclude each other")
        from isthmus.cli import remote

        return remote.find(named, node=remote.node_of(named, pod) if pod else "", keepers=keepers)
    if socket is not None:
        return [Socket(socket)]
    if cluster is not None or lab is not None:
        sockets = local.cluster(cluster, lab=lab).sockets
        return [Socket(Path(sockets[name])) for name in PROCESSES if name in sockets]
    if VARIABLE in os.environ:
        return [Socket(Path(os.environ[VARIABLE]))]
    paths = [path for name in PROCESSES if (path := RUN / f"{name}.sock").exists()]
    if not paths and (labs := local.labs()):
        raise click.UsageError(f"which cluster? add --cluster {'|'.join(local.clusters(labs[0]))}")
    return [Socket(path) for path in paths or [RUN / "agent.sock"]]


def agents(*, socket: Path | None, cluster: str | None, lab: str | None, pod: str = "") -> list[Socket]:
    """The agent that the options select; with ``--context`` those of all nodes, or of the node of a pod."""
    if named := context():
        from isthmus.cli import remote

        return remote.agents(named, node=remote.node_of(named, pod) if "/" in pod else "")
    return find(socket=socket, cluster=cluster, lab=lab)[:1]


def ask(sockets: Sequence[Socket], question: Callable[[Socket], T]) -> tuple[Socket, T]:
    """The first answer, and the socket that gave it. Where none has one, the most specific refusal is the error."""
    refusals: list[QueryError] = []
    for socket in sockets:
        try:
            return socket, question(socket)
        except QueryError as error:
            refusals.append(error)
    raise click.ClickException(str(_most_specific(refusals)))


def _most_specific(refusals: Sequence[QueryError]) -> QueryError:
    """Return the first refusal if no process answers, else one line with the tables of those that answer."""
    answered = [why for why in refusals if isinstance(why, NoTable)]
    if not answered:
        return refusals[0]
    if len(answered) == len(refusals) == 1:
        return answered[0]
    tables = sorted({name for why in answered for name in why.tables})
    away = [str(why) for why in refusals if not isinstance(why, NoTable)]
    return QueryError("; ".join([f"no such table; there are: {', '.join(tables)}", *away]))
