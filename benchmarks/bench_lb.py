"""What load balancing costs, from the API server's objects to map entries, and where the time goes.

    make bench-lb                                   # or: .venv/bin/python benchmarks/bench_lb.py [services]

Two stories. Many small services: each a Service and an EndpointSlice with one endpoint, in until all are in the maps,
then out until nothing is left. A few big ones: a hundred services of a thousand backends, of one of which one backend
changes. Both on a dict in the place of the maps, and, with root, on maps of the kernel. Times are of the processor, so
that neighbours on the machine count little. Reported, not asserted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus import loadbalancer
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, PlanTarget, cgroup_root, remove, requirements
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import DictMaps, Maps
from isthmus.datapath.services import codecs
from isthmus.datapath.services.installed import State
from isthmus.kube.objects import core, discovery
from isthmus.kube.objects.meta import Meta
from isthmus.model import services as rows
from isthmus.model import tables
from isthmus.model.balancing import Group, Target
from isthmus.model.names import ClusterName
from isthmus.reflector import Event
from isthmus.sources import services, slices
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Derivations, Reconciler

SERVICES: Final = 50_000
BATCH: Final = 1_000
BIG: Final = 100
BACKENDS: Final = 1_000
SLICE: Final = 100
"""Endpoints in an EndpointSlice, at most: Kubernetes' own limit."""
CHANGES: Final = 200
ENTRIES: Final = 131_072
MEASURED: Final = 10_000
"""Services whose memory is measured: allocations are traced, which is slow."""

CLUSTER: Final = ClusterName("c1")
STAGES: Final = ("objects → rows", "rows → plans", "plans → maps")


class CountingMaps:
    """Maps that count what is written and taken away."""

    def __init__(self, maps: Maps) -> None:
        self._maps = maps
        self.writes = 0

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries."""
        self.writes += len(items)
        return self._maps.put(name, items)

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries."""
        self.writes += len(keys)
        return self._maps.drop(name, keys)

    def items(self, name: str) -> Any:
        """Every entry."""
        return self._maps.items(name)


class Nowhere(DictMaps):
    """Maps that keep nothing: what is in maps is the kernel's memory, not ours."""

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Forget entries."""
        return {}


class Node:
    """The parts of an agent between the API server's events and the maps, driven by hand: no loop, no waiting."""

    def __init__(self, maps: Maps) -> None:
        self.maps = CountingMaps(maps)
        derived = loadbalancer.derived(CLUSTER, "n1", services="all")
        involved = {table.name: table for each in derived for table in (*each.tables, *each.reads)}
        self.db = Database(*involved.values())
        self.services: TableSink[core.Service, Any] = TableSink(
            self.db, tables.SERVICES, "kubernetes", services.service
        )
        self.slices: TableSink[discovery.EndpointSlice, Any] = TableSink(
            self.db, tables.ENDPOINT_SETS, "kubernetes", slices.endpoint_set(CLUSTER)
        )
        self.derivations = Derivations(self.db, *derived)
        self.target = PlanTarget(self.maps, State(), grace=0.0)
        self.reconciler = Reconciler(self.db, tables.PLANS, self.target)
        self.spent = dict.fromkeys(STAGES, 0.0)
        self.services.replace({}, partial=False)
        self.slices.replace({}, partial=False)
        with self.db.write() as txn:  # as every agent has it, so that all is kept that a node's change asks for
            txn.put(tables.NODES, rows.Node("n1", ("192.168.0.1",), zone="z1"))
        self.derivations.step()

    async def follow(self, changes: Sequence[Changed]) -> None:
        """A batch of both kinds' events, until it is in the maps."""
        with self._timed(STAGES[0]):
            self.services.apply([event for each in changes for event in each.services])
            self.slices.apply([event for each in changes for event in each.slices])
        with self._timed(STAGES[1]):
            while self.derivations.step():
                pass
        with self._timed(STAGES[2]):
            await self.reconciler.step()
            self.target.sweep_due()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.spent[stage] += time.process_time() - start


