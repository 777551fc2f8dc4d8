"""The view that the page shows, from the state of all processes. Pure; the structs are the contract with the page.

A cluster is judged by all others: it fails where more than half of those that answer cannot reach it. What a failing
cluster finds of others is no reason to suspect them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from isthmus import bounds
from isthmus.cli.ui import rates
from isthmus.cli.ui.rates import Edge
from isthmus.cli.ui.services import BackendView, Cell, Level, ServiceKey, ServiceView, backends, services, worst
from isthmus.cli.ui.sources import Process
from isthmus.model import tables
from isthmus.model.clusters import Cluster

REACHED: Final = frozenset({"ready", "silent"})
"""States of a peer whose etcd answers."""
SHOWN_PROBLEMS: Final = 200
"""Problems that the page gets; the number of all is in the view's summary."""


class Finding(Struct, frozen=True, kw_only=True):
    """The state in which one cluster finds another."""

    by: str
    state: str
    since: str = ""
    reason: str = ""


class GatewayView(Struct, frozen=True, kw_only=True):
    """A gateway of an island. ``healthy``: ``None`` if no node that is asked checks it."""

    address: str
    healthy: bool | None = None
    why: str = ""


class ClusterView(Struct, frozen=True, kw_only=True):
    """A cluster of the clusterset."""

    name: str
    network: str = ""
    region: str = ""
    zone: str = ""
    version: str = ""
    asked: bool = False
    """``True`` if its own processes are asked, and not only others about it."""
    counted: bool = False
    """``True`` if the calls of its pods are counted now; otherwise they are unknown."""
    nodes: int = 0
    nodes_asked: int = 0
    gateways: tuple[GatewayView, ...] = ()
    findings: tuple[Finding, ...] = ()
    drains: tuple[str, ...] = ()
    level: Level = "ok"
    why: tuple[str, ...] = ()


class ProcessView(Struct, frozen=True, kw_only=True):
    """A process that is asked."""

    cluster: str
    name: str
    place: str
    version: str = ""
    error: str = ""
    since: float = 0.0
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    level: Level = "ok"


class Problem(Struct, frozen=True, kw_only=True):
    """Something wrong, as a sentence, with the command that finds out more."""

    level: Level
    text: str
    why: tuple[str, ...] = ()
    cluster: str = ""
    service: str = ""
    command: str = ""


class Summary(Struct, frozen=True, kw_only=True):
    """Totals."""

    level: Level = "unknown"
    clusters: int = 0
    services: int = 0
    problems: int = 0
    rate: float = 0.0
    failed: float = 0.0
    uncounted: tuple[str, ...] = ()
    """Clusters whose calls are unknown."""


class View(Struct, frozen=True, kw_only=True):
    """All that the page shows, by kind and then by identifier."""

    clusters: Mapping[str, ClusterView] = {}
    services: Mapping[str, ServiceView] = {}
    edges: Mapping[str, Edge] = {}
    processes: Mapping[str, ProcessView] = {}
    problems: Mapping[str, Problem] = {}
    summary: Mapping[str, Summary] = {}
    """One entry, ``all``."""


KINDS: Final = View.__struct_fields__


def view(processes: Sequence[Process]) -> View:
    """Return what the page shows of what is known now."""
    findings = _findings(processes)
    lost = {name for name, found in findings.items() if _is_lost(found)}
    by_cluster = backends(processes, lost)
    edges = rates.edges(processes)
    shown = clusters(processes, findings, lost, by_cluster)
    stale = {name: why for name, each in shown.items() if (why := _stale(each, processes))}
    all_services = services(processes, by_cluster, edges.values(), stale)
    asked = {f"{each.cluster}/{each.name}/{each.place}": _process(each) for each in processes}
    problems = _problems(shown, all_services, asked)
    uncounted = tuple(sorted(name for name, each in shown.items() if not each.counted))
    summary = Summary(
        level=worst([each.level for each in problems] or (["ok"] if shown else ["unknown"])),
        clusters=len(shown),
        services=len(all_services),
        problems=len(problems),
        rate=round(sum(edge.rate for edge in edges.values()), 1),
        failed=round(sum(edge.failed for edge in edges.values()), 1),
        uncounted=uncounted,
    )
    numbered = {f"{number:05}": each for number, each in enumerate(problems[:SHOWN_PROBLEMS])}
    return View(
        clusters=shown,
        services=all_services,
        edges=edges,
        processes=asked,
        problems=numbered,
        summary={"all": summary},
    )


