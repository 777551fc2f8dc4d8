"""``isthmus status``: what each process has, what it lacks, and whether it is ready."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from typing import Any, Final

import click

from isthmus.admin.query import QueryError, Socket, Unreachable
from isthmus.cli import output, sockets

GENERAL = (
    "version",
    "instance",
    "uptime",
    "ready",
    "tables",
    "reflectors",
    "problems",
    "clusters",
    "peers",
    "drains",
    "faults",
    "warnings",
)
"""Fields shown in a form of their own; every other field is shown as name and value."""
LINES: Final = 40
COLUMNS: Final = 100
"""Size that the summary fits, so that it can be read without scrolling."""
SHOWN: Final = (40, 5, 2, 1, 0)
"""Exceptions and remarks of a kind that the summary lists, tried in turn until it fits."""
WATCHING: Final = "watching"
"""State of a source whose changes arrive."""
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
"""Values of fields that are not shown."""


@click.command()
@click.option("-o", "--output", "form", type=click.Choice(["table", "wide", "json"]), default="table")
@sockets.options
def status(form: str, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Show what each process has and lacks. Exits with 1 while anything is not ready or fails.

    A table, source or cluster has a line if something is wrong with it; -o wide shows each of them, and all counters.
    The summary fits 40 lines of 100 columns: where more is wrong, the first of a kind are listed, the others counted.

    Example: isthmus status --cluster c3
    """
    statuses: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for process in sockets.find(socket=socket, cluster=cluster, lab=lab, keepers=True):
        try:
            statuses[process.path.stem] = process.status() | {"clusters": _clusters(process)}
        except Unreachable as error:
            missing[process.path.stem] = str(error)
        except QueryError as error:
            raise click.ClickException(str(error)) from None
    peers = [why for each in statuses.values() for why in _peer_problems(each["clusters"])]
    failing = [each for status_of in statuses.values() for each in failing_rows(status_of)]
    ready = (
        bool(statuses)
        and not missing
        and not peers
        and not failing
        and all(each["ready"] for each in statuses.values())
    )
    degraded = degraded_names(statuses, missing)
    if form == "json":
        output.json({"ready": ready, "processes": statuses, "missing": [*missing.values()], "degraded": degraded})
    else:
        endings = [*missing.values(), *([degraded] if degraded else [])]
        if form == "wide":
            _print_wide(statuses)
        for sentence in endings if form == "wide" or not statuses else _summary(statuses, endings):
            output.line(sentence, file=sys.stdout if statuses else sys.stderr)
    sys.exit(0 if ready else 1)


def degraded_names(statuses: Mapping[str, Any], missing: Mapping[str, str]) -> str:
    """State of names while a name server of the node is missing; empty if none is."""
    missing_servers = [name for name in sockets.NAME_SERVERS if name in missing]
    if not missing_servers:
        return ""
    if answering := [name for name in sockets.NAME_SERVERS if name in statuses]:
        return f"names are degraded: {missing_servers[0]} is away, {answering[0]} answers in its place"
    return f"names are degraded: {' and '.join(missing_servers)} are away, only the kernel answers" if statuses else ""


def _print_wide(statuses: Mapping[str, Mapping[str, Any]]) -> None:
    for name, status in statuses.items():
        output.line(_headline(name, status, sys.maxsize))
        _print_all(status)
        for line in _remarks(status, sys.maxsize):
            output.line(line)
        _print_counters(status)
        output.line()


def _summary(statuses: Mapping[str, Mapping[str, Any]], endings: Iterable[str]) -> list[str]:
    """Lines of the summary, with as many exceptions and remarks of a kind as fit."""
    lines = list[str]()
    for most in SHOWN:
        lines = [line for name, status in statuses.items() for line in (*_process_lines(name, status, most), "")]
        lines += endings
        if sum(len(_fold(line, COLUMNS)) for line in lines) <= LINES:
            break
    else:
        lines = [line if len(line) <= COLUMNS else f"{line[: COLUMNS - 1]}…" for line in lines]
    columns = output.width()
    return (
        lines if columns == output.WIDEST else [part for line in lines for part in _fold(line, min(columns, COLUMNS))]
    )


