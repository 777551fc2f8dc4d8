"""Services and their backends, joined from what each cluster's agent and operator know of them. Pure.

A backend is judged by the worst that any cluster finds: a cluster that cannot call it has a problem, whatever its own
cluster reports. Its own cluster, where it is asked, decides which backends there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, structs

from isthmus.cli.ui.rates import Edge
from isthmus.cli.ui.sources import Process
from isthmus.model import tables
from isthmus.model.balancing import Backend, Probe
from isthmus.model.services import Condition

Level = Literal["ok", "unknown", "degraded", "failing"]
"""Worst last. ``unknown`` is never shown as well: what is not known may fail."""
LEVELS: Final[tuple[Level, ...]] = ("ok", "unknown", "degraded", "failing")

BackendState = Literal[
    "ready", "draining", "terminating", "drained", "not ready", "lapsed", "dead", "ejected", "silent"
]
"""Best first. ``ejected``, ``silent``: calls pass over it after failed connects; ``dead``: its probes fail."""
STATES: Final[tuple[BackendState, ...]] = (
    "ready", "draining", "terminating", "drained", "not ready", "lapsed", "dead", "ejected", "silent",
)  # fmt: skip
USABLE: Final = frozenset({"ready", "draining", "terminating"})
INTENDED: Final = frozenset({*USABLE, "drained"})
"""States that are no fault."""

ServiceKey = tuple[str, str]
"""Service and cluster."""


class BackendView(Struct, frozen=True, kw_only=True):
    """A backend of a service: an address of one cluster, with all its ports."""

    cluster: str
    address: str
    ports: tuple[str, ...] = ()
    pod: str = ""
    node: str = ""
    zone: str = ""
    count: int = 1
    """Number of endpoints behind it: more than one for an island seen from outside."""
    state: BackendState = "ready"
    why: tuple[str, ...] = ()
    """Findings, each with the cluster that made it."""


class Cell(Struct, frozen=True, kw_only=True):
    """A service in one cluster."""

    exported: bool = False
    imported: bool = False
    backends: int = 0
    usable: int = 0
    states: Mapping[str, int] = {}
    """Number of backends by state, other than ready."""
    level: Level = "ok"
    why: tuple[str, ...] = ()


class ServiceView(Struct, frozen=True, kw_only=True):
    """A service of the clusterset."""

    name: str
    """namespace/name"""
    cells: Mapping[str, Cell]
    policies: tuple[str, ...] = ()
    rate: float = 0.0
    failed: float = 0.0
    level: Level = "ok"
    why: tuple[str, ...] = ()


def worst(levels: Iterable[Level]) -> Level:
    """Return the worst of levels; ``ok`` of none."""
    return max(levels, key=LEVELS.index, default="ok")


def backends(processes: Sequence[Process], lost: Collection[str] = ()) -> dict[ServiceKey, list[BackendView]]:
    """Return the backends of all services by service and cluster, each with what any cluster finds wrong with it.

    ``lost``: clusters that most others cannot reach. What these find of the others is displayed, and changes no state.
    """
    agents = [each for each in processes if each.name == "agent"]
    drains = _drains(agents)
    answering = {each.cluster for each in agents if not each.error and each.knows(tables.BACKENDS)}
    merged: defaultdict[ServiceKey, dict[str, BackendView]] = defaultdict(dict)
    envoys: set[tuple[str, str, str]] = set()
    for process in sorted(
        agents, key=lambda each: bool(each.error)
    ):  # an agent that answers overrides one that does not
        for row in process.rows(tables.BACKENDS).values():
            owner, service = row.key.cluster or process.cluster, row.import_of or row.key.service
            if owner != process.cluster and owner in answering:
                if row.stands_for:
                    envoys.add((service, owner, row.key.address))
                continue
            own = merged[service, owner]
            own[row.key.address] = _view(row, owner, service, own.get(row.key.address), drains)
    for (service, cluster, address), (state, why) in _findings(agents, lost).items():
        own = merged[service, cluster]
        # An island is called through an address of the caller's node, behind which are all of its backends.
        for each in own if (service, cluster, address) in envoys else own.keys() & {address}:
            own[each] = _worse(own[each], state, why)
    return {key: sorted(rows.values(), key=lambda row: row.address) for key, rows in merged.items()}


def _view(
    row: Backend, cluster: str, service: str, known: BackendView | None, drains: Mapping[tuple[str, str, str], int]
) -> BackendView:
    port = f"{row.key.port}/{row.key.protocol}"
    left = min(
        (
            drains[key]
            for key in (("Cluster", "", cluster), ("Node", cluster, row.node), ("Service", cluster, service))
            if key in drains
        ),
        default=100,
    )
    states: list[BackendState] = ["ready" if left == 100 else "draining" if left else "drained"]
    if row.condition >= Condition.NOT_READY:
        states.append("not ready")
    elif row.condition == Condition.TERMINATING:
        states.append("terminating")
    if row.lapsed:
        states.append("lapsed")
    state = max(states, key=STATES.index)
    if known is None:
        return BackendView(
            cluster=cluster,
            address=row.key.address,
            ports=(port,),
            pod=row.pod,
            node=row.node,
            zone=row.zone,
            count=row.count,
            state=state,
        )
    ports = tuple(sorted({*known.ports, port}))
    return structs.replace(known, ports=ports, state=max(known.state, state, key=STATES.index))


def _worse(view: BackendView, state: BackendState, why: Sequence[str]) -> BackendView:
    return structs.replace(
        view, state=max(view.state, state, key=STATES.index), why=tuple(dict.fromkeys((*view.why, *why)))
    )


def _findings(
    agents: Iterable[Process], lost: Collection[str]
) -> dict[tuple[str, str, str], tuple[BackendState, list[str]]]:
    """Backends that fail for some cluster, by service, cluster and address."""
    found: dict[tuple[str, str, str], tuple[BackendState, list[str]]] = {}

    def add(process: Process, key: Any, state: BackendState, why: str) -> None:
        service = names.get(key.service, key.service)
        cluster = key.cluster or process.cluster
        by = process.cluster
        if by in lost and cluster not in lost:
            state, by = "ready", f"{by}, which others cannot reach"
        before = found.get((service, cluster, key.address), (state, []))
        worse = max(before[0], state, key=STATES.index)
        found[service, cluster, key.address] = worse, [*before[1], f"{by}: {why}"]

    for process in agents:
        names = {row.derived_service: row.name for row in process.rows(tables.IMPORTS).values()}
        for row in process.rows(tables.FAILURES).values():
            add(process, row.key, "silent" if row.reason == "silent" else "ejected", f"ejected: {row.error}")
        for row in process.rows(tables.CALLER_FAILURES).values():
            if row.verdict != "answers":
                add(process, row.key, "ready", f"ejected for {row.pod or 'one caller'} alone: {row.reason}")
        for probe in process.rows(tables.PROBES).values():
            if not probe.healthy:
                add(process, probe.key, "dead", _probed(probe))
    return found


def _probed(probe: Probe) -> str:
    return f"its probes fail: {probe.reason}" if probe.reason else "its probes fail"


def _drains(agents: Iterable[Process]) -> dict[tuple[str, str, str], int]:
    """Percentages that drains leave, by kind, requesting cluster (empty for a whole cluster) and target."""
    return {
        (row.drain.kind, "" if row.drain.kind == "Cluster" else row.by, row.drain.target): row.left
        for process in agents
        for row in process.rows(tables.DRAINING).values()
    }


def services(
    processes: Sequence[Process],
    by_cluster: Mapping[ServiceKey, Sequence[BackendView]],
    calls: Iterable[Edge],
    stale: Mapping[str, str],
) -> dict[str, ServiceView]:
    """Return every service that a cluster exports, imports or plans. ``stale``: why rows of a cluster may be old."""
    exported, imported, refused = _exports(processes), _imports(processes), _refusals(processes)
    unanswered = _unanswered(processes)
    policies = _policies(processes)
    rate: defaultdict[str, float] = defaultdict(lambda: 0.0)
    failed: defaultdict[str, float] = defaultdict(lambda: 0.0)
    for edge in calls:
        rate[edge.service] += edge.rate
        failed[edge.service] += edge.failed
    places: defaultdict[str, set[str]] = defaultdict(set)
    for service, cluster in (*by_cluster, *exported, *imported, *refused, *unanswered):
        places[service].add(cluster)
    views = {}
    for service, clusters in sorted(places.items()):
        cells = {
            cluster: _cell(
                by_cluster.get((service, cluster), ()),
                exported=(service, cluster) in exported,
                imported=(service, cluster) in imported,
                refusals=[*refused.get((service, cluster), ()), *unanswered.get((service, cluster), ())],
                stale=stale.get(cluster, ""),
            )
            for cluster in sorted(clusters)
        }
        views[service] = ServiceView(
            name=service,
            cells=cells,
            policies=tuple(sorted(policies.get(service, ()))),
            rate=round(rate[service], 1),
            failed=round(failed[service], 1),
            **_judged(cells, failed[service]),
        )
    return views


def _judged(cells: Mapping[str, Cell], failed: float) -> dict[str, Any]:
    why = [f"{cluster}: {each}" for cluster, cell in cells.items() for each in cell.why]
    levels: list[Level] = ["degraded" if cell.level == "failing" else cell.level for cell in cells.values()]
    if failed:
        why.insert(0, f"{failed:.3g} calls a second fail")
        levels.append("failing")
    if not any(cell.usable for cell in cells.values()):
        why.insert(0, "no backend in any cluster can be called")
        levels.append("failing")
    return {"level": worst(levels), "why": tuple(why)}


def _cell(rows: Sequence[BackendView], *, exported: bool, imported: bool, refusals: Sequence[str], stale: str) -> Cell:
    total, usable = sum(row.count for row in rows), sum(row.count for row in rows if row.state in USABLE)
    states: Counter[str] = Counter()
    for row in rows:
        if row.state != "ready":
            states[row.state] += row.count
    faulty = {state: count for state, count in states.items() if state not in INTENDED}
    levels: list[Level] = ["degraded"] if faulty or refusals else []
    why = [*refusals, *(f"{count} of {total} backends {_plural(state, count)}" for state, count in faulty.items())]
    if faulty and not usable:
        levels.append("failing")
        why += _reasons(rows)
    if exported and not total:
        levels.append("failing")
        why.append("it exports the service and has no backend")
    if stale and total:
        levels.append("unknown")
        why.append(stale)
    return Cell(
        exported=exported,
        imported=imported,
        backends=total,
        usable=usable,
        states=dict(states),
        level=worst(levels),
        why=tuple(why),
    )


def _plural(state: str, count: int) -> str:
    return f"{'is' if count == 1 else 'are'} {state}"


def _reasons(rows: Iterable[BackendView]) -> list[str]:
    """A few of the findings, each once."""
    return list(dict.fromkeys(why for row in rows for why in row.why))[:2]


def _exports(processes: Iterable[Process]) -> set[ServiceKey]:
    """Exports by service and cluster, of operators; of an import's own list where no operator is asked."""
    exported: set[ServiceKey] = set()
    for process in processes:
        for row in process.rows(tables.OWN_EXPORTS).values():
            if row.export is not None:
                exported.add((row.name, process.cluster))
        exported |= {(row.name, row.cluster) for row in process.rows(tables.EXPORTS).values()}
        exported |= {(row.name, each) for row in process.rows(tables.IMPORTS).values() for each in row.clusters}
    return exported