def difference(old: View, new: View) -> dict[str, Any]:
    """Return what changed: ``put`` by kind and identifier, and the identifiers that are ``gone`` by kind."""
    put: dict[str, dict[str, Any]] = {}
    gone: dict[str, list[str]] = {}
    for kind in KINDS:
        before, after = getattr(old, kind), getattr(new, kind)
        if changed := {name: each for name, each in after.items() if before.get(name) != each}:
            put[kind] = changed
        if removed := [name for name in before if name not in after]:
            gone[kind] = removed
    return {"put": put, "gone": gone} if put or gone else {}


def lost_clusters(processes: Sequence[Process]) -> set[str]:
    """Return the clusters that more than half of the others, of those that answer, cannot reach."""
    return {name for name, found in _findings(processes).items() if _is_lost(found)}


def clusters(
    processes: Sequence[Process],
    findings: Mapping[str, Sequence[Finding]],
    lost: Collection[str],
    by_cluster: Mapping[ServiceKey, Sequence[BackendView]],
) -> dict[str, ClusterView]:
    """Return all clusters that any process knows of."""
    described = _descriptions(processes)
    names = {*described, *findings, *(each.cluster for each in processes)}
    shown = {}
    for name in sorted(names):
        own = [each for each in processes if each.cluster == name]
        row = described.get(name)
        level, why = _judge_cluster(name, own, findings.get(name, []), lost, by_cluster)
        gateways = _gateways(row, processes)
        if broken := [each for each in gateways if each.healthy is False]:
            level = worst([level, "failing" if len(broken) == len(gateways) else "degraded"])
            why += [f"gateway {each.address}: {each.why}" for each in broken]
        agents = [each for each in own if each.name == "agent"]
        shown[name] = ClusterView(
            name=name,
            network=row.network if row else "",
            region=row.region if row else "",
            zone=row.zone if row else "",
            version=row.version if row else "",
            asked=bool(own),
            counted=bool(agents) and all(each.counts and not each.error for each in agents),
            nodes=max((len(each.rows(tables.NODES)) for each in agents), default=0),
            nodes_asked=len(agents),
            gateways=gateways,
            findings=tuple(findings.get(name, ())),
            drains=_drains(name, processes),
            level=level,
            why=tuple(why),
        )
    return shown


def _descriptions(processes: Iterable[Process]) -> dict[str, Cluster]:
    """Return a row for each cluster: its own, else what another one knows."""
    rows: dict[str, Cluster] = {}
    for process in sorted(processes, key=lambda each: (bool(each.error), each.name)):
        for row in process.rows(tables.CLUSTERS).values():
            if row.name not in rows or (row.own and not rows[row.name].own):
                rows[row.name] = row
    return rows


def _findings(processes: Iterable[Process]) -> dict[str, list[Finding]]:
    """Findings of each cluster that answers about its peers: of its processes, those of the one that finds a fault."""
    found: defaultdict[str, dict[str, Finding]] = defaultdict(dict)
    for process in processes:
        if process.error:
            continue
        for row in process.rows(tables.CLUSTERS).values():
            if row.own:
                continue
            before = found[row.name].get(process.cluster)
            if before is None or (before.state == "ready" and row.state != "ready"):
                reason = "; ".join(filter(None, (row.reason, row.file_problem, row.failing)))
                found[row.name][process.cluster] = Finding(
                    by=process.cluster, state=row.state, since=row.since, reason=reason
                )
    return {name: sorted(by.values(), key=lambda each: each.by) for name, by in found.items()}


