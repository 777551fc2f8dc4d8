"""``isthmus status``: what each process has, what it lacks, and whether it is ready."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from isthmus.admin.query import QueryError, Socket, Unreachable
from isthmus.cli import output, sockets

GENERAL = ("version", "instance", "uptime", "ready", "tables", "reflectors", "problems", "clusters", "peers", "drains")
"""Fields shown in a form of their own; every other field is shown as name and value."""
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
"""Values of fields that are not shown."""


@click.command()
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@sockets.options
def status(form: str, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """What the processes have, and what they lack. Exits with 1 when one is not ready, or another cluster is not."""
    found: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for each in sockets.find(socket=socket, cluster=cluster, lab=lab):
        try:
            found[each.path.stem] = each.status() | {"clusters": _clusters(each)}
        except Unreachable as why:
            missing[each.path.stem] = str(why)
        except QueryError as why:
            raise click.ClickException(str(why)) from None
    peers = [why for each in found.values() for why in _peer_problems(each["clusters"])]
    ready = bool(found) and not missing and not peers and all(each["ready"] for each in found.values())
    degraded = degraded_names(found, missing)
    if form == "json":
        output.json({"ready": ready, "processes": found, "missing": [*missing.values()], "degraded": degraded})
    else:
        for name, status_of in found.items():
            _print(name, status_of)
        for sentence in [*missing.values(), *([degraded] if degraded else [])]:
            output.line(sentence, file=sys.stdout if found else sys.stderr)
    sys.exit(0 if ready else 1)


def degraded_names(found: Mapping[str, Any], missing: Mapping[str, str]) -> str:
    """What is left of names while a name server of the node is missing; empty when none is."""
    gone = [name for name in sockets.NAME_SERVERS if name in missing]
    if not gone:
        return ""
    if left := [name for name in sockets.NAME_SERVERS if name in found]:
        return f"names are degraded: {gone[0]} is away, {left[0]} answers in its place"
    return f"names are degraded: {' and '.join(gone)} are away, only the kernel answers" if found else ""


def _print(name: str, status: Mapping[str, Any]) -> None:
    waiting = sorted({source for table in status["tables"].values() for source in table["pending"]})
    why = [*status["problems"], *([f"waiting for {', '.join(waiting)}"] if waiting else [])]
    why += _peer_problems(status["clusters"])
    how = f"not ready: {'; '.join(why)}" if why else "ready"
    output.line(f"{name} {status['version']}: {how}, up {_seconds(status['uptime'])}")
    shown = {
        name: numbers for name, numbers in sorted(status["tables"].items()) if numbers["rows"] or numbers["pending"]
    }
    tables = [
        [f"  {table}", str(numbers["rows"]), str(numbers["revision"]), ", ".join(numbers["pending"]) or "complete"]
        for table, numbers in shown.items()
    ]
    if tables:
        output.table(["  TABLE", "ROWS", "REVISION", "STATE"], tables)
    if empty := len(status["tables"]) - len(shown):
        output.line(f"  tables that are complete and empty: {empty}")
    if reflectors := status.get("reflectors"):
        output.table(
            ["  SOURCE", "STATE", "LISTS", "FAILURES", "LAST FAILURE"], [_source(*e) for e in reflectors.items()]
        )
    if clusters := status.get("clusters"):
        rows = [[f"  {row['name']}", row["state"], row["since"], _why(row)] for row in clusters]
        output.table(["  CLUSTER", "STATE", "SINCE", "REASON"], rows)
    for drain in status.get("drains", ()):
        output.line(f"  drain: {drain}")
    for key, value in status.items():
        if key not in GENERAL and value not in EMPTY:
            output.line(f"  {key}: {_text(value)}")
    output.line()


def _peer_problems(clusters: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each other cluster that is not ready, or whose file cannot be used."""
    found = []
    for row in clusters:
        if not row["own"] and (row["state"] != "ready" or row.get("file_problem")):
            why = _why(row)
            found.append(f"cluster {row['name']} is {row['state']}" + (f": {why}" if why else ""))
    return found


def _why(cluster: Mapping[str, Any]) -> str:
    """Why a cluster is in its state, or what is to be known of it, and what is wrong with its file."""
    return output.sentences(cluster["reason"], cluster.get("file_problem", ""))  # of an earlier version has none


def _source(name: str, state: Mapping[str, Any]) -> list[str]:
    how = "not listed yet" if not state["synced"] else "watching" if state["connected"] else "away; last known state"
    return [f"  {name}", how, str(state["lists"]), str(state["failures"]), state["last_failure"]]


def _text(value: Any) -> str:
    """A value in one line: fields as 'name value', empty ones left out, those of a field of fields in brackets."""
    if isinstance(value, Mapping):
        fields = [(key, each) for key, each in value.items() if each not in EMPTY]
        return ", ".join(
            f"{key} ({_text(each)})" if isinstance(each, Mapping) else f"{key} {_text(each)}" for key, each in fields
        )
    if isinstance(value, list):
        return ", ".join(f"({_text(each)})" if isinstance(each, Mapping) else _text(each) for each in value)
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _clusters(socket: Socket) -> list[dict[str, Any]]:
    try:
        return sorted(socket.table("clusters").rows, key=lambda row: str(row["name"]))
    except QueryError:
        return []


def _seconds(uptime: float) -> str:
    hours, rest = divmod(int(uptime), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
