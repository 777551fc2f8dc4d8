"""What records of one peer cost in memory: in an agent that calls them, in an agent that calls none, in the operator.

    make bench-memory                               # SIZE=10 megabytes of records, SERVICES=300

A real etcd; followers, planning and merging in processes of their own, with a dict in the place of the kernel's maps.
Then the peer withdraws everything: what a process gives back to the system is the last number. Reported, not asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from ipaddress import ip_address
from typing import Any, Final

from bench_clusterset import OWN, Node, Shape, name, resident, world
from msgspec import structs

from isthmus import logs, mcs
from isthmus.clusterset.mirror import Mirror
from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.records import exports, keys
from isthmus.config import ClustersetSection
from isthmus.datapath import PlanTarget
from isthmus.datapath.core.maps import DictMaps
from isthmus.datapath.services.installed import State
from isthmus.etcd import Session
from isthmus.model import tables
from isthmus.model.mcs import RecordKind
from isthmus.model.names import ClusterName, derived
from isthmus.model.services import Export, Namespace, Port, Service
from isthmus.processes import memory
from isthmus.processes.start import tables_of
from isthmus.statedb import Database, Derivations, Reconciler, Snapshot

PEER: Final = ClusterName("c1")
KINDS: Final[tuple[RecordKind, ...]] = ("serviceexports", "services")
ENDPOINT: Final = 56
"""Bytes of an endpoint in a record, about."""
AT_ONCE: Final = 50
"""Records written in one transaction."""


class Operator:
    """What an operator makes of a peer: rows, merged imports, objects."""

    def __init__(self, shape: Shape, section: ClustersetSection) -> None:
        parts = mcs.derived(ClusterName(OWN.name))
        self.db = Database(*tables_of(parts, tables.CLUSTERS, tables.OBJECTS_STATUS))
        with self.db.write() as txn:
            txn.put(tables.NAMESPACES, Namespace("demo"))
            for number in range(shape.services):
                service, ip = derived(name(number)), str(ip_address((10 << 24) + (96 << 16) + number + 1))
                annotations = (("isthmus.io/managed-by", "isthmus-operator"),)
                row = Service(name=service, source="kubernetes", cluster_ips=(ip,), import_of=name(number))
                txn.put(tables.SERVICES, structs.replace(row, ports=(Port("http", 80),), annotations=annotations))
        self.follower = Follower(self.db, cluster=OWN, section=section, kinds=KINDS)
        self.work = [self.follower.run(), Derivations(self.db, *parts).run()]


class Agent:
    """An agent; ``calls``: it has imports of the peer's services."""

    def __init__(self, shape: Shape, section: ClustersetSection, *, calls: bool) -> None:
        node = Node(shape if calls else shape._replace(services=0), section.directory)
        self.db = node.db
        with self.db.write() as txn:
            for row in list(self.db.snapshot().all(tables.IMPORTS)):
                txn.put(tables.IMPORTS, structs.replace(row, clusters=(PEER,)))
        target = PlanTarget(DictMaps(), State(), grace=0.0)
        plans = Reconciler(self.db, tables.PLANS, target)
        self.work = [node.follower.run(), node.derivations.run(), plans.run(), target.sweep()]


