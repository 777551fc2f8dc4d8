"""``isthmus explain``: why calls of a service go where they go.

The rows are the process's, the reasons are computed here, by the code that plans there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus.admin.query import Socket
from isthmus.cli import output, sockets
from isthmus.model.hosts import joined


@click.command()
@click.argument("service")
@click.option("-n", "--namespace", metavar="NS", default="default", show_default=True, help="The namespace.")
@click.option("-o", "--output", "form", type=click.Choice(["text", "json"]), default="text")
@sockets.options
def explain(service: str, namespace: str, form: str, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Why calls of SERVICE go where they go: whom they reach, whom they do not, and the reason for each."""
    from isthmus.loadbalancer import explain as explaining
    from isthmus.loadbalancer.selection import Place
    from isthmus.model.names import ServiceName

    asked, _ = sockets.ask(sockets.find(socket=socket, cluster=cluster, lab=lab), lambda each: each.table("plans"))
    status = asked.status()
    place = msgspec.convert(status.get("place"), Place | None)
    if place is None:
        raise click.ClickException(f"{asked.path}: the process does not say where it is; only an agent does")
    reader = _copy(asked)
    name = ServiceName(service if "/" in service else f"{namespace}/{service}")
    accounts = [
        explaining.explain(reader, each, at=place, which=status.get("services", "multicluster"))
        for each in explaining.called(reader, name)
    ]
    if not accounts:
        raise click.ClickException(f"no service or import is called {name} (namespace: -n)")
    if form == "json":
        output.json(accounts)
    else:
        awaited = {row.key: row.awaited for row in reader.all(_tables().PLANS)}
        for account in accounts:
            _print(account, awaited)


def _tables() -> Any:
    from isthmus.model import tables

    return tables


def _copy(asked: Socket) -> Any:
    """The process's tables that planning reads, as a database of our own."""
    from isthmus.statedb import Database

    known = _tables()
    read = [
        known.SERVICES, known.IMPORTS, known.ENDPOINT_SETS, known.NODES, known.POLICIES,
        known.REDIRECTS, known.FRONTENDS, known.BACKENDS, known.PLANS, known.CLUSTERS, known.REFUSED_CLAIMS,
        known.LOCAL_REDIRECTS, known.PODS, known.PORT_REDIRECTS, known.OWN_RANGES,
    ]  # fmt: skip
    db = Database(*read)
    with db.write() as txn:
        for table in read:
            for row in asked.table(table.name).rows:
                txn.put(table, msgspec.convert(row, table.row))
    return db.snapshot()


def _print(account: Any, awaited: Mapping[Any, tuple[str, ...]]) -> None:
    stands_for = f", which stands for the import {account.import_of}" if account.import_of else ""
    print(f"{account.service}{stands_for}")
    for path in account.paths:
        plan = path.plan
        print(f"\n  {plan.key.port}/{plan.key.protocol} {plan.key.family}{_at(plan)}")
        for group in plan.groups:
            tier = f"tier {group.tier}, weight {group.weight}: " if len(plan.groups) > 1 else ""
            for target in group.targets:
                through = " (a proxy of this node)" if target.proxy else ""
                print(f"    → {tier}{target.cluster} {joined(target.address, target.port)}{through}")
        if not any(group.targets for group in plan.groups):
            print("    → nobody: calls are refused at once")
        for out in path.left_out:
            print(
                f"    ✗ {out.backend.key.cluster} {joined(out.backend.key.address, out.backend.key.port)}: {out.reason}"
            )
        for source in awaited.get(plan.key, ()):
            print(f"    ? {source} has not said what it has yet")
    if account.notes:
        print()
    for note in account.notes:
        print(f"  {note}")


def _at(plan: Any) -> str:
    scope = ", calls from inside" if plan.key.scope & 1 else ""
    scope += ", calls that the redirect does not mean" if plan.key.scope & 2 else ""
    affinity = f", a client stays for {plan.affinity_timeout} s" if plan.affinity_timeout else ""
    redirect = f", redirected by {plan.redirected_by}" if plan.redirected_by else ""
    redirect += f", but for calls of {', '.join(plan.skip)}" if plan.skip else ""
    return f" at {', '.join(map(str, plan.frontends))}{scope}{affinity}{redirect}"
