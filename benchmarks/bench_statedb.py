"""What tables cost: rows per second of put, and the price of a change through a derived table and a reconciler.

    .venv/bin/python benchmarks/bench_statedb.py [rows]

Reported, not asserted: processor time of this machine, at this moment.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from isthmus.processes.start import COLLECT_AFTER
from isthmus.statedb import Database, Derivations, Derived, Reader, Reconciler, Table

BATCH: Final = 500
CHANGED: Final = 1_000


class Service(Struct, frozen=True, gc=False):
    """Like the row of a Service: a name, its addresses, whose it is."""

    name: str
    address: str
    owner: str
    generation: int = 0


class Plan(Struct, frozen=True, gc=False):
    """Like a plan: computed of a service."""

    service: str
    frontend: tuple[str, int]
    targets: tuple[str, ...]


PLAIN: Final = Table[str, Service]("plain", Service, key=lambda row: row.name)
SERVICES: Final = Table[str, Service](
    "services",
    Service,
    key=lambda row: row.name,
    indexes={"address": lambda row: (row.address,), "owner": lambda row: (row.owner,)},
)
ORDERED: Final = Table[str, Service](
    "ordered", Service, key=lambda row: row.name, indexes={"under": lambda row: (row.name,)}, ordered=("under",)
)
PLANS: Final = Table[str, Plan](
    "plans", Plan, key=lambda row: row.service, indexes={"service": lambda row: (row.service,)}
)


def service(n: int, *, generation: int = 0) -> Service:
    """The n-th."""
    return Service(f"ns-{n % 100}/service-{n}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", f"ns-{n % 100}", generation)


def compute(reader: Reader, name: str) -> Iterable[Plan]:
    """A plan of a service, as thin as one can be."""
    row = reader.get(SERVICES, name)
    if row is not None:
        yield Plan(row.name, (row.address, 80), (f"{row.address}:{row.generation}",))


def affected(reader: Reader, old: Service | None, new: Service | None) -> Iterable[str]:
    """A service affects its plan."""
    row = new or old
    return (row.name,) if row else ()


class Sink:
    """A target that costs nothing."""

    async def update(self, rows: Sequence[Any]) -> Mapping[Any, str]:
        """Take rows."""
        return {}

    async def delete(self, rows: Sequence[Any]) -> Mapping[Any, str]:
        """Drop rows."""
        return {}

    async def prune(self, rows: Iterable[Any]) -> str:
        """Drop the rest."""
        return "nothing to prune"


def put(db: Database, table: Table[str, Service], rows: Sequence[Service]) -> None:
    """Rows in transactions as a source writes them."""
    for start in range(0, len(rows), BATCH):
        with db.write() as txn:
            for row in rows[start : start + BATCH]:
                txn.put(table, row)


def delete(db: Database, table: Table[str, Service], rows: Sequence[Service]) -> None:
    """The same, away."""
    for start in range(0, len(rows), BATCH):
        with db.write() as txn:
            for row in rows[start : start + BATCH]:
                txn.delete(table, row.name)


def report(label: str, count: int, took: float) -> None:
    """What one of it cost."""
    print(f"{label:<42} {count / took:>12,.0f}/s {took / count * 1e6:>8.2f} µs")


def measured(label: str, count: int, work: Callable[[], object]) -> None:
    """Do it once, say what one of it cost."""
    gc.collect()
    start = time.process_time()
    work()
    report(label, count, time.process_time() - start)


def kept(table: Table[str, Service]) -> Database:
    """A database whose indexes have been looked into: they are kept from then on."""
    db = Database(table)
    for index in table.indexes:
        db.snapshot().by(table, index, "")
    return db


def writes(table: Table[str, Service], rows: Sequence[Service]) -> None:
    """Puts and deletes, nobody looking."""
    db = kept(table)
    again = [service(n, generation=1) for n in range(len(rows))]
    indexes = f"{len(table.indexes)} indexes"
    measured(f"put new, {indexes}", len(rows), lambda: put(db, table, rows))
    measured(f"put changed, {indexes}", len(rows), lambda: put(db, table, again))
    measured(f"put equal, {indexes}", len(rows), lambda: put(db, table, again))
    measured(f"delete, {indexes}", len(rows), lambda: delete(db, table, rows))


def held(rows: Sequence[Service]) -> None:
    """What a snapshot that is held costs the transactions, and reading from it after they changed every row."""
    db = kept(SERVICES)
    put(db, SERVICES, rows)
    again = [service(n, generation=1) for n in range(len(rows))]
    snapshot = db.snapshot()
    measured("put changed, 2 indexes, a snapshot held", len(rows), lambda: put(db, SERVICES, again))
    names, addresses = [row.name for row in rows], [row.address for row in rows]
    snapshot.by(SERVICES, "address", "")  # the first look indexes what it reads through
    measured("get, of the held snapshot", len(rows), lambda: [snapshot.get(SERVICES, name) for name in names])
    measured("by index, of it", len(rows), lambda: [snapshot.by(SERVICES, "address", each) for each in addresses])
    now = db.snapshot()
    measured("get, of the present", len(rows), lambda: [now.get(SERVICES, name) for name in names])
    measured("by index, of it", len(rows), lambda: [now.by(SERVICES, "address", each) for each in addresses])


def in_order(rows: Sequence[Service]) -> None:
    """An ordered index: made at the first look, then kept as rows change, and read below a prefix."""
    db = Database(ORDERED)
    put(db, ORDERED, rows)
    measured(
        "ordered index: made at the first look", len(rows), lambda: list(db.snapshot().prefix(ORDERED, "under", "?"))
    )
    measured(
        "ordered index: all in its order", len(rows), lambda: list(db.snapshot().lower_bound(ORDERED, "under", ""))
    )
    below = len(list(db.snapshot().prefix(ORDERED, "under", "ns-7/")))
    measured("ordered index: below a prefix", below, lambda: list(db.snapshot().prefix(ORDERED, "under", "ns-7/")))
    one_by_one = rows[:CHANGED]

    def each() -> None:
        for row in one_by_one:
            delete(db, ORDERED, [row])
            put(db, ORDERED, [row])

    measured("ordered index: delete and put, one by one", 2 * CHANGED, each)
    measured("ordered index: delete", len(rows), lambda: delete(db, ORDERED, rows))
    measured("ordered index: put", len(rows), lambda: put(db, ORDERED, rows))


class Path:
    """From a put to the target: one derived table, one reconciler."""

    def __init__(self) -> None:
        self.db = Database(SERVICES, PLANS)
        self._derivations = Derivations(self.db, Derived(PLANS, compute=compute, reads={SERVICES: affected}))
        self._reconciler = Reconciler(self.db, PLANS, Sink())

    async def go(self) -> None:
        """What changed, all the way."""
        while self._derivations.step():
            pass
        await self._reconciler.step()


async def through(rows: Sequence[Service]) -> None:
    """All in, one changed at a time, all out."""
    path = Path()
    start = time.process_time()
    put(path.db, SERVICES, rows)
    await path.go()
    report("in: put, derive, reconcile", len(rows), time.process_time() - start)
    start = time.process_time()
    for n in range(CHANGED):
        put(path.db, SERVICES, [service(n, generation=1)])
        await path.go()
    report("one change at a time, through all", CHANGED, time.process_time() - start)
    start = time.process_time()
    delete(path.db, SERVICES, rows)
    await path.go()
    report("out: delete, derive, reconcile", len(rows), time.process_time() - start)


def memory(table: Table[str, Service], rows: Sequence[Service]) -> None:
    """Bytes that a row costs in its table, the row itself apart."""
    tracemalloc.start()
    db = kept(table)
    put(db, table, rows)
    each = tracemalloc.get_traced_memory()[0] / len(rows)
    tracemalloc.stop()
    print(f"{f'memory of a row, {len(table.indexes)} indexes':<42} {each:>12,.0f} bytes")


def main() -> None:
    """All of it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    rows = [service(n) for n in range(count)]
    gc.set_threshold(*COLLECT_AFTER)  # as the processes do
    print(f"{count:,} rows, transactions of {BATCH}")
    for table in (PLAIN, SERVICES):
        writes(table, rows)
    held(rows)
    in_order(rows)
    asyncio.run(through(rows))
    for table in (PLAIN, SERVICES):
        memory(table, rows)


if __name__ == "__main__":
    main()
