"""``isthmus explain``: why calls of a service go where they go.

The rows are the process's, the reasons are computed here, by the code that plans there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus.cli import completion, diagnose, explain_request, output, sockets
from isthmus.model.hosts import joined

BEHIND = ("policy", "route", "peer", "endpoints", "conflict", "namespace")
"""Hops of ``diagnose`` that an explanation shows as well when one has a fault."""
OF_IMPORTS = (*BEHIND, "gateway", "process", "resolver", "export", "pods")
"""The same for what is imported, or known to no process here. The plan and what comes of it are explained already."""


@click.command()
@click.argument("service", shell_complete=completion.services)
@click.option("-n", "--namespace", metavar="NS", default="default", show_default=True, help="The namespace.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--without",
    multiple=True,
    metavar="CLUSTER",
    help="As it would be if nothing of this cluster were ready; repeatable.",
)
@click.option(
    "--request",
    metavar="TEXT",
    help="Which route and rule get a request: 'GET /v2/x', 'POST host/path', 'GRPC pkg.Service/Method'.",
)
@click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Of the request; repeatable.")
@sockets.options
def explain(
    service: str,
    namespace: str,
    form: str,
    without: tuple[str, ...],
    request: str | None,
    headers: tuple[str, ...],
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Why calls of SERVICE go where they go: the backends they reach, those they do not, and the reason for each.

    Exits with 1 when something on the path of an import has a fault: `isthmus diagnose` shows the whole path.

    Example: isthmus explain demo/echo --cluster c3
    """
    from isthmus.cli.diagnosis.exporters import diagnose as walk
    from isthmus.loadbalancer import explain as explaining
    from isthmus.loadbalancer.selection import Place
    from isthmus.model import tables
    from isthmus.model.names import ClusterName, ServiceName

    if headers and request is None:
        raise click.UsageError("--header wants --request")
    if without and request is not None:
        raise click.UsageError("--request and --without exclude each other")
    name = ServiceName(service if "/" in service else f"{namespace}/{service}")
    facts = diagnose.collect(None, pod="", socket=socket, cluster=cluster, lab=lab)
    if facts.agent.error:
        raise click.ClickException(facts.agent.error)
    reader, status = facts.agent.rows, facts.agent.status
    if request is not None:
        explain_request.show(
            reader, status["tables"], explaining.services_called(reader, name), name, request, headers, form
        )
        return
    place = msgspec.convert(status.get("place"), Place | None)
    if place is None:
        raise click.ClickException(f"{socket}: the process has no place in its status; only an agent has")
    cut = tuple(map(ClusterName, without))
    if unknown := set(cut) - {row.name for row in reader.all(tables.CLUSTERS)}:
        raise click.ClickException(f"--without {', '.join(sorted(unknown))}: no such cluster")
    accounts = [
        explaining.explain(reader, each, place=place, without=cut) for each in explaining.services_called(reader, name)
    ]
    plain = bool(accounts) and reader.get(tables.IMPORTS, name) is None
    faults = [hop for hop in walk(facts, name) if hop.state == "fault" and hop.hop in (BEHIND if plain else OF_IMPORTS)]
    if not accounts and not faults:
        raise click.ClickException(f"no service or import is called {name} (namespace: -n)")
    if form == "json":
        output.json(accounts)
    else:
        awaited = {row.key: row.awaited for row in reader.all(tables.PLANS)}
        not_ready = {row.name: f"{row.state} since {row.since}" for row in _not_ready(reader.all(tables.CLUSTERS))}
        for account in accounts:
            ejected = {row.key: f"ejected on this node: {row.error}" for row in reader.all(tables.FAILURES)}
            for row in reader.all(tables.CALLER_FAILURES):
                ejected.setdefault(row.key, f"ejected for {row.pod or 'one caller'} alone: {row.reason}")
            _print(account, awaited, not_ready, ejected, service_port=place.cluster)
        if ignored := sum(1 for _ in reader.all(tables.IGNORED_PODS)):
            output.line(f"  not for pods of this node that are left alone ({ignored}): isthmus get ignored_pods -A")
        if faults:
            output.line()
            diagnose.lines(faults)
    sys.exit(bool(faults) or any(path.unanswered for account in accounts for path in account.paths))