def _imports(processes: Iterable[Process]) -> set[ServiceKey]:
    return {(row.name, process.cluster) for process in processes for row in process.rows(tables.IMPORTS).values()}


def _refusals(processes: Iterable[Process]) -> dict[ServiceKey, list[str]]:
    """Sentences on exports, records and imports that are refused, by service and the cluster concerned."""
    found: defaultdict[ServiceKey, list[str]] = defaultdict(list)
    for process in processes:
        for row in process.rows(tables.OWN_EXPORTS).values():
            if row.export is None:
                found[row.name, process.cluster].append(f"it is not exported: {row.message or row.reason}")
        for row in process.rows(tables.REFUSED_RECORDS).values():
            found[row.name, row.cluster].append(f"{process.cluster} refuses a record of it: {row.message}")
        for row in process.rows(tables.OVER_QUOTA).values():
            found[row.name, process.cluster].append(f"it is not imported: the limit of {row.limit} services is reached")
    return {key: list(dict.fromkeys(sentences)) for key, sentences in found.items()}


def _unanswered(processes: Iterable[Process]) -> dict[ServiceKey, list[str]]:
    """Services whose calls are refused, by service and the callers' cluster; none while rows still come."""
    return {
        (row.import_of or row.key.service, process.cluster): ["calls made here are refused: no backend can be used"]
        for process in processes
        if process.knows(tables.PLANS)
        for row in process.rows(tables.PLANS).values()
        if row.frontends and not row.awaited and not row.consumers_only and not any(g.targets for g in row.groups)
    }


def _policies(processes: Iterable[Process]) -> dict[str, set[str]]:
    """Policies and routes by service, as ``c1 TrafficPolicy demo/echo``."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for process in processes:
        for row in process.rows(tables.POLICIES).values():
            found[row.target].add(f"{process.cluster} {row.policy_kind} {row.name}")
        for route in process.rows(tables.ROUTES).values():
            for parent in route.parents:
                found[parent.name].add(f"{process.cluster} {route.kind} {route.name}")
    return dict(found)
