"""Initializers: which sources have yet to fill a table, and how derived tables pass that on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from isthmus.statedb import Database, Derivations, Derived, Initializer, Reader, StateError, Table

INPUT = Table[str, tuple[str, int]]("input", tuple, key=lambda row: row[0])
OTHER = Table[str, tuple[str, int]]("other", tuple, key=lambda row: row[0])
DOUBLE = Table[str, tuple[str, int]]("double", tuple, key=lambda row: row[0])
QUADRUPLE = Table[str, tuple[str, int]]("quadruple", tuple, key=lambda row: row[0])


@pytest.fixture
def db() -> Database:
    return Database(INPUT, OTHER, DOUBLE, QUADRUPLE)


def complete(db: Database, *initializers: Initializer) -> None:
    with db.write() as txn:
        for initializer in initializers:
            initializer.complete(txn)


def key(reader: Reader, old: Any, new: Any) -> Iterable[str]:
    return ((new or old)[0],)


def twice(table: Table[str, tuple[str, int]], of: Table[str, tuple[str, int]], **more: Any) -> Derived[tuple[str, int]]:
    def compute(reader: Reader, unit: str) -> list[tuple[str, int]]:
        row = reader.get(of, unit)
        return [(unit, 2 * row[1])] if row else []

    return Derived(table, compute=compute, reads={of: key, OTHER: lambda reader, old, new: ()}, **more)


def test_a_table_without_sources_is_complete(db: Database) -> None:
    assert db.snapshot().initialized(INPUT, OTHER)


def test_a_table_is_complete_when_all_its_sources_are(db: Database) -> None:
    first, second = db.initializer(INPUT, "first"), db.initializer(INPUT, "second")
    complete(db, first)
    assert db.snapshot().pending(INPUT) == {"second"}
    complete(db, first)
    complete(db, second)
    assert db.snapshot().initialized(INPUT)


def test_completion_is_seen_with_the_rows_of_its_transaction_or_not_at_all(db: Database) -> None:
    first = db.initializer(INPUT, "first")
    with suppress(KeyError), db.write() as txn:
        first.complete(txn)
        assert txn.initialized(INPUT)
        raise KeyError
    assert not db.snapshot().initialized(INPUT)


def test_a_snapshot_keeps_what_was_pending(db: Database) -> None:
    first = db.initializer(INPUT, "first")
    before = db.snapshot()
    complete(db, first)
    assert before.pending(INPUT) == {"first"}


@pytest.mark.parametrize("rows", [0, 1])
def test_a_source_that_registers_while_a_transaction_is_open_is_not_forgotten(db: Database, rows: int) -> None:
    first = db.initializer(INPUT, "first")
    with db.write() as txn:
        for n in range(rows):
            txn.put(INPUT, (str(n), n))
        first.complete(txn)
        db.initializer(INPUT, "second")
    assert db.snapshot().pending(INPUT) == {"second"}


def test_one_name_is_one_source(db: Database) -> None:
    first = db.initializer(INPUT, "first")
    with pytest.raises(StateError, match="'input' has an initializer 'first' already"):
        db.initializer(INPUT, "first")
    complete(db, first)
    db.initializer(INPUT, "first")
    assert db.snapshot().pending(INPUT) == {"first"}


async def test_until_wakes_for_a_completion_alone(db: Database) -> None:
    first = db.initializer(INPUT, "first")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(db.until(lambda now: now.initialized(INPUT)))
        await asyncio.sleep(0)
        complete(db, first)


def test_a_derived_table_is_incomplete_until_its_first_pass(db: Database) -> None:
    derivations = Derivations(db, twice(DOUBLE, INPUT))
    assert db.snapshot().pending(DOUBLE) == {"derive"}
    derivations.step()
    assert db.snapshot().initialized(DOUBLE)


def test_derived_tables_await_the_sources_of_all_they_read_by_name_through_any_depth(db: Database) -> None:
    one, two = db.initializer(INPUT, "one"), db.initializer(OTHER, "two")
    derivations = Derivations(db, twice(QUADRUPLE, DOUBLE), twice(DOUBLE, INPUT))
    derivations.step()
    assert db.snapshot().pending(DOUBLE) == db.snapshot().pending(QUADRUPLE) == {"one", "two"}
    complete(db, one)
    derivations.step()
    assert db.snapshot().pending(QUADRUPLE) == {"two"}
    complete(db, two)
    derivations.step()
    assert db.snapshot().initialized(DOUBLE, QUADRUPLE)


def test_a_derived_table_gives_a_source_up_as_awaited_only_with_its_rows_taken_in(db: Database) -> None:
    source = db.initializer(INPUT, "source")
    derivations = Derivations(db, twice(DOUBLE, INPUT), twice(QUADRUPLE, DOUBLE), units_per_pass=2)
    with db.write() as txn:
        for n in range(5):
            txn.put(INPUT, (str(n), n))
        source.complete(txn)
    seen = []
    while derivations.step():
        seen.append((db.snapshot().count(QUADRUPLE), db.snapshot().initialized(DOUBLE, QUADRUPLE)))
    assert seen == [(2, False), (4, False)]
    assert (db.snapshot().count(QUADRUPLE), db.snapshot().initialized(DOUBLE, QUADRUPLE)) == (5, True)


def test_a_source_that_comes_later_makes_what_is_derived_of_it_incomplete_again(db: Database) -> None:
    derivations = Derivations(db, twice(DOUBLE, INPUT))
    derivations.step()
    late = db.initializer(INPUT, "late")
    derivations.step()
    assert db.snapshot().pending(DOUBLE) == {"late"}
    complete(db, late)
    derivations.step()
    assert db.snapshot().initialized(DOUBLE)


def test_a_derived_table_can_do_without_some_sources(db: Database) -> None:
    own, peer = db.initializer(INPUT, "own"), db.initializer(INPUT, "peer/c2")
    derivations = Derivations(db, twice(DOUBLE, INPUT, awaits=lambda source: not source.startswith("peer/")))
    derivations.step()
    assert db.snapshot().pending(DOUBLE) == {"own"}
    complete(db, own)
    derivations.step()
    assert db.snapshot().initialized(DOUBLE)
    assert repr(peer) == "<Initializer peer/c2 of input>"


def test_rows_that_list_awaited_sources_are_recomputed_when_one_completes(db: Database) -> None:
    def compute(reader: Reader, unit: str) -> list[tuple[str, int]]:
        return [(unit, len(reader.pending(INPUT)))] if reader.get(INPUT, unit) else []

    calls: list[frozenset[str]] = []

    def arrived(reader: Reader, sources: frozenset[str]) -> Iterable[str]:
        calls.append(sources)
        return [row[0] for row in reader.all(INPUT)]

    one, two = db.initializer(INPUT, "one"), db.initializer(INPUT, "two")
    derivations = Derivations(db, Derived(DOUBLE, compute=compute, reads={INPUT: key}, arrived=arrived))
    with db.write() as txn:
        txn.put(INPUT, ("a", 1))
    derivations.step()
    assert db.snapshot().get(DOUBLE, "a") == ("a", 2)
    complete(db, one, two)
    derivations.step()
    derivations.step()
    assert db.snapshot().get(DOUBLE, "a") == ("a", 0)
    assert calls == [{"one", "two"}]


async def test_a_running_derivation_passes_on_a_completion_that_comes_without_rows(db: Database) -> None:
    source = db.initializer(INPUT, "source")
    running = asyncio.create_task(Derivations(db, twice(DOUBLE, INPUT)).run())
    await db.until(lambda now: now.pending(DOUBLE) == {"source"})
    complete(db, source)
    await db.until(lambda now: now.initialized(DOUBLE))
    running.cancel()


async def test_a_running_derivation_passes_on_a_source_that_comes_later(db: Database) -> None:
    running = asyncio.create_task(Derivations(db, twice(DOUBLE, INPUT)).run())
    await db.until(lambda now: now.initialized(DOUBLE))
    await asyncio.sleep(0)
    db.initializer(INPUT, "late")
    await db.until(lambda now: now.pending(DOUBLE) == {"late"})
    running.cancel()
