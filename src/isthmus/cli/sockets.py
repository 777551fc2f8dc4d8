"""Where to ask: the admin sockets that a command's options mean, most likely first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.lab.layout import STATE_ROOT

PROCESSES = ("agent", "operator", "dns")
RUN = Path("/run/isthmus")
VARIABLE = "ISTHMUS_ADMIN_SOCKET"

T = TypeVar("T")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where to ask."""
    for option in (
        click.option("--socket", type=click.Path(path_type=Path), help=f"A process's admin socket; or ${VARIABLE}."),
        click.option(
            "--lab", metavar="LAB", envvar="ISTHMUS_LAB", help="The lab of --cluster. [default: demo, or the only one]"
        ),
        click.option("--cluster", metavar="CLUSTER", help="A cluster of a lab on this machine: c1, c2, …"),
    ):
        command = option(command)
    return command


def find(*, socket: Path | None, cluster: str | None, lab: str | None) -> list[Socket]:
    """The sockets to ask in turn; a ClickException says what to add where none is meant clearly."""
    if socket is not None:
        return [Socket(socket)]
    if cluster is not None or lab is not None:
        return [Socket(directory(cluster=cluster, lab=lab) / f"{name}.sock") for name in PROCESSES]
    if VARIABLE in os.environ:
        return [Socket(Path(os.environ[VARIABLE]))]
    present = [path for name in PROCESSES if (path := RUN / f"{name}.sock").exists()]
    if not present and (labs := _labs()):
        raise click.UsageError(f"which cluster? add --cluster {'|'.join(_clusters(labs[0])) or 'c1'}")
    return [Socket(path) for path in present or [RUN / "agent.sock"]]


def directory(*, cluster: str | None, lab: str | None) -> Path:
    """The state directory of a lab's cluster."""
    labs = _labs()
    if lab is None:
        lab = labs[0].name if len(labs) == 1 else "demo"
    found = STATE_ROOT / lab
    if found not in labs:
        up = f"; up are: {', '.join(path.name for path in labs)}" if labs else ""
        raise click.ClickException(f"no lab '{lab}' on this machine{up}; start it with: isthmus lab up")
    clusters = _clusters(found)
    if cluster is None:
        raise click.UsageError(f"which cluster of lab '{lab}'? add --cluster {'|'.join(clusters)}")
    if cluster not in clusters:
        raise click.ClickException(f"lab '{lab}' has no cluster '{cluster}'; it has: {', '.join(clusters)}")
    return found / cluster


def ask(sockets: Sequence[Socket], question: Callable[[Socket], T]) -> tuple[Socket, T]:
    """The first answer, and who gave it. Where nobody has one the most telling refusal is the error."""
    refusals: list[QueryError] = []
    for socket in sockets:
        try:
            return socket, question(socket)
        except QueryError as why:
            refusals.append(why)
    raise click.ClickException(str(_most_telling(refusals)))


def _most_telling(refusals: Sequence[QueryError]) -> QueryError:
    """Nobody there at all: who was asked first. Else what those say who are there: all their tables in one line."""
    answered = [why for why in refusals if isinstance(why, NoTable)]
    if not answered:
        return refusals[0]
    if len(answered) == len(refusals) == 1:
        return answered[0]
    tables = sorted({name for why in answered for name in why.tables})
    away = [str(why) for why in refusals if not isinstance(why, NoTable)]
    return QueryError("; ".join([f"no such table; there are: {', '.join(tables)}", *away]))


def _labs() -> list[Path]:
    try:
        return sorted(path for path in STATE_ROOT.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except PermissionError:
        raise click.ClickException(f"{STATE_ROOT} is root's only: run this command with sudo") from None


def _clusters(lab: Path) -> list[str]:
    try:
        return sorted(
            path.name for path in lab.iterdir() if path.is_dir() and path.name[:1] == "c" and path.name[1:].isdigit()
        )
    except PermissionError:
        raise click.ClickException(f"{lab} is root's only: run this command with sudo") from None