def service(n: int) -> core.Service:
    """The n-th Service, as the client decodes it."""
    name, namespace = f"service-{n}", f"ns-{n % 100}"
    return core.Service(
        metadata=Meta(name=name, namespace=namespace, uid=f"uid-{n}", creation_timestamp="2025-11-21T12:00:00Z"),
        spec=core.ServiceSpec(
            type="ClusterIP",
            cluster_ip=_address(96, n),
            cluster_ips=[_address(96, n)],
            ip_families=["IPv4"],
            selector={"app": name},
            ports=[core.ServicePort(name="http", port=80, protocol="TCP")],
            session_affinity="None",
            internal_traffic_policy="Cluster",
        ),
    )


def slice_of(n: int, part: int, endpoints: Iterable[int]) -> discovery.EndpointSlice:
    """A slice of the n-th Service with these endpoints."""
    name, namespace = f"service-{n}", f"ns-{n % 100}"
    ready = discovery.EndpointConditions(ready=True, serving=True, terminating=False)
    return discovery.EndpointSlice(
        metadata=Meta(name=f"{name}-{part}", namespace=namespace, labels={slices.OF_SERVICE: name}),
        address_type="IPv4",
        ports=[discovery.EndpointPort(name="http", port=8080, protocol="TCP")],
        endpoints=[
            discovery.Endpoint(
                addresses=[_address(128, each)],
                conditions=ready,
                node_name=f"n{each % 50}",
                target_ref=discovery.TargetRef(kind="Pod", name=f"pod-{each}", namespace=namespace),
            )
            for each in endpoints
        ],
    )


def _address(first: int, n: int) -> str:
    return f"10.{first + (n >> 16)}.{n >> 8 & 255}.{n & 255}"


class Changed(NamedTuple):
    """What the API server says of one Service in one go."""

    services: Sequence[Event[core.Service]]
    slices: Sequence[Event[discovery.EndpointSlice]]


def small(n: int) -> Changed:
    """The n-th Service with one endpoint."""
    key = f"ns-{n % 100}/service-{n}"
    return Changed([Event(key, service(n))], [Event(f"{key}-0", slice_of(n, 0, [n]))])


def gone(n: int) -> Changed:
    """The n-th Service away."""
    key = f"ns-{n % 100}/service-{n}"
    return Changed([Event(key, None)], [Event(f"{key}-0", None)])