def _is_lost(findings: Sequence[Finding]) -> bool:
    """True if more than half of the clusters that answer cannot reach it."""
    return 2 * sum(each.state not in REACHED for each in findings) > len(findings)


def _judge_cluster(
    name: str,
    own: Sequence[Process],
    findings: Sequence[Finding],
    lost: Collection[str],
    by_cluster: Mapping[ServiceKey, Sequence[BackendView]],
) -> tuple[Level, list[str]]:
    levels: list[Level] = []
    why: list[str] = []
    fails = name in lost
    for finding in findings:
        if finding.state != "ready":
            suspect = fails or finding.by not in lost
            levels += [("failing" if fails else "degraded")] if suspect else []
            by = finding.by if suspect else f"{finding.by}, which others cannot reach,"
            found = _FOUND.get(finding.state, f"finds it {finding.state}{{since}}").format(since=_since(finding.since))
            why.append(f"{by} {found}{_because(finding.reason)}")
    silent = [each for each in own if each.error]
    for process in silent:
        levels.append("degraded")
        why.append(f"its {_named(process)} does not answer{_at(process.since)}: {process.error}")
    if silent and len(silent) == len(own):
        levels = ["failing"] if fails else ["unknown"]
    if not own and not findings:
        levels.append("unknown")
        why.append("no process that is asked knows its state")
    for process in own:
        if not process.error:
            level, problems = _of_process(process)
            levels.append(level)
            why += [f"its {_named(process)}: {each}" for each in problems]
    level, sentence = _of_backends(name, by_cluster)
    levels.append(level)
    return worst(levels), [*([sentence] if sentence else []), *why]


def _of_process(process: Process) -> tuple[Level, list[str]]:
    status = process.status
    problems = [*map(str, status.get("problems", ()))]
    waiting = sorted({source for pending in process.pending.values() for source in pending})
    if problems or status.get("faults"):
        return "degraded", [*problems, *map(str, status.get("faults", ()))]
    if waiting:
        return "unknown", [f"it has not read everything yet: it waits for {', '.join(waiting)}"]
    if not status or not process.tables:
        return "unknown", ["it has not answered yet"]
    return "ok", []


def _of_backends(name: str, by_cluster: Mapping[ServiceKey, Sequence[BackendView]]) -> tuple[Level, str]:
    """The state of a cluster by what others find of its backends: a cluster none of which can be called fails."""
    bad = [
        (service, row)
        for (service, cluster), rows in by_cluster.items()
        if cluster == name
        for row in rows
        if row.state in ("dead", "ejected", "silent")
    ]
    total = sum(len(rows) for (_, cluster), rows in by_cluster.items() if cluster == name)
    if not bad:
        return "ok", ""
    services = sorted({service for service, _ in bad})
    which = services[0] if len(services) == 1 else f"{len(services)} services"
    text = f"{len(bad)} of its {total} backends cannot be called ({which}){_because(next(iter(bad[0][1].why), ''))}"
    return ("failing" if len(bad) == total else "degraded"), text


def _stale(cluster: ClusterView, processes: Iterable[Process]) -> str:
    """Reason why the state of a cluster's backends may be outdated; empty if it is not."""
    own = [each for each in processes if each.cluster == cluster.name and each.name == "agent"]
    if any(not each.error for each in own):
        return ""
    if own:
        since = max(each.since for each in own)
        return f"as {f'of {_clock(since)}' if since else 'others know it'}: its agent does not answer"
    if not any(each.state == "ready" for each in cluster.findings):
        return "as last known: no cluster that answers can reach it"
    return ""


