"""``isthmus ui``: which processes the page is about, and its URL."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from isthmus.admin.query import Socket
from isthmus.cli import completion, local, output, sockets

if TYPE_CHECKING:
    from isthmus.cli.ui.sources import Source

ASKED: Final = ("agent", "operator", "gateway")
"""Processes that the page asks."""
AGENTS: Final = 20
"""Agents of one cluster that are asked through kubectl: three connections each."""


@click.command()
@click.argument("contexts", nargs=-1, metavar="[CONTEXT]...", shell_complete=completion.contexts)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of 127.0.0.1. [default: a free one]")
@sockets.options
def ui(contexts: Sequence[str], port: int, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Open a page with a live map: clusters, services, calls, and what is wrong. It reads and changes nothing.

    With CONTEXTs, the pods of these kubeconfig contexts' clusters are asked, through kubectl exec. Otherwise the
    processes of this machine, or all clusters of a lab. The page is for whoever has the printed URL, on this machine.

    Example: isthmus ui c1 c2 c3
    """
    contexts = contexts or [each for each in [sockets.context()] if each]
    if contexts and (socket or cluster or lab):
        raise click.UsageError("CONTEXT and --socket, --cluster or --lab exclude each other")
    token = secrets.token_urlsafe(24)
    try:
        asyncio.run(_serve(contexts, port, token, socket=socket, cluster=cluster, lab=lab))
    except KeyboardInterrupt:
        return
    except OSError as error:
        raise click.ClickException(f"port {port} of 127.0.0.1: {error.strerror}") from None


async def _serve(
    contexts: Sequence[str], port: int, token: str, *, socket: Path | None, cluster: str | None, lab: str | None
) -> None:
    from isthmus.cli.ui.server import Page, serve
    from isthmus.cli.ui.sources import Source

    sources: list[Source] = []
    kubectl: dict[str, list[str]] = {}
    page = Page(sources, token=token, kubectl=kubectl)
    for name, process, where, words, kubeconfig in _processes(contexts, socket=socket, cluster=cluster, lab=lab):
        sources.append(Source(where, cluster=name, name=process, words=words, changed=page.changed))
        if kubeconfig:
            kubectl[name] = kubeconfig
    for source in sources:
        source.start()
    await serve(page, port=port, ready=lambda number: _announce(number, token))


def _announce(port: int, token: str) -> None:
    click.echo(f"http://127.0.0.1:{port}/#token={token}")
    output.note("The URL is a key to what the page shows: pass on the page's own, without the token. Ctrl-C ends it.")


Choice = tuple[str, str, Socket, tuple[str, ...], list[str]]
"""A cluster, a process, its socket, the options that select the cluster, and the beginning of a kubectl command."""


def _processes(
    contexts: Sequence[str], *, socket: Path | None, cluster: str | None, lab: str | None
) -> Iterator[Choice]:
    if contexts:
        yield from _of_contexts(contexts)
    elif socket is None and (cluster or lab or not _has_processes()):
        yield from _of_lab(lab or local.default_lab(), cluster)
    else:
        for each in sockets.find(socket=socket, cluster=None, lab=None):
            name = each.path.stem if each.path.stem in (*ASKED, *sockets.NAME_SERVERS) else "agent"
            if name in ASKED:
                yield "this cluster", name, each, ("--socket", str(each.path)), []


def _has_processes() -> bool:
    return sockets.VARIABLE in os.environ or any((sockets.RUN / f"{name}.sock").exists() for name in ASKED)


def _of_lab(lab: str, cluster: str | None) -> Iterator[Choice]:
    names = local.labs()
    if lab not in names:
        up = f"; up are: {', '.join(names)}" if names else ""
        raise click.UsageError(
            f"no process of Isthmus runs here, and no lab '{lab}'{up}; name CONTEXTs{local.of_root()}"
        )
    chosen = {cluster: local.cluster(cluster, lab=lab)} if cluster else local.clusters(lab)
    for name, paths in chosen.items():
        kubectl = ["kubectl", "--kubeconfig", str(local.LABS / lab / "kubeconfig"), "--context", name]
        for process in ASKED:
            if process in paths.sockets:
                words = ("--lab", lab, "--cluster", name)
                yield name, process, Socket(Path(paths.sockets[process])), words, kubectl


def _of_contexts(contexts: Sequence[str]) -> Iterator[Choice]:
    """Processes of each context. One that cannot be asked is no reason to show none: it may be the failing cluster."""
    refused: list[click.ClickException] = []
    for context in contexts:
        try:
            yield from _of_context(context)
        except click.ClickException as error:
            refused.append(error)
            if len(refused) == len(contexts):
                raise
            unasked = _Unasked(f"{error.message}; isthmus ui asks it when it is started again")
            output.note(unasked.reason)
            yield context, "agent", Socket(Path(context), dial=unasked, ended=unasked.ended), ("--context", context), []


class _Unasked:
    """Dials a cluster whose processes were not found when the page began: always in vain, for the same reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, timeout: float) -> socket.socket:
        """Fail."""
        raise ConnectionError(self.reason)

    def ended(self) -> str:
        """Return the reason."""
        return self.reason


def _of_context(context: str) -> list[Choice]:
    from isthmus.cli import remote

    words, kubectl = ("--context", context), ["kubectl", "--context", context]
    agents = remote.agents(context)[:AGENTS]
    operators = [each for each in remote.find(context) if each.path.stem == "operator"]
    return [
        *((context, "agent", each, words, kubectl) for each in agents),
        *((context, "operator", each, words, kubectl) for each in operators),
    ]