def _not_ready(rows: Iterable[Any]) -> Iterable[Any]:
    return (row for row in rows if not row.own and row.state != "ready")


def _print(
    account: Any,
    awaited: Mapping[Any, tuple[str, ...]],
    late: Mapping[str, str],
    ejected: Mapping[Any, str],
    *,
    service_port: str,
) -> None:
    """``service_port``: the cluster that calls."""
    failing = {(key.address, key.port, key.protocol, key.cluster): error for key, error in ejected.items()}
    from isthmus.loadbalancer import shares

    stands_for = f", which stands for the import {account.import_of}" if account.import_of else ""
    output.line(f"{account.service}{stands_for}")
    for path in account.paths:
        plan = path.plan
        output.line(f"\n  {plan.key.port}/{plan.key.protocol} {plan.key.family}{_at(plan)}")
        if len(path.shares) > 1 or path.tiers:
            output.line(f"    shares: {shares.text(path.shares)}")
        for each in path.tiers:
            what = f"{each.usable} usable, wants {each.wanted}"
            output.line(f"    tier {each.tier} of the policy: {100 * each.part:.3g}% of calls; {what}; {each.clusters}")
        for group in plan.groups:
            tier = f"tier {group.tier}, weight {group.weight}: " if len(plan.groups) > 1 else ""
            for target in group.targets:
                through = _through(target, service_port)
                error = failing.get((target.address, target.port, target.protocol, target.cluster))
                passed_over = f" ({error})" if error else ""
                where = f"{target.cluster} {joined(target.address, target.port)}"
                if not target.address:
                    where = "refused: a backend of the route cannot be used or has no endpoint"
                output.line(f"    → {tier}{where}{through}{passed_over}{_as_of(target, late)}")
        if not any(group.targets for group in plan.groups):
            output.line(f"    → nobody: calls are refused at once: {path.unanswered}")
        for consumer in plan.consumers:
            where = joined(consumer.target.address, consumer.target.port)
            output.line(
                f"    → for pods of namespace {consumer.namespace}: {where}{_through(consumer.target, service_port)}"
            )
        if plan.consumers_only:
            output.line("    calls of all others are not answered here: they go where they went")
        for out in path.left_out:
            output.line(
                f"    ✗ {out.backend.key.cluster} {joined(out.backend.key.address, out.backend.key.port)}: {out.reason}"
            )
        for source in awaited.get(plan.key, ()):
            output.line(f"    ? {source} has not listed its rows yet")
    if account.notes:
        output.line()
    for note in account.notes:
        output.line(f"  {note}")


def _through(target: Any, service_port: str) -> str:
    """Beside a target that is no pod: the node's Envoy, for a route here or for an island's gateways."""
    if not target.proxy:
        return ""
    return (
        " (a proxy of this node)"
        if target.cluster == service_port
        else f" (this node's Envoy, to the gateways of {target.cluster})"
    )


def _as_of(target: Any, not_ready: Mapping[str, str]) -> str:
    """Beside a target of a cluster that is not ready: its state, and as of when its endpoints are known."""
    return f" ({target.cluster} is {not_ready[target.cluster]})" if target.cluster in not_ready else ""


def _at(plan: Any) -> str:
    scope = ", calls from inside" if plan.key.scope & 1 else ""
    scope += ", calls that the redirect does not mean" if plan.key.scope & 2 else ""
    affinity = f", a client stays for {plan.affinity_timeout} s" if plan.affinity_timeout else ""
    redirect = f", redirected by {plan.redirected_by}" if plan.redirected_by else ""
    redirect += f", but for calls of {', '.join(plan.skip)}" if plan.skip else ""
    return f" at {', '.join(map(str, plan.frontends))}{scope}{affinity}{redirect}"