def large(n: int) -> Changed:
    """The n-th Service with a thousand endpoints."""
    key, first = f"ns-{n % 100}/service-{n}", n * BACKENDS
    parts = range(BACKENDS // SLICE)
    found = {part: slice_of(n, part, range(first + part * SLICE, first + (part + 1) * SLICE)) for part in parts}
    return Changed([Event(key, service(n))], [Event(f"{key}-{part}", each) for part, each in found.items()])


def other(turn: int) -> Changed:
    """One endpoint of the thousand of some Service has given way to another."""
    n, part = turn % BIG, turn % (BACKENDS // SLICE)
    first = n * BACKENDS + part * SLICE
    endpoints = [*range(first + 1, first + SLICE), BIG * BACKENDS + turn]
    return Changed([], [Event(f"ns-{n % 100}/service-{n}-{part}", slice_of(n, part, endpoints))])


class Measured(NamedTuple):
    """How long it took, by stage, and how many map entries were written or taken away for each service."""

    services: int
    spent: Mapping[str, float]
    writes: int

    def line(self, label: str) -> str:
        """For the table."""
        total = sum(self.spent.values())
        each = " ".join(f"{self.spent[stage] / self.services * 1e6:>7.1f}" for stage in STAGES)
        rate, micro = self.services / total, total / self.services * 1e6
        return f"{label:<28} {rate:>9,.0f}/s {micro:>7.1f} {each} {self.writes / self.services:>7.1f}"


async def through(node: Node, changes: Sequence[Changed], *, size: int = BATCH) -> Measured:
    """All of them, batch by batch."""
    node.spent = dict.fromkeys(STAGES, 0.0)
    node.maps.writes = 0
    for start in range(0, len(changes), size):
        await node.follow(changes[start : start + size])
    return Measured(len(changes), node.spent, node.maps.writes)


async def many(maps: Maps, label: str, count: int) -> None:
    """Many small services in, then out."""
    node = Node(maps)
    brought, taken = [small(n) for n in range(count)], [gone(n) for n in range(count)]
    gc.collect()
    print((await through(node, brought)).line(f"{label}, in"))
    gc.collect()
    print((await through(node, taken)).line(f"{label}, out"))
    node.target.sweep_due()
    assert not any(node.target.state.sizes().values()), node.target.state.sizes()


async def big(maps: Maps, label: str) -> None:
    """A few big services; one backend of one of them changes, again and again. The median of these changes."""
    node = Node(maps)
    await through(node, [large(n) for n in range(BIG)], size=1)
    gc.collect()
    costs = [await through(node, [other(turn)]) for turn in range(CHANGES)]
    costs.sort(key=lambda cost: sum(cost.spent.values()))
    print(costs[len(costs) // 2].line(label))


def spike(count: int) -> None:
    """The least that could be done: two rows in dicts, packing, a dict. So much the machine gives now."""
    groups = bytes(codecs.GROUP.size * codecs.MAX_GROUPS)
    rows: dict[str, Any] = {}
    plans: dict[str, Any] = {}
    entries: dict[bytes, bytes] = {}
    start = time.process_time()
    for n in range(count):
        name = f"ns-{n % 100}/service-{n}"
        target = Target(_address(128, n), 8080, "TCP", CLUSTER)
        rows[name] = target
        plans[name] = Group((target,))
        entries[shapes.ID.pack(n)] = codecs.PLAN.pack(n, n, n, 0, 0, 0, 0, 0, 1, groups)
        entries[codecs.SLOT_KEY.pack(n, 0, 0)] = codecs.SLOT.pack(n, n, n)
        entries[shapes.ID.pack(count + n)] = codecs.backend(target, generation=n, cluster=1)
    took = time.process_time() - start
    print(f"{'bare hops, for comparison':<28} {count / took:>9,.0f}/s {took / count * 1e6:>7.1f}")


async def memory(count: int) -> None:
    """Bytes that one service keeps alive, in tables and in the mirror of the maps; the maps themselves aside."""
    brought = [small(n) for n in range(count)]
    node = Node(Nowhere())
    gc.collect()
    tracemalloc.start()
    for start in range(0, count, BATCH):
        await node.follow(brought[start : start + BATCH])
    gc.collect()
    taken = tracemalloc.take_snapshot()
    tracemalloc.stop()
    by_file: dict[str, int] = {}
    for each in taken.statistics("filename"):
        part_of = each.traceback[0].filename.partition("isthmus/")[2] or "elsewhere"
        by_file[part_of] = by_file.get(part_of, 0) + each.size
    total = sum(by_file.values())
    print(f"\nbytes per service, live: {total / count:,.0f}")
    for name, size in sorted(by_file.items(), key=lambda item: -item[1])[:12]:
        print(f"  {name:<40} {size / count:>8,.0f}")


@contextmanager
def dict_maps() -> Iterator[Maps]:
    """A dict with the same face."""
    yield DictMaps()


@contextmanager
def kernel_maps() -> Iterator[Maps]:
    """Maps of the kernel, over a bpffs and a cgroup of their own, which go afterwards."""
    root = cgroup_root()
    assert root is not None
    cgroup = root / f"isthmus-bench-{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        bpffs = Path(directory) / "bpf"
        bpffs.mkdir()
        cgroup.mkdir()
        subprocess.run(["mount", "-t", "bpf", "bpf", str(bpffs)], check=True)
        try:
            section = DatapathSection(cgroup=str(cgroup), pin=str(bpffs / "pin"), max_entries=ENTRIES)
            datapath = Datapath.open(section, DnsSection())
            yield datapath.maps
            datapath.close()
            remove(section.pin)
        finally:
            subprocess.run(["umount", str(bpffs)], check=True)
            cgroup.rmdir()


async def main() -> None:
    """The table."""
    gc.set_threshold(50_000, 20, 20)  # as our processes do
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SERVICES
    missing = requirements()
    places = {"double": dict_maps} if missing else {"double": dict_maps, "kernel": kernel_maps}
    head = " ".join(f"{stage:>7}" for stage in ("rows", "plans", "maps"))
    print(f"{'':<28} {'':>11} {'µs each':>7} {head} {'writes':>7}")
    spike(count)
    for name, place in places.items():
        with place() as maps:
            await many(maps, f"{count:,} × 1, {name}", count)
    for name, place in places.items():
        with place() as maps:
            await big(maps, f"1 of {BACKENDS:,} backends, {name}")
    for why in missing:
        print(f"no maps of the kernel: {why}")
    await memory(min(count, MEASURED))


if __name__ == "__main__":
    asyncio.run(main())
