"""The option ``--context``: the same before a command, as ``isthmus --context c1 get``, and after it.

It imports nothing of the other commands: the root uses it, too, and loads none of them.
"""

from __future__ import annotations

from typing import Final

import click

from isthmus.cli import completion

KEY: Final = "isthmus.context"
"""Key in the ``meta`` of click, which a command and its groups share."""


def selected(ctx: click.Context) -> str:
    """Value of ``--context``, the last one if it is given twice; empty without the option."""
    name: str = ctx.meta.get(KEY, "")
    return name


def _select(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[KEY] = value


context_option = click.option(
    "--context",
    metavar="NAME",
    expose_value=False,
    is_eager=True,
    callback=_select,
    shell_complete=completion.contexts,
    help="Ask the pods of this kubeconfig context's cluster, through kubectl exec.",
)
