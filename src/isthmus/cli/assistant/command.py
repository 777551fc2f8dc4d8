"""``isthmus mcp``: the command, and the processes that it asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from isthmus.cli import sockets

if TYPE_CHECKING:
    from isthmus.cli.assistant.server import Source

ABSENT: Final = "isthmus mcp needs the SDK of the Model Context Protocol: pip install 'isthmus[mcp]'"
FLOWS: Final = 2_000
"""Records that each agent is asked for: an answer has room for twenty."""

T = TypeVar("T")


@click.command()
@sockets.options
@click.pass_context
def mcp(ctx: click.Context, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Answer an assistant's questions over the Model Context Protocol, on standard input and output. It only reads.

    Tools: status, diagnose, explain, plan_call, flows. An assistant starts this command itself; docs/mcp.md has the
    configuration of a client. It needs the extra mcp: pip install 'isthmus[mcp]'.

    Example: isthmus mcp --context c1
    """
    try:
        from isthmus.cli.assistant.server import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "pydantic"):
            raise
        raise click.ClickException(ABSENT) from None
    from isthmus import logs

    logs.configure(level="warning")  # to standard error: standard output is the protocol's
    server(_source(ctx, socket=socket, cluster=cluster, lab=lab)).run("stdio")


def _source(ctx: click.Context, *, socket: Path | None, cluster: str | None, lab: str | None) -> Source:
    """Return functions that ask the processes which the options select."""
    import msgspec

    from isthmus.cli import diagnose
    from isthmus.cli.assistant.server import Source
    from isthmus.cli.diagnosis.facts import Facts
    from isthmus.model.flows import Flow
    from isthmus.model.names import ServiceName

    def facts(service: ServiceName | None, pod: str) -> Facts:
        answered: Facts = diagnose.collect(service, pod=pod, socket=socket, cluster=cluster, lab=lab)
        return answered

    def flows(pod: str) -> list[Flow]:
        agents = sockets.agents(pod=pod, socket=socket, cluster=cluster, lab=lab)
        return [
            flow
            for agent in agents
            for line in agent.feed("flows", last=FLOWS)
            for flow in msgspec.convert(line.rows, list[Flow])
        ]

    return Source(
        facts=lambda service, pod: _in_context(ctx, lambda: facts(service, pod)),
        services=diagnose.services,
        flows=lambda pod: _in_context(ctx, lambda: flows(pod)),
    )


def _in_context(ctx: click.Context, ask: Callable[[], T]) -> T:
    """Ask in a context of click of its own, which ends connections through kubectl with the question."""
    from isthmus.admin.query import QueryError

    with click.Context(ctx.command, parent=ctx):
        try:
            return ask()
        except click.ClickException as error:
            raise LookupError(error.format_message()) from None
        except QueryError as error:
            raise LookupError(str(error)) from None
