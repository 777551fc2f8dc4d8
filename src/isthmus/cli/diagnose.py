"""``isthmus diagnose``: the walk of a call, printed hop by hop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from isthmus.admin.query import Socket
from isthmus.cli import completion, local, output, sockets

MARKS = {"ok": "✓", "fault": "✗", "follows": "·"}


@click.command()
@click.argument("service", required=False, shell_complete=completion.services)
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

    Without SERVICE, the whole cluster is checked: processes and their machines, sources, peers, keys and hooks, with
    --context those of every node, then every exported or imported service. Those with a fault are printed. Exits with
    1 when there is a fault.

    Example: isthmus diagnose demo/echo --cluster c3
    """
    from isthmus.cli.diagnosis.exporters import cluster_faults
    from isthmus.cli.diagnosis.exporters import diagnose as walk
    from isthmus.model.names import ServiceName

    def full(name: str) -> str:
        return name if "/" in name else f"{namespace}/{name}"

    subject = ServiceName(full(service)) if service else None
    facts = collect(subject, pod=full(pod) if pod else "", socket=socket, cluster=cluster, lab=lab)
    general = () if subject else cluster_faults(facts)
    found = {subject: walk(facts, subject)} if subject else all_services(facts)
    faults = [hop for hops in (general, *found.values()) for hop in hops if hop.state == "fault"]
    if form == "json":
        output.json({"cluster": general, "services": found, "faults": len(faults)})
    else:
        if general:
            _print(f"cluster {facts.cluster}", general)
        for name, hops in found.items():
            if subject or any(hop.state == "fault" for hop in hops):
                _print(name, hops)
        if not subject and not faults:
            print(f"✓ {len(found)} service{'s' * (len(found) != 1)}, no fault")
    sys.exit(bool(faults))


def collect(subject: Any, *, pod: str, socket: Path | None, cluster: str | None, lab: str | None) -> Any:
    """The facts that the options give: of one socket, of a lab's clusters, or of this machine's processes."""
    from isthmus.cli.diagnosis import facts

    if cluster is None and lab is None:
        sockets_by_kind = {
            kind(each.path): each for each in sockets.find(socket=socket, cluster=None, lab=None, pod=pod)
        }
        context = sockets.context()
        return facts.collect(
            sockets_by_kind,
            cluster="",
            others=(),
            nodes=_agents(context) if context and not subject else {},
            service=subject,
            context=context,
            pod=pod,
        )
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
        nodes={} if subject else {node: Socket(Path(path)) for node, path in own.agents.items()},
        service=subject,
        lab=lab or local.default_lab(),
        pod=pod,
    )


def _agents(context: str) -> dict[str, Socket]:
    from isthmus.cli import remote

    return remote.agents_by_node(context)


def all_services(facts: Any) -> dict[Any, Any]:
    """The walk of every service that some cluster exports or wants to export, or that is imported."""
    from isthmus.cli.diagnosis.exporters import diagnose as walk

    return {each: walk(facts, each) for each in services(facts)}


def kind(path: Path) -> str:
    """Return the process that serves a socket, by its file name; an agent serves any other name."""
    return path.stem if path.stem in sockets.PROCESSES else "agent"


def services(facts: Any) -> list[Any]:
    """Every service that some cluster exports, or wants to, every import, and what policies and routes take for one."""
    from isthmus.model import tables

    names = {row.name for row in facts.agent.rows.all(tables.IMPORTS)}
    for operator in facts.operators:
        names |= {row.name for row in operator.rows.all(tables.EXPORTS)}
        names |= {row.name for row in operator.rows.all(tables.OWN_EXPORTS)}
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
