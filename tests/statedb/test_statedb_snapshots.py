"""Snapshots held at random while thousands of transactions change the tables in place: each keeps reading its model."""

from __future__ import annotations

import gc
import random
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Struct

from isthmus.statedb import Database, Reader, Snapshot, Table, WriteTxn
from isthmus.statedb.past import PastState

KEYS = range(40)
BROKEN = ("broken",)
COLOURS = ["red", "green", "blue", "grey", "black"]


class Row(Struct, frozen=True, gc=False):
    key: int
    colours: tuple[str, ...] = ()
    count: int = 0


def colours(row: Row) -> tuple[str, ...]:
    """Index values; of one row they cannot be computed."""
    if row.colours == BROKEN:
        raise ZeroDivisionError
    return row.colours


LEFT, RIGHT, CLUSTERED = (
    Table[int, Row](
        name,
        Row,
        key=lambda row: row.key,
        indexes={"colour": colours, "sorted": colours, "third": lambda row: (row.key // 3,)},
        ordered=("sorted",),
        clustered=clustered,
    )
    for name, clustered in (("left", None), ("right", None), ("clustered", ("third", lambda key: key // 3)))
)
TABLES = (LEFT, RIGHT, CLUSTERED)

Model = dict[str, dict[int, Row]]


def copy(model: Model) -> Model:
    return {name: dict(rows) for name, rows in model.items()}


def assert_reads(reader: Reader, model: Model, *, some: random.Random | None = None) -> None:
    """Every way of reading gives what the dicts hold; with ``some``, a few of them taken at random."""
    for table in TABLES:
        rows = model[table.name]
        assert reader.count(table) == len(rows)
        for key in some.sample(KEYS, 3) if some else KEYS:
            assert reader.get(table, key) == rows.get(key)
        for colour in some.sample(COLOURS, 1) if some else COLOURS:
            expected = {row.key: row for row in rows.values() if colour in row.colours}
            assert {row.key: row for row in reader.by(table, "colour", colour)} == expected
            if isinstance(reader, WriteTxn):
                with_rows = {each for each in COLOURS if any(each in row.colours for row in rows.values())}
                assert reader.with_rows(table, "colour", COLOURS) == with_rows
            assert {row.key: row for row in reader.prefix(table, "sorted", colour[:2])} == {
                row.key: row for row in rows.values() if any(each.startswith(colour[:2]) for each in row.colours)
            }
        if some is None or some.random() < 0.2:
            assert {row.key: row for row in reader.all(table)} == rows
            found = sorted((each, row.key) for row in rows.values() for each in set(row.colours) if each >= "g")
            assert sorted(row.key for row in reader.lower_bound(table, "sorted", "g")) == sorted(
                key for _, key in found
            )


def write(txn: WriteTxn, model: Model, chance: random.Random) -> None:
    table = chance.choice(TABLES)
    key = chance.choice(KEYS)
    if chance.random() < 0.3:
        assert txn.delete(table, key) == model[table.name].pop(key, None)
        return
    row = Row(key, tuple(chance.choices(COLOURS, k=chance.choice([0, 1, 1, 2, 3]))), chance.randrange(3))
    assert txn.put(table, row) == model[table.name].get(key)
    model[table.name][key] = row


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_snapshots_held_at_random_read_what_was_there_over_thousands_of_transactions(seed: int) -> None:
    chance = random.Random(seed)
    db, model = Database(*TABLES), Model({table.name: {} for table in TABLES})
    held: list[tuple[Snapshot, Model]] = []
    followed, seen = db.changes(LEFT), dict[int, Row]()
    for _ in range(600):
        draft = copy(model)
        with suppress(ZeroDivisionError):
            with db.write() as txn:
                for _ in range(chance.choice([0, 1, 1, 2, 5, 20])):
                    write(txn, draft, chance)
                    if chance.random() < 0.05:
                        held.append((db.snapshot(), copy(model)))  # of the commit before: nothing of this transaction
                    if held and chance.random() < 0.1:
                        assert_reads(*chance.choice(held), some=chance)
                assert_reads(txn, draft, some=chance)
                match chance.randrange(8):
                    case 0:
                        raise ZeroDivisionError
                    case 1:
                        txn.put(chance.choice((LEFT, CLUSTERED)), Row(chance.choice(KEYS), BROKEN))
                        for table in (LEFT, CLUSTERED):
                            txn.by(table, "colour", "red")
            model = draft
        assert_reads(db.snapshot(), model, some=chance)
        if chance.random() < 0.2:
            held.append((db.snapshot(), copy(model)))
        for snapshot, was in held:
            assert_reads(snapshot, was, some=chance)
        if len(held) > chance.randrange(12):
            held.pop(chance.randrange(len(held)))
        if chance.random() < 0.1:
            for key, old, new in followed.next()[1]:
                assert seen.pop(key, None) == old
                if new is not None:
                    seen[key] = new
            assert seen == model["left"]
    for snapshot, was in held:
        assert_reads(snapshot, was)


def fill(db: Database, count: int = 3) -> None:
    with db.write() as txn:
        for key in range(count):
            txn.put(LEFT, Row(key, ("red",)))


def test_a_snapshot_taken_in_an_open_transaction_has_nothing_of_it_whatever_becomes_of_it() -> None:
    for aborted in (False, True):
        db = Database(*TABLES)
        fill(db)
        was: Model = {table.name: {} for table in TABLES} | {"left": {key: Row(key, ("red",)) for key in range(3)}}
        with suppress(ZeroDivisionError), db.write() as txn:
            txn.put(LEFT, Row(0, ("blue",)))
            snapshot = db.snapshot()
            txn.delete(LEFT, 1)
            for _ in range(2):
                assert_reads(snapshot, was)
                txn.put(LEFT, Row(7, ("red",)))
            if aborted:
                raise ZeroDivisionError
        assert_reads(snapshot, was)


def test_rows_read_from_a_snapshot_go_on_as_they_were_while_transactions_are_committed_between() -> None:
    db = Database(*TABLES)
    with db.write() as txn:
        for key in KEYS:
            txn.put(LEFT, Row(key, (f"c{key:02}",)))
    snapshot = db.snapshot()
    for rows in (snapshot.all(LEFT), snapshot.lower_bound(LEFT, "sorted", ""), snapshot.prefix(LEFT, "sorted", "c")):
        read = []
        for row in rows:
            read.append(row.key)
            with db.write() as txn:
                txn.delete(LEFT, len(KEYS) - row.key)
                txn.put(LEFT, Row(100 + row.key, (f"c{row.key:02}",)))
        assert read == list(KEYS)


def test_a_snapshot_that_is_dropped_costs_nothing_and_one_that_is_held_what_was_touched() -> None:
    db = Database(LEFT, RIGHT)
    fill(db)
    snapshot: Any = db.snapshot()
    for count in range(5):
        with db.write() as txn:
            txn.put(LEFT, Row(0, ("red",), count + 1))
            txn.put(RIGHT, Row(count))
    assert {name: len(state._undo) for name, state in snapshot._states.items()} == {"left": 1, "right": 5}
    del snapshot
    gc.collect()
    assert not db._live_snapshots()


@pytest.mark.parametrize("index", ["colour", "sorted"])
def test_an_exception_in_the_middle_of_an_index_leaves_the_index_right(index: str) -> None:
    db = Database(*TABLES)
    fill(db)
    db.snapshot().by(LEFT, index, "red")
    with suppress(ZeroDivisionError), db.write() as txn:
        txn.put(LEFT, Row(1, ("blue",)))
        txn.delete(LEFT, 2)
        txn.put(LEFT, Row(9, ("red",)))
        txn.put(LEFT, Row(0, BROKEN))
    assert sorted(row.key for row in db.snapshot().by(LEFT, index, "red")) == [0, 1, 2]
    assert db.snapshot().by(LEFT, index, "blue") == []
    assert db.snapshot().revision(LEFT) == 3


def test_what_a_snapshot_held_is_freed_with_it_and_does_not_wait_for_the_garbage_collector() -> None:
    db = Database(LEFT)
    with db.write() as txn:
        txn.put(LEFT, Row(1, ("red",)))
    gc.collect()
    gc.disable()
    try:
        snapshot = db.snapshot()
        with db.write() as txn:
            txn.delete(LEFT, 1)
        assert [row.key for row in snapshot.by(LEFT, "colour", "red")] == [1]
        assert count_past_states() == 1
        del snapshot
        assert count_past_states() == 0
    finally:
        gc.enable()


def count_past_states() -> int:
    return sum(isinstance(each, PastState) for each in gc.get_objects())
