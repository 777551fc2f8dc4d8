"""``isthmus diagnose``: the walk of a call, printed hop by hop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from isthmus.admin.query import Socket
from isthmus.cli import local, output, sockets

MARKS = {"ok": "✓", "fault": "✗", "follows": "·"}


@click.command()
@click.argument("service", required=False)
@click.option("-n", "--namespace", metavar="NS", default="default", show_default=True, help="The namespace.")
@click.option("--from", "pod", metavar="[NS/]POD", default="", help="The pod that calls; it runs on this node.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text")
@sockets.options
def diagnose(
    service: str | None,
    namespace: str,
    pod: str,
    form: str,
    socket: Path | None,
    cluster: str | None,
    lab: str | None,
) -> None:
    """Where calls of SERVICE break: each hop from its name to its pods, the object that is wrong, what mends it.

    Without SERVICE, every exported or imported service is walked and those with a fault are printed. Exits with 1 when
    there is a fault.
    """
    from isthmus.cli.diagnosis.exporters import diagnose as walk
    from isthmus.model.names import ServiceName

    def full(name: str) -> str:
        return name if "/" in name else f"{namespace}/{name}"

    subject = ServiceName(full(service)) if service else None
    facts = collect(subject, pod=full(pod) if pod else "", socket=socket, cluster=cluster, lab=lab)
    found = {subject: walk(facts, subject)} if subject else all_services(facts)
    if form == "json":
        output.json({"services": found, "faults": sum(hop.state == "fault" for each in found.values() for hop in each)})
    else:
        for name, hops in found.items():
            if subject or any(hop.state == "fault" for hop in hops):
                _print(name, hops)
        if not subject and not any(hop.state == "fault" for hops in found.values() for hop in hops):
            print(f"✓ {len(found)} service{'s' * (len(found) != 1)}, no fault")
    sys.exit(any(hop.state == "fault" for hops in found.values() for hop in hops))


def collect(subject: Any, *, pod: str, socket: Path | None, cluster: str | None, lab: str | None) -> Any:
    """The facts that the options give: of one socket, of a lab's clusters, or of this machine's processes."""
    from isthmus.cli.diagnosis import facts

    if cluster is None and lab is None:
        found = {kind(each.path): each for each in sockets.find(socket=socket, cluster=None, lab=None, pod=pod)}
        return facts.collect(found, cluster="", others=(), service=subject, context=sockets.context(), pod=pod)
    own = local.cluster(cluster, lab=lab)
    every = local.clusters(lab or local.default_lab())
    name = next(each for each, paths in every.items() if paths == own)
    return facts.collect(
        {process: Socket(Path(path)) for process, path in own.sockets.items()},
        cluster=name,
        others=[
            (each, process, Socket(Path(paths.sockets[process])))
            for each, paths in every.items()
            if each != name
            for process in ("operator", "agent", "gateway")
            if process in paths.sockets
        ],
        service=subject,
        lab=lab or local.default_lab(),
        pod=pod,
    )


def all_services(facts: Any) -> dict[Any, Any]:
    """The walk of every service that some cluster exports or wants to export, or that is imported."""
    from isthmus.cli.diagnosis.exporters import diagnose as walk

    return {each: walk(facts, each) for each in _services(facts)}


def kind(path: Path) -> str:
    """Which process serves a socket: by its file name; an agent has any other one."""
    return path.stem if path.stem in sockets.PROCESSES else "agent"


def _services(facts: Any) -> list[Any]:
    """Every service that some cluster exports, or wants to, every import, and what policies and routes take for one."""
    from isthmus.model import tables

    names = {row.name for row in facts.agent.rows.all(tables.IMPORTS)}
    for each in facts.operators:
        names |= {row.name for row in each.rows.all(tables.EXPORTS)}
        names |= {row.name for row in each.rows.all(tables.OWN_EXPORTS)}
    names |= {row.target for row in facts.agent.rows.all(tables.POLICIES) if row.kind == "ServiceImport"}
    parents = [parent for row in facts.agent.rows.all(tables.ROUTES) for parent in row.parents]
    names |= {parent.name for parent in parents if parent.kind == "ServiceImport"}
    return sorted(names)


def _print(name: str, hops: Sequence[Any]) -> None:
    print(name)
    lines(hops)


def lines(hops: Sequence[Any]) -> None:
    """A line for each hop, and one for the command that mends it."""
    width = max((len(hop.hop) for hop in hops), default=0)
    for hop in hops:
        output.paragraph(f"  {MARKS[hop.state]} {hop.hop:<{width}}  ", f"{hop.object}: {hop.text}")
        if hop.state == "fault" and hop.cure:
            output.paragraph(f"    {'':<{width}}  → ", hop.cure)