async def role(kind: str, shape: Shape, directory: str, endpoint: str) -> None:
    """One measured process."""
    section = ClustersetSection(directory=directory)
    async with Session([endpoint]) as session:
        await session.status()
        empty = resident()
        made: Operator | Agent = (
            Operator(shape, section) if kind == "operator" else Agent(shape, section, calls=kind == "calling")
        )
        tasks = [asyncio.create_task(each) for each in (*made.work, memory.keep_small(every=0.5))]
        await made.db.until(lambda now: ready(now, shape.services))
        full = await settled()
        held = sum(len(row.endpoints) for row in made.db.snapshot().all(tables.ENDPOINT_SETS))
        print(f"  {kind:9} {full - empty:6.0f} MB above an empty process of {empty:.0f} MB, {held} endpoints", end="")
        for each in KINDS:
            await session.delete_prefix(keys.prefix(each, PEER))
        await made.db.until(lambda now: not now.count(tables.ENDPOINT_SETS))
        print(f"; {await settled() - empty:.0f} MB after all was withdrawn", flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def mirrored(directory: str, endpoint: str, peer_endpoint: str) -> None:
    """A mirror, which copies into an etcd of its own."""
    async with Session([endpoint]) as session, Session([peer_endpoint]) as peer:
        await session.status()
        empty = resident()
        mirror = Mirror(session, cluster=OWN, section=ClustersetSection(directory=directory))
        tasks = [asyncio.create_task(each) for each in (mirror.run(), memory.keep_small(every=0.5))]
        while await session.get(keys.canary("services", PEER, cached=True)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        copies = len((await session.list(keys.prefix("services", PEER, cached=True))).kvs)
        full = await settled()
        print(f"  mirror    {full - empty:6.0f} MB above an empty process of {empty:.0f} MB, {copies} records", end="")
        for each in KINDS:
            await peer.delete_prefix(keys.prefix(each, PEER))
        while (await session.list(keys.prefix("services", PEER, cached=True))).kvs:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        print(f"; {await settled() - empty:.0f} MB after all was withdrawn", flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def settled() -> float:
    """Megabytes of this process once it has done nothing for a while."""
    while True:
        before = time.process_time()
        await asyncio.sleep(3)
        if time.process_time() - before < 0.3:
            return resident()


def ready(now: Snapshot, services: int) -> bool:
    """True if the peer's records are in the tables, as far as they are taken."""
    row = now.get(tables.CLUSTERS, PEER)
    return row is not None and row.state == "ready" and now.count(tables.ENDPOINT_SETS) + row.dropped >= services


async def exported(session: Session, shape: Shape) -> None:
    """Write the exports of the peer's services, and their canary."""
    for number in range(shape.services):
        export = Export(cluster=PEER, name=name(number), created="2026-01-01T00:00:00Z", ports=(Port("http", 80),))
        await session.put(keys.record("serviceexports", PEER, export.name), exports.encode(export))
    await session.put(keys.canary("serviceexports", PEER), b"now")
    capabilities: dict[str, Any] = {"syncedCanaries": True, "maxConnectedClusters": 255, "serviceExportsEnabled": True}
    await session.put(keys.config(PEER), json.dumps({"id": 1, "capabilities": capabilities}).encode())


async def everything(megabytes: float, services: int) -> None:
    """Each role in a process of its own."""
    shape = Shape(1, services, int(megabytes * 1e6 / ENDPOINT))
    for kind in ("calling", "agent", "operator", "mirror"):
        async with world(shape) as (etcds, _):
            endpoint = etcds.servers[1].endpoint
            async with Session([endpoint]) as session:
                await exported(session, shape)
            process = await child_of(kind, *map(str, shape), str(etcds.directory), endpoint, etcds.servers[0].endpoint)
            printed, _ = await process.communicate()
            print(printed.decode(), end="", flush=True)


async def child_of(*arguments: str) -> asyncio.subprocess.Process:
    """This program again."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdin=pipe, stdout=pipe)


def main() -> int:
    parser = argparse.ArgumentParser(description="What records of one peer cost in memory.")
    parser.add_argument("--size", type=float, default=10.0, help="megabytes of records")
    parser.add_argument("--services", type=int, default=300)
    parser.add_argument("part", nargs="*", help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    logs.configure(level="error", form="text")
    match wanted.part:
        case ["mirror", _, _, _, directory, endpoint, own]:
            asyncio.run(mirrored(directory, own, endpoint))
        case [kind, peers, services, ends, directory, endpoint, _]:
            asyncio.run(role(kind, Shape(int(peers), int(services), int(ends)), directory, endpoint))
        case _:
            print(f"{os.cpu_count()} processors; load {os.getloadavg()[0]:.1f}")
            asyncio.run(everything(wanted.size, wanted.services))
    return 0


if __name__ == "__main__":
    sys.exit(main())
