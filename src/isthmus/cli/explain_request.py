"""``isthmus explain --request``: the route and the rule that match a request, and its backends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click

from isthmus.cli import output


def show(
    reader: Any,
    tables: Collection[str],
    services: Sequence[Any],
    name: str,
    text: str,
    headers: Sequence[str],
    form: str,
) -> None:
    """Print what becomes of a request to the Services that a name means; ``tables`` are those that the agent has."""
    from isthmus.proxy import explain as explaining

    try:
        request, port = explaining.parse(text, headers)
    except explaining.BadRequest as error:
        raise click.ClickException(str(error)) from None
    if "routes" not in tables:
        raise click.ClickException("this agent follows no routes: proxy.directory is not set in its configuration")
    if not services:
        raise click.ClickException(f"no service or import is called {name} (namespace: -n)")
    explanations = [
        explanation for service in services for explanation in explaining.explain(reader, service, request, port=port)
    ]
    refused = [explanation for service in services for explanation in explaining.refused(reader, service)]
    if form == "json":
        output.json({"request": request._asdict(), "ports": explanations, "refused": refused})
        return
    output.line(f"{name}: {request.method} {request.path}")
    for explanation in explanations:
        _print(explanation)
    if not explanations:
        output.line("\n  no route is for it: calls do not go through Envoy")
    for sentence in refused:
        output.line(f"\n  {sentence}")


def _print(explanation: Any) -> None:
    callers = f", calls of namespace {explanation.callers}" if explanation.callers else ""
    output.line(f"\n  {explanation.service} port {explanation.port}{callers}")
    if not explanation.served:
        output.line("    Envoy does not serve it on this node: calls go to the Service's own backends")
    if not explanation.rule and not explanation.answer:
        output.line("    → the Service's own backends: no route is for these callers")
        return
    if explanation.rule:
        output.line(f"    → {explanation.rule} ({explanation.match}): {explanation.reason}")
    for other in explanation.others:
        output.line(f"    · matched later: {other.rule} ({other.match})")
    if explanation.answer:
        output.line(f"    → answered with {explanation.answer}")
    for each in explanation.mirrors:
        output.line(f"    {each}")
    if explanation.backends:
        output.line()
        output.table(("BACKEND", "WEIGHT", "PART", "CLUSTERS"), [_row(each) for each in explanation.backends])


def _row(backend: Any) -> tuple[str, ...]:
    from isthmus.loadbalancer import shares

    return (
        backend.to,
        str(backend.weight),
        f"{100 * backend.part:.3g}%",
        backend.problem or shares.text(backend.clusters),
    )
