"""What load balancing costs, from the API server's objects to map entries, and where the time goes.

    make bench-lb                                   # or: .venv/bin/python benchmarks/bench_lb.py --services 50000
    make bench-lb SHAPE=imports REFERENCE="PATH ARGUMENTS"

Many small services (``--shape services``: a Service and an EndpointSlice with one endpoint each; ``imports``: a
ServiceImport, its derived Service and a record of one of five peers with one endpoint) come in until all are in the
maps, and go until nothing is left. Then one backend of a big one changes. On a dict in the place of the maps, and with
root on maps of the kernel. Times are of the processor, so that neighbours on the machine count little, medians of some
rounds; ``× hops`` is the ratio to the bare hops of the same round, which compares machines and quarters of an hour.
Reported, not asserted.

``--reference "PATH ARGUMENTS"`` runs another benchmark's program after ours, so that both are of the same quarter of an
hour: what it prints is shown as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shlex
import subprocess
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from lb_objects import PEERS, Changed, address, gone, imported, large, other, record_of, small, withdrawn

from isthmus import loadbalancer
from isthmus.clusterset.peers.sinks import RecordSink
from isthmus.clusterset.records import quotas
from isthmus.clusterset.records.admission import Admission
from isthmus.clusterset.records.forms import ROWS
from isthmus.config import ClustersetSection, DatapathSection, DnsSection
from isthmus.datapath import Datapath, PlanTarget, cgroup_root, remove, requirements
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import DictMaps, Maps
from isthmus.datapath.services import codecs
from isthmus.datapath.services.restore import restore
from isthmus.kube.objects import core, discovery, mcs
from isthmus.model import services as rows
from isthmus.model import tables
from isthmus.model.balancing import Group, Target
from isthmus.model.names import ClusterName
from isthmus.processes.programming import PLANS_PER_ROUND
from isthmus.processes.start import COLLECT_AFTER
from isthmus.sources import multicluster, services, slices
from isthmus.sources.sink import TableSink
from isthmus.statedb import Database, Derivations, Reconciler

SERVICES: Final = 50_000
ROUNDS: Final = 5
BATCH: Final = 1_000
FEED: Final = 100
"""Events that a source hands over at once while pauses of the loop are measured."""
BIG: Final = 100_000
"""Backends of all big services together."""
CHANGES: Final = 100
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

    def __init__(self, maps: Maps, *, target: Any = None) -> None:
        """``target``: of plans, in the place of one that writes the maps."""
        self.maps = CountingMaps(maps)
        derived = loadbalancer.derived(CLUSTER, "n1", services="all")
        involved = {table.name: table for each in derived for table in (*each.tables, *each.reads)}
        self.db = Database(*involved.values(), tables.FAULTS)
        self.services: TableSink[core.Service, Any] = TableSink(
            self.db, tables.SERVICES, "kubernetes", services.service
        )
        self.slices: TableSink[discovery.EndpointSlice, Any] = TableSink(
            self.db, tables.ENDPOINT_SETS, "kubernetes", slices.endpoint_set(CLUSTER)
        )
        self.imports: TableSink[mcs.ServiceImport, Any] = TableSink(
            self.db, tables.IMPORTS, "kubernetes", multicluster.service_import
        )
        self.records = {peer: _records(self.db, peer, number) for number, peer in enumerate(PEERS, 2)}
        self.derivations = Derivations(self.db, *derived, faults=tables.FAULTS)
        self.target: Any = target or PlanTarget(self.maps, restore(maps, backends=ENTRIES), grace=0.0)
        self.reconciler = Reconciler(
            self.db, tables.PLANS, self.target, together=attrgetter("key.service"), max_round=PLANS_PER_ROUND
        )
        self.spent = dict.fromkeys(STAGES, 0.0)

    async def begun(self) -> Node:
        """With everything complete, and nothing in it but this node."""
        for sink in (self.services, self.slices, self.imports):
            await sink.replace({}, partial=False)
        with self.db.write() as txn:  # as every agent has it, so that all is kept that a node's change asks for
            txn.put(tables.NODES, rows.Node("n1", ("192.168.0.1",), zone="z1"))
        self.derivations.step()
        return self

    def feed(self, changes: Sequence[Changed]) -> None:
        """A batch of all kinds' events into rows: as reflectors do, none to a sink whose store has nothing new."""
        self.take(self.parted(changes))

    def parted(self, changes: Sequence[Changed]) -> list[tuple[Callable[[Any], None], Sequence[Any]]]:
        """The events of each store, which come from there as they are: parting them is no cost of ours."""
        of: list[tuple[Callable[[Any], None], Sequence[Any]]] = [
            (self.services.apply, [event for each in changes for event in each.services]),
            (self.slices.apply, [event for each in changes for event in each.slices]),
            (self.imports.apply, [event for each in changes for event in each.imports]),
        ]
        for peer, sink in self.records.items():
            of.append((sink.apply, [event for each in changes for event in each.records.get(peer, ())]))
        return [(apply, events) for apply, events in of if events]

    @staticmethod
    def take(parted: Sequence[tuple[Callable[[Any], None], Sequence[Any]]]) -> None:
        """The events of each store into rows."""
        for apply, events in parted:
            apply(events)

    def listed(self, changes: Sequence[Changed]) -> list[Coroutine[Any, Any, None]]:
        """The first lists of the API server's stores, and the records of peers as a watch brings them."""
        for peer, sink in self.records.items():
            sink.apply([event for each in changes for event in each.records.get(peer, ())])
        stores: list[tuple[TableSink[Any, Any], dict[str, Any]]] = [
            (self.services, {event.key: event.item for each in changes for event in each.services}),
            (self.slices, {event.key: event.item for each in changes for event in each.slices}),
            (self.imports, {event.key: event.item for each in changes for event in each.imports}),
        ]
        return [sink.replace(items, partial=False) for sink, items in stores]

    def waits(self) -> bool:
        """Whether something has come in that is not in the maps yet."""
        return bool(self.reconciler.stats().waiting or any(self.derivations.stats().dirty.values()))

    async def follow(self, changes: Sequence[Changed]) -> None:
        """A batch of all kinds' events, until it is in the maps."""
        parted = self.parted(changes)
        with self._timed(STAGES[0]):
            self.take(parted)
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


