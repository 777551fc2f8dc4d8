"""Faults of the processes that can be asked: those that concern a service, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus.cli.diagnosis.facts import Facts, Process
from isthmus.cli.diagnosis.hops import Hop
from isthmus.loadbalancer.explain import services_called
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.statedb import Fault

MAX_SHOWN: Final = 10
"""Faults that have a line each; of more there is the number."""
SELECTING: Final = (
    "trafficpolicies.", "globaltrafficpolicies.", "httproutes.", "grpcroutes.", "tcproutes.", "udproutes.",
    "ciliumlocalredirectpolicies.", "drains.", "exportpolicies.",
)  # fmt: skip
"""Kinds that name the services they are for: one that cannot be read may be for any of its namespace."""


def of_service(facts: Facts, service: ServiceName) -> Iterator[Hop]:
    """Faults of a service: its objects, records and units, and policies and routes that may be for it."""
    services = {service, *services_called(facts.agent.rows, service)}
    yield from _hops(facts, (each for each in _faults(facts) if _concerns(each[1], service, services)))


def every(facts: Facts) -> tuple[Hop, ...]:
    """Every fault of the processes that can be asked."""
    return tuple(_hops(facts, _faults(facts)))


def _faults(facts: Facts) -> Iterator[tuple[Process, Fault]]:
    for process in (facts.agent, facts.operator, *facts.name_servers, *facts.others):
        for row in sorted(process.rows.all(tables.FAULTS), key=tables.FAULTS.key):
            yield process, row


def _concerns(row: Fault, service: ServiceName, services: set[ServiceName]) -> bool:
    if services.intersection(row.name.split(" ")):
        return True
    if row.cause != "bug" and row.kind.startswith(SELECTING):
        return row.name.partition("/")[0] == service.partition("/")[0]
    return row.kind.startswith("endpointslices.") and any(row.name.startswith(f"{each}-") for each in services)


def _hops(facts: Facts, faults: Iterable[tuple[Process, Fault]]) -> Iterator[Hop]:
    """One hop for each unit or object of a cluster, even if several of its processes report it."""
    processes: dict[tuple[str, str, str, str], list[str]] = {}
    rows: dict[tuple[str, str, str, str], Fault] = {}
    for process, row in faults:
        key = (process.cluster, row.kind or row.part, row.name, row.error)
        rows.setdefault(key, row)
        if str(process) not in processes.setdefault(key, []):
            processes[key].append(str(process))
    for key in [*rows][:MAX_SHOWN]:
        row = rows[key]
        text = f"failed in {', '.join(processes[key])} and keeps its last good state: {row.error}"
        code = "bug" if row.cause == "bug" else "object-unusable"
        yield Hop("fault", " ".join(filter(None, key[1:3])), text, "fault", _cure(facts, key[0], row), code)
    if len(rows) > MAX_SHOWN:
        text = "in the table of faults"
        yield Hop("fault", f"{len(rows) - MAX_SHOWN} more", text, "fault", "isthmus get faults", "object-unusable")


def _cure(facts: Facts, cluster: str, row: Fault) -> str:
    if row.cause == "bug":
        return f"a bug{f' at {row.where}' if row.where else ''}: isthmus gather, and report it"
    namespace, _, name = row.name.rpartition("/")
    return f"{facts.kubectl(cluster, namespace)} get {row.kind} {name} -o yaml: mend that field"
