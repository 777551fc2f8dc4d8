"""``isthmus clusters``: state of the other clusters, and how clusters join and trust each other."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from isthmus.admin.query import NoTable, QueryError, Socket
from isthmus.cli import draining, groups, joining, output, rotating, sockets, trusting

LOOK_EVERY: Final = 0.5


@click.group(cls=groups.Group)
def group() -> None:
    """The other clusters: their state, and how clusters join and trust each other."""


for command in (
    joining.certs, rotating.rotate_ca, joining.refresh, joining.invite, joining.join, joining.leave,
    trusting.distrust, trusting.trust, draining.drain_cluster, draining.undrain_cluster,
):  # fmt: skip
    group.add_command(command)


@group.command()
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait until all are ready, at most so long.")
@sockets.options
def status(form: str, wait: float, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """State of each other cluster in each process. Exits with 1 when one is not ready.

    Example: isthmus clusters status --context c1
    """
    until = time.monotonic() + wait
    asked = sockets.find(socket=socket, cluster=cluster, lab=lab)
    while not (report := _ask(asked))["ready"] and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    if form == "json":
        output.json(report)
    else:
        _print(report)
    sys.exit(0 if report["ready"] else 1)


def _ask(asked: Sequence[Socket]) -> dict[str, Any]:
    """The report of every process that follows clusters."""
    processes: dict[str, Any] = {}
    missing = []
    for each in asked:
        try:
            clusters = _clusters(each)
        except NoTable:
            continue
        except QueryError as error:
            missing.append(str(error))
            continue
        ready = all(peer["ready"] for peer in clusters)
        processes[each.path.stem] = {"ready": ready, "clusters": clusters}
    ready = bool(processes) and not missing and all(each["ready"] for each in processes.values())
    return {"ready": ready, "processes": processes, "missing": missing}


def _clusters(socket: Socket) -> list[dict[str, Any]]:
    tables = socket.tables()
    rows = [row for row in socket.table("clusters").rows if not row["own"]]
    counted = {
        "services": _rows(socket, tables, ("endpoint_sets", "copies_services")),
        "exports": _rows(socket, tables, ("exports", "copies_serviceexports")),
        "draining": _rows(socket, tables, ("draining",)),
        "refused": _rows(socket, tables, ("refused_gateways",)),
    }
    return [_peer(row, counted) for row in sorted(rows, key=lambda row: str(row["name"]))]


def _rows(socket: Socket, tables: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]] | None:
    """The rows of the first of these tables that the process has; None where it has none of them."""
    name = next((each for each in names if each in tables), None)
    return list(socket.table(name).rows) if name else None


def _peer(row: Mapping[str, Any], counted: Mapping[str, list[dict[str, Any]] | None]) -> dict[str, Any]:
    """A peer in the words of Cilium's status, with what it has no word for."""
    own = {
        kind: None if rows is None else [each for each in rows if _is_from_peer(each, row["name"])]
        for kind, rows in counted.items()
        if kind not in ("draining", "refused")
    }
    refused = [each for each in counted["refused"] or () if each["cluster"] == row["name"]]
    services, exports = own["services"], own["exports"]
    return {
        "name": row["name"],
        "ready": row["state"] == "ready"
        and not (row.get("file_problem") or row.get("failing") or _uncallable(refused)),
        "connected": row["connected"],
        "state": row["state"],
        "since": row["since"],
        "status": row["reason"],
        "file-problem": row.get("file_problem", ""),
        "failing": row.get("failing", ""),
        "endpoints": row["endpoints"],
        "config": {
            "retrieved": bool(row["id"]),
            "cluster-id": row["id"],
            "kvstoremesh": row["cached"],
            "service-exports-enabled": row["exports_enabled"],
        },
        "description": {field: row[field] for field in ("network", "region", "zone", "labels", "gateways", "version")},
        "drains": [_drain(each) for each in counted["draining"] or () if _about(each, row["name"])],
        "synced": {
            "services": None if services is None else "services" in row["synced"],
            "service-exports": None if exports is None else "serviceexports" in row["synced"],
        },
        "num-shared-services": None if services is None else len(services),
        "num-endpoints": _endpoints(services),
        "num-service-exports": None if exports is None else len(exports),
        "refused-gateways": {each["address"]: each["message"] for each in refused},
        "certificate-ends": row.get("certificate_ends", ""),
        "num-dropped": row["dropped"],
        "dropped-example": row["dropped_example"],
        "num-failures": row["failures"],
        "last-failure": row["last_failure"],
        "last-failure-reason": row["last_failure_reason"],
    }


def _refused(peer: Mapping[str, Any]) -> str:
    """A sentence about the gateways of a peer that are not dialed; empty if there are none."""
    found = [f"{address} ({why})" for address, why in sorted(peer["refused-gateways"].items())]
    return f"of its gateways refused: {', '.join(found)}" if found else ""


def _uncallable(refused: Sequence[Mapping[str, Any]]) -> bool:
    """True if a peer has no gateway but refused ones."""
    return any(each.get("all_refused") for each in refused)


def _about(draining: Mapping[str, Any], cluster: str) -> bool:
    """True if a cluster drains or is drained."""
    return cluster in (draining["by"], draining["drain"]["target"])


def _drain(draining: Mapping[str, Any]) -> str:
    drain, remaining = draining["drain"], f", {draining['left']}% left" if draining["left"] else ""
    return f"{drain['kind'].lower()} {drain['target']} ({drain.get('reason', '')} in {draining['by']}{remaining})"


def _endpoints(services: Sequence[Mapping[str, Any]] | None) -> int | None:
    """Count endpoints; ``None`` if unknown, since a mirror does not decode the records that it copies."""
    if services is None or any("endpoints" not in each for each in services):
        return None
    return sum(len(each["endpoints"]) for each in services)


def _is_from_peer(row: Mapping[str, Any], cluster: str) -> bool:
    """True if a row is from a peer and has not lapsed."""
    return bool(row["cluster"] == cluster and row.get("source", "clusterset") == "clusterset" and not row.get("lapsed"))


def _print(report: Mapping[str, Any]) -> None:
    for name, process in report["processes"].items():
        clusters = process["clusters"]
        ready = sum(peer["ready"] for peer in clusters)
        output.line(f"{name}: {ready}/{len(clusters)} clusters ready")
        if clusters:
            heads = ["  CLUSTER", "ID", "STATE", "CONNECTED", "SYNCED", "SERVICES", "ENDPOINTS", "EXPORTS", "DROPPED"]
            output.table([*heads, "FAILURES", "LAST FAILURE", "DRAINED", "REASON"], [_line(peer) for peer in clusters])
    for sentence in report["missing"]:
        output.line(sentence, file=sys.stdout if report["processes"] else sys.stderr)


def _line(peer: Mapping[str, Any]) -> list[str]:
    synced = [kind for kind, whole in peer["synced"].items() if whole]
    numbers = ("num-shared-services", "num-endpoints", "num-service-exports", "num-dropped", "num-failures")
    return [
        f"  {peer['name']}",
        str(peer["config"]["cluster-id"] or "-"),
        peer["state"],
        "yes" if peer["connected"] else "no",
        ", ".join(synced) or "-",
        *("-" if peer[number] is None else str(peer[number]) for number in numbers),
        peer["last-failure"] or "never",
        ", ".join(peer["drains"]) or "-",
        output.sentences(peer["status"], peer["file-problem"], peer["failing"], _refused(peer))
        or peer["dropped-example"],
    ]