def _gateways(row: Cluster | None, processes: Iterable[Process]) -> tuple[GatewayView, ...]:
    if row is None:
        return ()
    checks: dict[str, GatewayView] = {}
    for process in processes:
        for check in process.rows(tables.GATEWAY_CHECKS).values():
            if check.cluster == row.name and (check.address not in checks or not check.healthy):
                why = "" if check.healthy else f"{process.cluster}: {check.reason or 'its checks fail'}"
                checks[check.address] = GatewayView(address=check.address, healthy=check.healthy, why=why)
        for refused in process.rows(tables.REFUSED_GATEWAYS).values():
            if refused.cluster == row.name:
                why = f"{process.cluster}: {refused.message}"
                checks[refused.address] = GatewayView(address=refused.address, healthy=False, why=why)
    return tuple(checks.get(each, GatewayView(address=each)) for each in row.gateways)


def _drains(name: str, processes: Iterable[Process]) -> tuple[str, ...]:
    rows = [row for process in processes for row in process.rows(tables.DRAINING).values()]
    return tuple(
        sorted(
            {
                f"{row.drain.kind} {row.drain.target}: {row.left}% of its calls are left{_because(row.drain.reason)}"
                for row in rows
                if row.by == name or (row.drain.kind == "Cluster" and row.drain.target == name)
            }
        )
    )


def _process(process: Process) -> ProcessView:
    level, problems = _of_process(process)
    return ProcessView(
        cluster=process.cluster,
        name=process.name,
        place=process.place,
        version=str(process.status.get("version", "")),
        error=process.error,
        since=process.since if process.error else 0.0,
        problems=tuple(problems),
        warnings=(*map(str, process.status.get("warnings", ())), *process.unreadable.values()),
        level="unknown" if process.error else level,
    )


def _problems(
    clusters: Mapping[str, ClusterView], services: Mapping[str, ServiceView], processes: Mapping[str, ProcessView]
) -> list[Problem]:
    found = []
    for cluster in clusters.values():
        if cluster.level != "ok":
            asked = f" --cluster {cluster.name}" if cluster.asked else ""
            found.append(
                Problem(
                    level=cluster.level,
                    text=f"Cluster {cluster.name} {_VERBS[cluster.level]}",
                    why=cluster.why,
                    cluster=cluster.name,
                    command=f"isthmus status{asked}",
                )
            )
    for service in services.values():
        if service.level != "ok":
            found.append(
                Problem(
                    level=service.level,
                    text=f"Service {service.name} {_VERBS[service.level]}",
                    why=service.why,
                    service=service.name,
                    cluster=_only_culprit(service.cells),
                    command=f"isthmus diagnose {service.name}",
                )
            )
    for process in processes.values():
        for warning in process.warnings:
            found.append(
                Problem(
                    level="degraded",
                    text=f"{process.cluster}: {process.name} warns",
                    why=(warning,),
                    cluster=process.cluster,
                    command="isthmus status",
                )
            )
    order = {"failing": 0, "degraded": 1, "unknown": 2}
    return sorted(found, key=lambda each: (order[each.level], bool(each.service), each.text))


_FOUND: Final = {
    "stale": "cannot reach it{since}, and uses what it last knew of it",
    "silent": "reaches its etcd, where nobody keeps its records up to date{since}",
    "connecting": "has not reached it yet{since}",
    "listing": "has not read its records yet{since}",
    "refused": "refuses its records{since}",
    "distrusted": "does not trust it{since}, by its administrators' choice",
}
"""Findings about peers, from the beginning of their states."""
_VERBS: Final = {"failing": "fails", "degraded": "is degraded", "unknown": "is in an unknown state"}


def _only_culprit(cells: Mapping[str, Cell]) -> str:
    bad = [name for name, cell in cells.items() if cell.level in ("failing", "degraded")]
    return bad[0] if len(bad) == 1 else ""


def _named(process: Process) -> str:
    return f"{process.name} on {process.place}" if process.place else process.name


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _since(text: str) -> str:
    return f" since {text}" if text else ""


def _at(seconds: float) -> str:
    return f" since {_clock(seconds)}" if seconds else ""


def _clock(seconds: float) -> str:
    moment: datetime = bounds.since_epoch(seconds)
    return f"{moment:%H:%M:%S} UTC"
