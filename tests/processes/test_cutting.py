"""What looks at connections cost a node, on virtual time. What they cut is in tests/datapath/test_proven_callers.py."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from isthmus.model import tables
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import Guard
from isthmus.processes.cutting import Cutting
from isthmus.statedb import Database, Snapshot

pytestmark = pytest.mark.looptime

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


async def test_a_policy_that_changes_all_the_time_costs_a_tenth_of_the_time() -> None:
    """Whoever may write one policy had the agent look at the sockets of all pods without a pause."""
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