def _records(db: Database, peer: ClusterName, number: int) -> RecordSink:
    return RecordSink(
        db,
        ROWS["services"],
        cluster_id=number,
        admission=Admission(cluster=peer),
        quota=quotas.of_kind("services", ClustersetSection(max_endpoints=1_000_000)),
        listed=lambda txn: None,
        received=lambda refused: None,
    )


class Measured(NamedTuple):
    """What one service cost: µs by stage, µs of the bare hops beside it, map entries written or taken away."""

    stages: tuple[float, ...]
    hops: float
    writes: float

    @property
    def total(self) -> float:
        """µs of all stages."""
        return sum(self.stages)


def line(label: str, found: Sequence[Measured]) -> str:
    """The medians of some rounds, for the table."""
    total = median(each.total for each in found)
    stages = " ".join(f"{median(column):>7.1f}" for column in zip(*(each.stages for each in found), strict=True))
    ratio, writes = median(each.total / each.hops for each in found), median(each.writes for each in found)
    return f"{label:<36} {1e6 / total:>9,.0f}/s {total:>8.1f} {stages} {ratio:>7.1f} {writes:>7.1f}"


async def through(node: Node, changes: Sequence[Changed], *, hops: float, size: int = BATCH) -> Measured:
    """All of them, batch by batch."""
    node.spent = dict.fromkeys(STAGES, 0.0)
    node.maps.writes = 0
    for start in range(0, len(changes), size):
        await node.follow(changes[start : start + size])
    stages = tuple(node.spent[stage] / len(changes) * 1e6 for stage in STAGES)
    return Measured(stages, hops, node.maps.writes / len(changes))


class Shape(NamedTuple):
    """What a small service is: how it comes, and how it goes."""

    come: Callable[[int], Changed]
    go: Callable[[int], Changed]


SHAPES: Final = {"services": Shape(small, gone), "imports": Shape(imported, withdrawn)}


async def many(maps: Maps, label: str, count: int, shape: Shape, rounds: int) -> None:
    """Many small services in, then out; round after round."""
    brought: list[Measured] = []
    taken: list[Measured] = []
    for _ in range(rounds):
        hops, node = bare_hops(count), await Node(maps).begun()
        for found, changes in ((brought, shape.come), (taken, shape.go)):
            events = [changes(n) for n in range(count)]
            gc.collect()
            found.append(await through(node, events, hops=hops))
        node.target.sweep_due()
        assert not any(node.target.state.sizes().values()), node.target.state.sizes()
    print(line(f"{count:,} {label}, in", brought))
    print(line(f"{count:,} {label}, out", taken), flush=True)


