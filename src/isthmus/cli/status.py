"""``isthmus status``: what each process has, what it has not got, and whether it is ready."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from isthmus.admin.query import QueryError, Socket, Unreachable
from isthmus.cli import output, sockets

GENERAL = ("process", "version", "instance", "uptime", "ready", "tables", "reflectors")
"""What is shown in a way of its own; everything else is shown as the process says it."""


@click.command()
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@sockets.options
def status(form: str, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """What the processes have, and what they have not got. Exits with 1 when one is not ready."""
    found: dict[str, dict[str, Any]] = {}
    missing: list[str] = []
    for each in sockets.find(socket=socket, cluster=cluster, lab=lab):
        try:
            found[each.path.stem] = each.status() | {"clusters": _clusters(each)}
        except Unreachable as why:
            missing.append(str(why))
        except QueryError as why:
            raise click.ClickException(str(why)) from None
    ready = bool(found) and not missing and all(each["ready"] for each in found.values())
    if form == "json":
        output.json({"ready": ready, "processes": found, "missing": missing})
    else:
        for name, said in found.items():
            _print(name, said)
        for sentence in missing:
            print(sentence, file=sys.stdout if found else sys.stderr)
    sys.exit(0 if ready else 1)


def _print(name: str, said: Mapping[str, Any]) -> None:
    waiting = sorted({source for table in said["tables"].values() for source in table["pending"]})
    how = "ready" if said["ready"] else f"not ready: waiting for {', '.join(waiting) or 'its parts'}"
    print(f"{name} {said['version']}: {how}, up {_seconds(said['uptime'])}")
    tables = [
        [f"  {table}", str(numbers["rows"]), str(numbers["revision"]), ", ".join(numbers["pending"]) or "complete"]
        for table, numbers in sorted(said["tables"].items())
    ]
    output.table(["  TABLE", "ROWS", "REVISION", "STATE"], tables)
    if reflectors := said.get("reflectors"):
        output.table(
            ["  SOURCE", "STATE", "LISTS", "FAILURES", "LAST FAILURE"], [_source(*e) for e in reflectors.items()]
        )
    if clusters := said.get("clusters"):
        rows = [[f"  {row['name']}", row["state"], row["since"], row["reason"]] for row in clusters]
        output.table(["  CLUSTER", "STATE", "SINCE", "REASON"], rows)
    own = {key: value for key, value in said.items() if key not in (*GENERAL, "clusters")}
    for key, value in own.items():
        print(f"  {key}: {_said(value)}")
    print()


def _source(name: str, state: Mapping[str, Any]) -> list[str]:
    how = "not listed yet" if not state["synced"] else "watching" if state["connected"] else "away; last known state"
    return [f"  {name}", how, str(state["lists"]), str(state["failures"]), state["last_failure"]]


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return str(value).removeprefix("<").removesuffix(">")


def _clusters(socket: Socket) -> list[dict[str, Any]]:
    try:
        return sorted(socket.table("clusters").rows, key=lambda row: str(row["name"]))
    except QueryError:
        return []


def _seconds(uptime: float) -> str:
    hours, rest = divmod(int(uptime), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
