"""Convergence lasts from the first change of an input until nothing is left to derive or to write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.services import Service
from isthmus.processes.convergence import Convergence
from isthmus.statedb import Database, Reconciler

pytestmark = pytest.mark.looptime


def service(name: str) -> Service:
    return Service(name=ServiceName(f"demo/{name}"), source="kubernetes")


class Slow:
    """Takes two seconds to write."""

    async def update(self, rows: Sequence[Service]) -> Mapping[object, str]:
        await asyncio.sleep(2.0)
        return {}

    delete = update

    async def prune(self, rows: object) -> str:
        return "pruned"


async def test_a_change_lasts_until_it_is_written_and_the_first_lists_are_no_change() -> None:
    db = Database(tables.SERVICES)
    reconciler = Reconciler(db, tables.SERVICES, Slow())
    convergence = Convergence(db, lambda: reconciler.settled)
    with db.write() as txn:
        txn.put(tables.SERVICES, service("first"))
    running = [asyncio.create_task(reconciler.run()), asyncio.create_task(convergence.run())]
    try:
        await asyncio.sleep(10)
        assert observed(convergence) == (0, 0.0)
        with db.write() as txn:
            txn.put(tables.SERVICES, service("second"))
        await asyncio.sleep(10)
        count, total = observed(convergence)
        assert count == 1
        assert total == pytest.approx(2.0, abs=0.1)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def observed(convergence: Convergence) -> tuple[float, float]:
    """Number of durations and their sum."""
    [*_, count, total] = convergence.histogram.family("x").samples
    return count.value, total.value
