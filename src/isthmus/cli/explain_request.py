"""``isthmus explain --request``: the route and the rule that get a request, and where it goes."""

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
    except explaining.BadRequest as why:
        raise click.ClickException(str(why)) from None
    if "routes" not in tables:
        raise click.ClickException("this agent follows no routes: proxy.directory is not set in its configuration")
    if not services:
        raise click.ClickException(f"no service or import is called {name} (namespace: -n)")
    found = [each for service in services for each in explaining.explain(reader, service, request, port=port)]
    refused = [each for service in services for each in explaining.refused(reader, service)]
    if form == "json":
        output.json({"request": request._asdict(), "ports": found, "refused": refused})
        return
    output.line(f"{name}: {request.method} {request.path}")
    for each in found:
        _print(each)
    if not found:
        output.line("\n  no route is for it: calls do not go through Envoy")
    for sentence in refused:
        output.line(f"\n  {sentence}")


def _print(found: Any) -> None:
    callers = f", calls of namespace {found.callers}" if found.callers else ""
    output.line(f"\n  {found.service} port {found.port}{callers}")
    if not found.served:
        output.line("    Envoy does not serve it on this node: calls go to the Service's own backends")
    if not found.rule and not found.answer:
        output.line("    → the Service's own backends: no route is for these callers")
        return
    if found.rule:
        output.line(f"    → {found.rule} ({found.match}): {found.reason}")
    for other in found.others:
        output.line(f"    · matched later: {other.rule} ({other.match})")
    if found.answer:
        output.line(f"    → answered with {found.answer}")
    for each in found.mirrors:
        output.line(f"    {each}")
    if found.backends:
        output.line()
        output.table(("BACKEND", "WEIGHT", "PART", "CLUSTERS"), [_row(each) for each in found.backends])


def _row(backend: Any) -> tuple[str, ...]:
    from isthmus.loadbalancer import shares

    texts = {of: shares.text(parts) for of, parts in backend.clusters.items()}
    same = len(set(texts.values())) < 2
    where = next(iter(texts.values()), "none") if same else "; ".join(f"{of}: {text}" for of, text in texts.items())
    return backend.to, str(backend.weight), f"{100 * backend.part:.3g}%", backend.problem or where