def _fold(line: str, columns: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.wrap(line, columns, subsequent_indent=indent, break_on_hyphens=False) or [line]


def _process_lines(name: str, status: Mapping[str, Any], most: int) -> list[str]:
    """Count what is as it should be, and name everything else; at most ``most`` of a kind."""
    tables = status["tables"]
    pending = [name for name, numbers in sorted(tables.items()) if numbers["pending"]]
    sources = [_source(*each) for each in (status.get("reflectors") or {}).items()]
    away = [f"{name.strip()}: {output.sentences(how, error)}" for name, how, *_, error in sources if how != WATCHING]
    peers = [row for row in status.get("clusters") or () if not row["own"]]
    return [
        _headline(name, status, most),
        *_counted("tables", "complete", len(tables), [f"{name} is not complete" for name in pending], most),
        *_counted("sources", WATCHING, len(sources), away, most),
        *_counted("clusters", "ready", len(peers), _peer_problems(peers), most),
        *(f"  {k}: {value}" for k, value in status.items() if k not in GENERAL and isinstance(value, str) and value),
        *_remarks(status, most),
    ]


def _headline(name: str, status: Mapping[str, Any], most: int) -> str:
    waiting = sorted({source for table in status["tables"].values() for source in table["pending"]})
    problems = [*status["problems"], *([f"waiting for {', '.join(waiting)}"] if waiting else [])]
    problems += _peer_problems(status["clusters"])
    for table, failing in failing_rows(status):
        problems.append(f"{failing} rows of {table.removesuffix('_status')} fail: isthmus get {table} -A")
    shown = max(most, 1)
    more = f"; and {len(problems) - shown} more" if len(problems) > shown else ""
    how = f"not ready: {'; '.join(problems[:shown])}{more}" if problems else "ready"
    return f"{name} {status['version']}: {how}, up {_seconds(status['uptime'])}"


def _counted(what: str, state: str, count: int, exceptions: Sequence[str], most: int) -> list[str]:
    if not count:
        return []
    number = f"{count - len(exceptions)} of {count}" if exceptions else str(count)
    more = [f"    and {len(exceptions) - most} more: -o wide"] if len(exceptions) > most > 0 else []
    return [f"  {what}: {number} {state}", *(f"    {each}" for each in exceptions[:most]), *more]


def _remarks(status: Mapping[str, Any], most: int) -> list[str]:
    remarks = [
        f"cluster {row['name']}: {row['reason']}"
        for row in status.get("clusters") or ()
        if not row["own"] and row["reason"] and not _is_wrong(row)
    ]
    status = {**status, "warnings": [*status.get("warnings", ()), *remarks]}
    lines = list[str]()
    for field, label in (("drains", "drain"), ("warnings", "warning"), ("faults", "fault")):
        sentences = status.get(field, ())
        lines += [f"  {label}: {each}" for each in sentences[:most]]
        if len(sentences) > most:
            lines.append(f"  {field}: {len(sentences) - most}{' more' if most else ''}, shown by -o wide")
    return lines


def _print_all(status: Mapping[str, Any]) -> None:
    """Print a line for each table, source and cluster."""
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


def _print_counters(status: Mapping[str, Any]) -> None:
    for key, value in status.items():
        if key not in GENERAL and value not in EMPTY:
            output.line(f"  {key}: {_text(value)}")


def failing_rows(status: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the tables of rows that a process could not put into effect, with their number of rows."""
    return [
        (name, numbers["rows"])
        for name, numbers in status.get("tables", {}).items()
        if name.endswith("_status") and numbers["rows"]
    ]


def _peer_problems(clusters: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each other cluster that is not ready, is followed in part, or soon cannot be reached."""
    found = []
    for row in clusters:
        if not row["own"] and _is_wrong(row):
            reason = _why(row)
            found.append(f"cluster {row['name']} is {row['state']}" + (f": {reason}" if reason else ""))
    return found


def _is_wrong(row: Mapping[str, Any]) -> bool:
    from isthmus.model.clusters import is_ending

    wrong = row["state"] != "ready" or row.get("file_problem") or row.get("failing")
    return bool(wrong) or is_ending(row.get("certificate_ends", ""), datetime.now(UTC))


def _why(cluster: Mapping[str, Any]) -> str:
    """Reasons for a cluster's state, and for what fails beside it; a process of an earlier version gives fewer."""
    return output.sentences(cluster["reason"], cluster.get("file_problem", ""), cluster.get("failing", ""))


def _source(name: str, state: Mapping[str, Any]) -> list[str]:
    how = "not listed yet" if not state["synced"] else WATCHING if state["connected"] else "away; last known state"
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
    hours, rest = divmod(floor(uptime), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