async def big(maps: Maps, label: str, backends: int) -> None:
    """A few big services; one backend of one of them changes, again and again. The median of these changes."""
    node, hops, count = await Node(maps).begun(), bare_hops(MEASURED), BIG // backends
    await through(node, [large(n, backends) for n in range(count)], hops=hops, size=1)
    gc.collect()
    changes = [other(turn, services=count, backends=backends) for turn in range(CHANGES)]
    costs = sorted([await through(node, [each], hops=hops) for each in changes], key=lambda cost: cost.total)
    print(line(f"1 of {backends:,} backends, {label}", [costs[len(costs) // 2]]), flush=True)


async def big_record(maps: Maps, label: str, backends: int) -> None:
    """One endpoint of a peer's record of many gives way to another, again and again. The median of these changes."""
    node, hops = await Node(maps).begun(), bare_hops(MEASURED)
    await through(node, [imported(0), record_of(0, range(backends))], hops=hops, size=1)
    present, changes = list(range(backends)), list[Changed]()
    for turn in range(CHANGES):
        present[turn * 7 % backends] = backends + turn
        changes.append(record_of(0, present))
    costs = sorted([await through(node, [each], hops=hops) for each in changes], key=lambda cost: cost.total)
    print(line(f"1 of a record of {backends:,}, {label}", [costs[len(costs) // 2]]), flush=True)


def bare_hops(count: int) -> float:
    """The least that could be done: two rows in dicts, packing, a dict. So much the machine gives now; µs each."""
    groups = bytes(codecs.GROUP.size * codecs.MAX_GROUPS)
    rows: dict[str, Any] = {}
    plans: dict[str, Any] = {}
    entries: dict[bytes, bytes] = {}
    start = time.process_time()
    for n in range(count):
        name = f"ns-{n % 100}/service-{n}"
        target = Target(address(128, n), 8080, "TCP", CLUSTER)
        rows[name] = target
        plans[name] = Group((target,))
        entries[shapes.ID.pack(n)] = codecs.PLAN.pack(n, n, n, 0, 0, 0, 0, 0, 1, groups)
        entries[codecs.SLOT_KEY.pack(n, 0, 0)] = codecs.SLOT.pack(n, n, n)
        entries[shapes.ID.pack(count + n)] = codecs.backend(target, generation=n, cluster=1)
    return (time.process_time() - start) / count * 1e6


async def pauses(maps: Maps, label: str, count: int, shape: Shape) -> None:
    """The longest turns of an event loop on which all of them come in while derivations and reconciler run.

    A turn is what each source brings at once, one pass and one round: what the admin socket and leases have to wait
    for. They come as first lists, and then once more, as a watch brings them, on an agent that has nothing yet.
    """
    for how in ("first lists", "a watch"):
        node = await Node(maps).begun()
        events = [shape.come(n) for n in range(count)]
        background = [asyncio.create_task(node.derivations.run()), asyncio.create_task(node.reconciler.run())]
        background += [asyncio.create_task(each) for each in (node.listed(events) if how == "first lists" else ())]
        await asyncio.sleep(0)
        gc.collect()
        turns: list[float] = []
        start, before = count if how == "first lists" else 0, time.process_time()
        while start < count or node.db.snapshot().count(tables.PLANS) < count or node.waits():
            if start < count:
                node.feed(events[start : start + FEED])
                start += FEED
            await asyncio.sleep(0)
            now = time.process_time()
            turns.append(now - before)
            before = now
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        longest, most = max(turns) * 1e3, sorted(turns)[len(turns) * 99 // 100] * 1e3
        print(f"{f'longest turn, {how}, {label}':<36} {longest:>9.1f} ms; 99 of 100 below {most:.1f} ms", flush=True)
        with node.db.write() as txn:
            for row in txn.all(tables.SERVICES):
                txn.delete(tables.SERVICES, tables.SERVICES.key(row))
            for imported in txn.all(tables.IMPORTS):
                txn.delete(tables.IMPORTS, imported.name)
        while node.derivations.step():
            pass
        await node.reconciler.step()
        node.target.sweep_due()


async def memory(count: int, shape: Shape) -> None:
    """Bytes that one service keeps alive, in tables and in the mirror of the maps; the maps themselves aside."""
    brought = [shape.come(n) for n in range(count)]
    node = await Node(Nowhere()).begun()
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
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--services", type=int, default=SERVICES, help="how many small ones")
    options.add_argument("--shape", choices=SHAPES, default="services", help="what the small ones are")
    options.add_argument("--rounds", type=int, default=ROUNDS, help="of which the medians are taken")
    options.add_argument("--reference", help="another benchmark's command line, to be run after ours")
    given = options.parse_args()
    gc.set_threshold(*COLLECT_AFTER)  # as our processes do
    missing = requirements()
    places = {"double": dict_maps} if missing else {"double": dict_maps, "kernel": kernel_maps}
    head = " ".join(f"{name:>7}" for name in ("rows", "plans", "maps", "× hops", "writes"))
    print(f"{'':<36} {'':>11} {'µs each':>8} {head}")
    hops = median(bare_hops(given.services) for _ in range(given.rounds))
    print(f"{'bare hops, for comparison':<36} {1e6 / hops:>9,.0f}/s {hops:>8.1f}", flush=True)
    shape = SHAPES[given.shape]
    for name, place in places.items():
        with place() as maps:
            await many(maps, f"{given.shape}, {name}", given.services, shape, given.rounds)
    for name, place in places.items():
        for backends in (1_000, 10_000, 50_000) if given.shape == "services" else (1_000,):
            with place() as maps:
                await (big if given.shape == "services" else big_record)(maps, name, backends)
    for why in missing:
        print(f"no maps of the kernel: {why}")
    for name, place in places.items():
        if place is dict_maps:  # its dicts move when they are full, five at once: 7 ms that no map of the kernel takes
            await pauses(Nowhere(), "no maps", given.services, shape)
            continue
        with place() as maps:
            await pauses(maps, name, given.services, shape)
    await memory(min(given.services, MEASURED), shape)
    if given.reference:
        print(f"\n{given.reference}:", flush=True)
        subprocess.run(shlex.split(given.reference), check=True)  # noqa: ASYNC221 nothing else runs


if __name__ == "__main__":
    asyncio.run(main())
