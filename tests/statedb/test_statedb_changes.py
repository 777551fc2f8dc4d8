"""Readers of changes: what each reads, when it is woken, what it may cost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from isthmus.statedb import Change, Changes, Database, Overrun, Table

NUMBERS = Table[str, tuple[str, int]]("numbers", tuple, key=lambda row: row[0])


@pytest.fixture
def db() -> Database:
    return Database(NUMBERS)


def put(db: Database, **rows: int) -> None:
    with db.write() as txn:
        for name, number in rows.items():
            txn.put(NUMBERS, (name, number))


def delete(db: Database, *names: str) -> None:
    with db.write() as txn:
        for name in names:
            txn.delete(NUMBERS, name)


def read(reader: Changes[tuple[str, int]]) -> list[Change[tuple[str, int]]]:
    return reader.next()[1]


def test_a_new_reader_reads_every_present_row_as_an_insert(db: Database) -> None:
    put(db, a=1, b=2)
    assert sorted(read(db.changes(NUMBERS))) == [("a", None, ("a", 1)), ("b", None, ("b", 2))]


def test_deletions_come_with_the_row_that_was(db: Database) -> None:
    put(db, a=1)
    reader = db.changes(NUMBERS)
    reader.next()
    delete(db, "a")
    assert read(reader) == [("a", ("a", 1), None)]


def test_many_writes_between_two_reads_are_one_change(db: Database) -> None:
    put(db, a=1)
    reader = db.changes(NUMBERS)
    reader.next()
    for number in range(2, 9):
        put(db, a=number)
    assert read(reader) == [("a", ("a", 1), ("a", 8))]


def test_what_came_and_went_between_two_reads_is_no_change(db: Database) -> None:
    put(db, kept=1)
    reader = db.changes(NUMBERS)
    reader.next()
    put(db, guest=1)
    delete(db, "guest", "kept")
    put(db, kept=1)
    assert reader.unread == 2
    assert read(reader) == []


def test_changes_come_in_the_order_in_which_keys_first_changed(db: Database) -> None:
    reader = db.changes(NUMBERS)
    for name in ("c", "a", "b", "c"):
        put(db, **{name: len(name) + db.snapshot().revision(NUMBERS)})
    assert [change.key for change in read(reader)] == ["c", "a", "b"]


def test_readers_are_independent(db: Database) -> None:
    fast, slow = db.changes(NUMBERS), db.changes(NUMBERS)
    put(db, a=1)
    assert len(read(fast)) == 1
    put(db, a=2)
    assert read(fast) == [("a", ("a", 1), ("a", 2))]
    assert read(slow) == [("a", None, ("a", 2))]


def test_the_snapshot_given_with_changes_is_the_one_they_lead_to(db: Database) -> None:
    reader = db.changes(NUMBERS)
    put(db, a=1)
    snapshot, changes = reader.next()
    put(db, a=2)
    assert [change.new for change in changes] == [snapshot.get(NUMBERS, "a")]


def test_a_reader_made_inside_a_transaction_sees_what_is_committed_exactly_once(db: Database) -> None:
    put(db, old=1, gone=1, same=1)
    with db.write() as txn:
        txn.put(NUMBERS, ("old", 2))
        reader = db.changes(NUMBERS)
        txn.delete(NUMBERS, "gone")
        txn.put(NUMBERS, ("new", 1))
    changes = sorted(read(reader))
    assert changes == [("new", None, ("new", 1)), ("old", None, ("old", 2)), ("same", None, ("same", 1))]
    assert read(reader) == []


def test_a_reader_that_reads_inside_a_transaction_misses_nothing_of_it(db: Database) -> None:
    reader = db.changes(NUMBERS)
    with db.write() as txn:
        txn.put(NUMBERS, ("a", 1))
        assert read(reader) == []
    assert read(reader) == [("a", None, ("a", 1))]


def test_an_aborted_transaction_is_no_change(db: Database) -> None:
    reader = db.changes(NUMBERS)
    with suppress(KeyError), db.write() as txn:
        txn.put(NUMBERS, ("a", 1))
        raise KeyError
    assert (reader.unread, reader.ready) == (0, False)


async def test_wait_returns_at_once_when_there_is_something_to_read_and_else_at_the_next_commit(db: Database) -> None:
    put(db, a=1)
    reader = db.changes(NUMBERS)
    await reader.wait()
    reader.next()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(reader.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        put(db, a=2)
    assert read(reader) == [("a", ("a", 1), ("a", 2))]


def test_a_closed_reader_costs_nothing(db: Database) -> None:
    reader = db.changes(NUMBERS)
    reader.close()
    put(db, a=1)
    assert reader.unread == 0
    assert db.stats()["numbers"].readers == 0


def test_a_bounded_reader_that_falls_behind_is_dropped_and_gets_overrun(db: Database) -> None:
    reader = db.changes(NUMBERS, limit=2)
    put(db, a=1, b=1)
    put(db, a=2)
    assert len(read(reader)) == 2
    put(db, a=3, b=2)
    put(db, c=1)
    assert reader.ready
    assert reader.unread == 0
    with pytest.raises(Overrun, match="more than 2 rows of 'numbers'"):
        reader.next()
    assert db.stats()["numbers"].readers == 0


async def test_until_looks_again_after_each_commit_of_any_table(db: Database) -> None:
    looked = []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(db.until(lambda now: looked.append(now.count(NUMBERS)) or now.count(NUMBERS) == 2))  # type: ignore[func-returns-value]
        for name in "ab":
            await asyncio.sleep(0)
            put(db, **{name: 1})
    assert (waiting.result().count(NUMBERS), looked) == (2, [0, 1, 2])
    assert not db._watchers
