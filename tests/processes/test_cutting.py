"""The times of looks at a node's connections, and their cost. test_proven_callers.py tests what they cut."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Any, cast

import pytest

from isthmus.model import tables
from isthmus.model.clusters import OwnRanges
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.identities import CallerAddress, Identity
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Guard
from isthmus.processes.cutting import Cutting
from isthmus.statedb import Database, Snapshot

C2 = ClusterName("c2")
NAME = ServiceName("demo/echo")
TABLES = (
    tables.EXPORT_POLICIES,
    tables.GUARDS,
    tables.CALLER_ADDRESSES,
    tables.IDENTITIES,
    tables.OWN_RANGES,
)


class Slow(Cutting):
    """Looks of a second each, as at a node with 80,000 sockets."""

    looks = 0

    async def look(self, snapshot: Snapshot) -> None:
        self.looks += 1
        await asyncio.sleep(1.0)


@pytest.mark.looptime
async def test_a_policy_that_changes_all_the_time_costs_a_tenth_of_the_time() -> None:
    """A tenant with one policy made the agent look at the sockets of all pods without a pause."""
    db = Database(*TABLES)
    cutting = Slow(db, cast("Any", None), ClusterName("c1"))
    with db.write() as txn:
        txn.put(tables.GUARDS, Guard(policy=NAME, address="10.1.0.1", port=80, protocol="TCP", cut=True))
    task = asyncio.create_task(cutting.run())
    for n in range(1_000):
        with db.write() as txn:
            txn.put(tables.EXPORT_POLICIES, ExportPolicy(name=NAME, cut=True, generation=n))
        await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert 5 < cutting.looks <= 11


class Connections:
    """A datapath whose pods have these connections, and which lists them in a thread, as the real one."""

    def __init__(self, *there: tuple[str, int, str]) -> None:
        self.there = set(there)

    def connections(self, at: Collection[tuple[str, int]]) -> set[tuple[str, int, str]]:
        return {each for each in self.there if each[:2] in at}

    def cut(self, ended: Collection[tuple[str, int, str]]) -> int:
        self.there -= set(ended)
        return len(ended)


class Watched:
    """A snapshot, and the threads that have read it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        self.threads.add(threading.get_ident())
        return getattr(self._snapshot, name)


async def test_rows_are_read_by_the_thread_that_writes_them() -> None:
    """Another one met dicts that changed, and rows of a transaction that was open: it judged by neither state."""
    db = Database(*TABLES)
    with db.write() as txn:
        txn.put(tables.EXPORT_POLICIES, ExportPolicy(name=NAME, cut=True))
        txn.put(tables.GUARDS, Guard(policy=NAME, address="10.1.0.1", port=80, protocol="TCP", cut=True))
        txn.put(tables.OWN_RANGES, OwnRanges(ranges=("10.1.0.0/16",)))
        txn.put(tables.CALLER_ADDRESSES, CallerAddress(C2, "10.2.0.7", 131_372))
        txn.put(tables.IDENTITIES, Identity(cluster=C2, number=131_372, namespace="demo", service_account="front"))
    kept = {("10.1.0.1", 80, "10.2.0.8"), ("10.1.0.1", 81, "10.2.0.7")}
    datapath = Connections(("10.1.0.1", 80, "10.2.0.7"), *kept)
    cutting, watched = Cutting(db, cast("Any", datapath), ClusterName("c1")), Watched(db.snapshot())
    await cutting.look(cast("Snapshot", watched))
    assert (datapath.there, cutting.cut) == (kept, 1)
    assert watched.threads == {threading.get_ident()}
