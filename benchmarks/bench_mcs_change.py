"""What one change costs the operator's decisions, among 100, 1,000 and 5,000 Services that every cluster exports.

    make bench-mcs-change EXPORTS="100 1000 5000" CLUSTERS=10

The tables of one cluster, whose API server holds everything as it is wanted. A change is a row of a peer that comes, as
its record brings it, and the pass of the derived tables after it, up to the objects to be written: own exports, the
merge, the quota, the import, its derived Service, slices and conditions. Of each kind of change the shortest pass of
many is printed, in processor time, and the units that it computed. No I/O: ``make bench-mcs`` has that. Reported, not
asserted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
from rows.mcs_world import HTTP, World

from isthmus.mcs.merge import merge
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.objects import Object, Observed
from isthmus.model.services import Endpoint, EndpointSet, Export, ExportMark, Import, Labels, Port, Service
from isthmus.model.sources import CLUSTERSET, KUBERNETES

RUNS: Final = 200
"""Changes of each kind."""
TARGET_PORT: Final = Port("http", 8080)
CHANGED: Final = ServiceName("demo/svc-7")
PEER: Final = ClusterName("c2")


def export(cluster: ClusterName, name: ServiceName, *, turn: int = 0) -> Export:
    """A peer's export; ``turn``: a value of its labels, in which it disagrees with all others; 0: none."""
    created = f"2026-01-01T00:00:{int(cluster[1:]):02}Z"
    labels = (("turn", str(turn)),) if turn else ()
    return Export(cluster=cluster, name=name, created=created, ports=(HTTP,), families=("IPv4",), labels=labels)


def endpoints(cluster: ClusterName, name: ServiceName, number: int, *, turn: int = 0) -> EndpointSet:
    """Two endpoints that a peer publishes for an export; ``turn``: a part of the second one's address."""
    base = f"10.{int(cluster[1:])}.{number // 100}"
    both = (Endpoint(f"{base}.{number % 100}", (TARGET_PORT,)), Endpoint(f"{base}.{100 + turn % 100}", (TARGET_PORT,)))
    return EndpointSet(service=derived(name), cluster=cluster, source=CLUSTERSET, part="", endpoints=both)


class Filled(NamedTuple):
    """Tables that are settled, and the seconds of the processor that all imports took first."""

    world: World
    seconds: float


def filled(exports: int, clusters: tuple[ClusterName, ...]) -> Filled:
    """The first of the clusters, with so many exports in each, and an API server that holds what is wanted."""
    world = World(cluster=clusters[0], max_derived_services=exports)
    names = [ServiceName(f"demo/svc-{number}") for number in range(exports)]
    everybody = [Cluster(name=each, own=each == clusters[0], state="ready") for each in clusters]
    put(world, tables.CLUSTERS, everybody)
    put(world, tables.SERVICES, (service(name, ip=f"10.96.{n // 250}.{n % 250}") for n, name in enumerate(names)))
    put(world, tables.EXPORT_MARKS, (ExportMark(name=name, created="2026-01-02T00:00:00Z", uid="m") for name in names))
    put(world, tables.EXPORTS, (export(each, name) for each in clusters[1:] for name in names))
    put(
        world,
        tables.ENDPOINT_SETS,
        (endpoints(each, name, n) for each in clusters[1:] for n, name in enumerate(names)),
    )
    began = time.process_time()
    world.settle()
    seconds = time.process_time() - began
    put(world, tables.IMPORTS, [imported(row, clusters) for row in world.objects if row.kind == "ServiceImport"])
    world.settle()
    put(world, tables.SERVICES, [derived_service(row) for row in world.objects if row.kind == "Service"])
    world.settle()
    put(world, tables.OBSERVED, [observed(row) for row in world.objects])
    world.settle()
    assert len(world.objects) == exports * (2 + len(clusters)), "import, derived Service, conditions, peers' slices"
    assert {row.seen for row in world.objects} == {"="}, "the API server holds everything as it is wanted"
    return Filled(world, seconds)


def service(name: ServiceName, *, ip: str, **fields: Any) -> Service:
    """A Service of the API server."""
    return Service(name=name, source=KUBERNETES, ports=(HTTP,), cluster_ips=(ip,), families=("IPv4",), **fields)


def imported(row: Object, clusters: tuple[ClusterName, ...]) -> Import:
    """The ServiceImport that was written, as its row is read."""
    meta = msgspec.json.decode(row.body)["metadata"]
    return Import(name=row.name, uid="i", ports=(HTTP,), clusters=clusters, annotations=pairs(meta["annotations"]))


def derived_service(row: Object) -> Service:
    """The derived Service that was written, as its row is read."""
    meta = msgspec.json.decode(row.body)["metadata"]
    labels, annotations = pairs(meta["labels"]), pairs(meta["annotations"])
    return service(row.name, ip="10.97.0.1", uid="s", import_of=row.service, labels=labels, annotations=annotations)


def pairs(found: dict[str, str]) -> Labels:
    """Labels as rows have them."""
    return tuple(sorted(found.items()))


def observed(row: Object) -> Observed:
    """An object as it was written."""
    body = msgspec.json.decode(row.body) if row.body else {}
    status = {"status": msgspec.json.decode(row.status)} if row.status else {}
    written = msgspec.json.encode({**body, **status})
    return Observed(kind=row.kind, name=row.name, uid="u", version="1", body=written)


def put(world: World, table: Any, rows: Iterable[Any]) -> None:
    """Rows come in one transaction; no pass follows."""
    with world.db.write() as txn:
        for row in rows:
            txn.put(table, row)


def shortest(run: Callable[[], object], times: int = RUNS) -> float:
    """Milliseconds of the processor in the shortest run."""
    found = []
    for _ in range(times):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found) * 1000


class Change(NamedTuple):
    """A kind of change: of which table, and the row of a turn."""

    label: str
    table: Any
    row: Callable[[int], Any]


def measured(world: World, change: Change) -> str:
    """Its cost: milliseconds, and units."""
    turns = count(1)

    def once() -> None:
        put(world, change.table, [change.row(next(turns))])
        world.settle()

    once()
    before = world.derivations.units
    once()
    units = world.derivations.units - before
    return f"{shortest(once):.2f} ms ({units} units)"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What one change costs the operator's decisions.")
    parser.add_argument("--exports", type=int, nargs="+", default=[100, 1_000, 5_000])
    parser.add_argument("--clusters", type=int, default=10)
    wanted = parser.parse_args()
    clusters = tuple(ClusterName(f"c{number}") for number in range(1, wanted.clusters + 1))
    changes = (
        Change("export's label", tables.EXPORTS, lambda turn: export(PEER, CHANGED, turn=turn)),
        Change("endpoint", tables.ENDPOINT_SETS, lambda turn: endpoints(PEER, CHANGED, 7, turn=turn)),
    )
    print(f"{wanted.clusters} clusters; processor time; a pass after one change is the shortest of {RUNS}")
    print("| exports | objects | merge alone |", " | ".join(each.label for each in changes), "| first pass of all |")
    print("|---|---|---|", "|".join("---" for _ in changes), "|---|", sep="")
    for exports in wanted.exports:
        world, seconds = filled(exports, clusters)
        objects = len(world.objects)
        alone = shortest(partial(merge, [export(each, CHANGED) for each in clusters]))
        costs = " | ".join(measured(world, each) for each in changes)
        print(f"| {exports:,} | {objects:,} | {alone:.3f} ms | {costs} | {seconds:.1f} s |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
