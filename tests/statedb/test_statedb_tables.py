"""Transactions, snapshots and indexes, one rule each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import Any

import pytest
from msgspec import Struct

from isthmus.statedb import Attribute, Database, StateError, Table, TableStats, WriteTxn


class Host(Struct, frozen=True, gc=False):
    name: str
    addresses: tuple[str, ...] = ()
    zone: str = "a"


HOSTS = Table[str, Host](
    "hosts",
    Host,
    key=lambda row: row.name,
    indexes={"address": lambda row: row.addresses, "zone": lambda row: (row.zone,) if row.zone else ()},
)
ZONES = Table[str, Host]("zones", Host, key=lambda row: row.name)
ABSENT = Table[str, Host]("absent", Host, key=lambda row: row.name)


@pytest.fixture
def db() -> Database:
    return Database(HOSTS, ZONES)


def put(db: Database, *rows: Host) -> None:
    with db.write() as txn:
        for row in rows:
            txn.put(HOSTS, row)


def names(rows: Iterator[Host] | list[Host]) -> list[str]:
    return sorted(row.name for row in rows)


def test_what_a_transaction_wrote_is_seen_by_itself_at_once_and_by_others_at_its_end(db: Database) -> None:
    with db.write() as txn:
        txn.put(HOSTS, Host("x"))
        assert txn.get(HOSTS, "x") == Host("x")
        assert names(txn.all(HOSTS)) == ["x"]
        assert txn.count(HOSTS) == 1
        assert db.snapshot().get(HOSTS, "x") is None
    assert db.snapshot().get(HOSTS, "x") == Host("x")


def test_a_transaction_that_raises_leaves_nothing_in_any_table(db: Database) -> None:
    with suppress(ZeroDivisionError), db.write() as txn:
        txn.put(HOSTS, Host("x"))
        txn.put(ZONES, Host("y"))
        raise ZeroDivisionError
    assert db.snapshot().count(HOSTS) == db.snapshot().count(ZONES) == 0
    put(db, Host("after"))
    assert names(db.snapshot().all(HOSTS)) == ["after"]


def test_a_snapshot_never_sees_a_later_write(db: Database) -> None:
    put(db, Host("x", ("1",)))
    before = db.snapshot()
    with db.write() as txn:
        txn.put(HOSTS, Host("x", ("2",)))
        txn.put(HOSTS, Host("y", ("1",)))
    assert names(before.by(HOSTS, "address", "1")) == ["x"]
    assert names(before.all(HOSTS)) == ["x"]
    assert names(db.snapshot().by(HOSTS, "address", "1")) == ["y"]


def test_put_and_delete_give_the_row_that_was_there(db: Database) -> None:
    with db.write() as txn:
        assert txn.put(HOSTS, Host("x")) is None
        assert txn.put(HOSTS, Host("x", zone="b")) == Host("x")
        assert txn.delete(HOSTS, "x") == Host("x", zone="b")
        assert txn.delete(HOSTS, "x") is None


def test_an_equal_row_changes_nothing(db: Database) -> None:
    put(db, Host("x"))
    reader, revision = db.changes(HOSTS), db.snapshot().revision(HOSTS)
    reader.next()
    put(db, Host("x"))
    assert (reader.ready, db.snapshot().revision(HOSTS)) == (False, revision)


def test_the_revision_counts_rows_put_and_deleted(db: Database) -> None:
    put(db, Host("x"), Host("y"))
    with db.write() as txn:
        txn.delete(HOSTS, "x")
        assert txn.revision(HOSTS) == 3
    assert db.snapshot().revision(HOSTS) == 3
    assert db.snapshot().revision(ZONES) == 0


def test_an_index_follows_each_row_under_all_its_values(db: Database) -> None:
    put(db, Host("x", ("1", "2")), Host("y", ("2",), zone=""))
    assert names(db.snapshot().by(HOSTS, "address", "2")) == ["x", "y"]
    assert names(db.snapshot().by(HOSTS, "zone", "a")) == ["x"]
    put(db, Host("x", ("3",), zone="b"))
    assert names(db.snapshot().by(HOSTS, "address", "2")) == ["y"]
    assert names(db.snapshot().by(HOSTS, "address", "1")) == []
    assert names(db.snapshot().by(HOSTS, "zone", "b")) == ["x"]


def test_a_value_that_repeats_in_a_row_counts_once(db: Database) -> None:
    put(db, Host("x", ("1", "1")))
    assert names(db.snapshot().by(HOSTS, "address", "1")) == ["x"]
    put(db, Host("x", ("1",)))
    assert names(db.snapshot().by(HOSTS, "address", "1")) == ["x"]
    with db.write() as txn:
        txn.delete(HOSTS, "x")
    assert names(db.snapshot().by(HOSTS, "address", "1")) == []


@pytest.mark.parametrize("count", [1, 8, 9, 500])
def test_an_index_value_may_have_any_number_of_rows(db: Database, count: int) -> None:
    rows = [Host(f"h{n:03}", ("1",)) for n in range(count)]
    put(db, *rows)
    assert names(db.snapshot().by(HOSTS, "address", "1")) == [row.name for row in rows]
    with db.write() as txn:
        for row in rows:
            txn.delete(HOSTS, row.name)
    assert db.snapshot().by(HOSTS, "address", "1") == []
    assert not db._states["hosts"].index(0).entries


class Leaf(Struct, frozen=True):
    name: str
    tree: str = ""
    marks: tuple[str, ...] = ()


LEAVES = [
    Table[str, Leaf](
        name,
        Leaf,
        key=attrgetter("name"),
        indexes={
            "tree": Attribute("tree"),
            "planted": Attribute("tree", optional=True),
            "mark": attrgetter("marks"),
            "first": Attribute("name"),
        },
        clustered=clustered,
    )
    for name, clustered in (("by_key", None), ("by_first", ("first", lambda name: name)))
]
BY_TREE = Table[tuple[str, str], Leaf](
    "by_tree",
    Leaf,
    key=attrgetter("tree", "name"),
    indexes={
        "tree": Attribute("tree"),
        "planted": Attribute("tree", optional=True),
        "mark": attrgetter("marks"),
        "first": Attribute("name"),
    },
    clustered=("tree", itemgetter(0)),
)


@pytest.mark.parametrize("table", [*LEAVES, BY_TREE], ids=lambda table: table.name)
@pytest.mark.parametrize(
    ("before", "come", "gone"),
    [
        pytest.param("", "a1 b2 c3 d4 e5", "a1 b2 c3 d4 e5", id="each-alone"),
        pytest.param("", "a1 b1 c1 d1 e2", "a1 c1", id="several-under-one-value"),
        pytest.param("a1 b2", "c1 d2 e3 f3", "a1 d2 f3", id="beside-rows-that-are-there"),
        pytest.param("a1 b2 c3", "c3x d4 e5 f6", "d4 e5", id="over-a-row-that-is-there"),
        pytest.param("a1 b2 c3 d4", "a1x b2x c3x d4", "z9 a1 a1", id="nothing-new"),
        pytest.param("a1 b2 c3 d4", "a1 b2 c3 d4", "z1 y2", id="equal-rows-and-keys-without-one"),
        pytest.param("", "a b c d e1", "a e1", id="under-no-value"),
        pytest.param("", "a1xy b2x c3 d4 e5y", "a1 e5", id="under-several-values"),
        pytest.param("a1 b1 c2", "d4 e5 f6 g7", "b1 c2 d4", id="the-last-of-a-value"),
    ],
)
def test_rows_put_and_deleted_together_are_those_put_and_deleted_one_by_one(
    table: Table[Any, Leaf], before: str, come: str, gone: str
) -> None:
    """Each word: a name, a tree, marks."""

    def rows(words: str) -> list[Leaf]:
        return [Leaf(word[0], word[1:2], tuple(word[2:])) for word in words.split()]

    together, single = Database(table), Database(table)
    readers = [db.changes(table) for db in (together, single)]
    for db in (together, single):
        for index in table.indexes:
            db.snapshot().by(table, index, "")
        put_into(db, table, rows(before))
    for reader in readers:
        reader.pairs()
    for change in ("come", "gone"):
        with together.write() as txn:
            if change == "come":
                txn.put_all(table, rows(come))
            else:
                txn.delete_all(table, [table.key(row) for row in rows(gone)])
            seen = txn.changed(table)
        with single.write() as txn:
            for row in rows(come if change == "come" else gone):
                txn.put(table, row) if change == "come" else txn.delete(table, table.key(row))
            assert sorted(map(str, seen)) == sorted(map(str, txn.changed(table)))
        assert contents(together, table) == contents(single, table)
        ready, expected = [reader.ready for reader in readers]
        assert ready is expected
        changed, wanted = [sorted(map(str, reader.pairs())) for reader in readers]
        assert changed == wanted


class Large:
    """A row that is not to be compared, as it may be large."""

    def __init__(self, name: str) -> None:
        self.name = name

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")


LARGE = Table[str, Large]("large", Large, key=attrgetter("name"))


def test_a_row_that_the_caller_has_compared_is_compared_by_nobody_after_it() -> None:
    db, before, after = Database(LARGE), Large("a"), Large("a")
    reader = db.changes(LARGE)
    changes = []
    for row in (before, after, after):
        with db.write() as txn:
            txn.put_all(LARGE, [row], compared=True)
            changes.append([(id(old), id(new)) for old, new in txn.changed(LARGE)])
        assert [(id(old), id(new)) for old, new in reader.pairs()] == changes[-1]
    assert changes == [[(id(None), id(before))], [(id(before), id(after))], []]
    assert db.snapshot().revision(LARGE) == 2


def put_into(db: Database, table: Table[Any, Leaf], rows: list[Leaf]) -> None:
    with db.write() as txn:
        for row in rows:
            txn.put(table, row)


def contents(db: Database, table: Table[Any, Leaf]) -> Any:
    """What a reader finds by key and by every index."""
    now = db.snapshot()
    values = [*"123456789xy", "", *"abcdefgz"]
    return (
        now.count(table),
        sorted(map(str, now.all(table))),
        {(index, value): sorted(map(str, now.by(table, index, value))) for index in table.indexes for value in values},
    )


def test_rows_can_be_written_while_all_are_iterated(db: Database) -> None:
    put(db, Host("x"), Host("y"))
    with db.write() as txn:
        txn.put(HOSTS, Host("z"))
        for row in txn.all(HOSTS):
            txn.delete(HOSTS, row.name)
            txn.put(HOSTS, Host(f"new-{row.name}"))
    assert names(db.snapshot().all(HOSTS)) == ["new-x", "new-y", "new-z"]


def test_changed_has_each_row_as_it_was_before_the_transaction_and_as_it_is(db: Database) -> None:
    put(db, Host("x"))
    with db.write() as txn:
        txn.put(HOSTS, Host("x", zone="b"))
        txn.put(HOSTS, Host("x", zone="c"))
        txn.put(HOSTS, Host("y"))
        txn.put(HOSTS, Host("z"))
        txn.delete(HOSTS, "z")
        assert txn.changed(HOSTS) == [(Host("x"), Host("x", zone="c")), (None, Host("y"))]
        assert txn.changed(ZONES) == []


@pytest.mark.parametrize("count", [1, 9])
def test_rows_that_came_and_went_in_one_transaction_did_not_change(db: Database, count: int) -> None:
    reader, guests = db.changes(HOSTS), [Host(f"guest-{n}") for n in range(count)]
    with db.write() as txn:
        txn.put_all(HOSTS, guests)
        txn.delete_all(HOSTS, [row.name for row in guests])
        assert txn.changed(HOSTS) == []
    assert reader.pairs() == []


@pytest.mark.parametrize("count", [1, 9])
def test_rows_that_went_and_came_again_in_one_transaction_did_not_change(db: Database, count: int) -> None:
    rows = [Host(f"row-{n}") for n in range(count)]
    put(db, *rows)
    reader = db.changes(HOSTS)
    reader.pairs()
    with db.write() as txn:
        txn.delete_all(HOSTS, [row.name for row in rows])
        txn.put_all(HOSTS, rows)
        assert txn.changed(HOSTS) == []
    assert reader.pairs() == []


def test_an_index_is_right_from_the_first_look_into_it_whenever_that_is(db: Database) -> None:
    put(db, Host("x", zone="a"), Host("y", zone="b"))
    early = db.snapshot()
    with db.write() as txn:
        txn.put(HOSTS, Host("x", zone="b"))
        assert names(txn.by(HOSTS, "zone", "b")) == ["x", "y"]
        txn.delete(HOSTS, "y")
        assert names(txn.by(HOSTS, "zone", "b")) == ["x"]
    assert names(early.by(HOSTS, "zone", "b")) == ["y"]
    put(db, Host("z", zone="b"))
    assert names(db.snapshot().by(HOSTS, "zone", "b")) == ["x", "z"]


def test_thousands_of_rows_under_one_value_come_change_and_go_one_by_one(db: Database) -> None:
    many = [f"h{n}" for n in range(2_000)]
    put(db, *(Host(name, zone="b") for name in many))
    assert names(db.snapshot().by(HOSTS, "zone", "b")) == sorted(many)
    put(db, Host("h7", addresses=("1",), zone="b"), Host("h8", zone="a"))
    found = {row.name: row for row in db.snapshot().by(HOSTS, "zone", "b")}
    assert found.keys() == {*many} - {"h8"}
    assert found["h7"].addresses == ("1",)
    with db.write() as txn:
        for name in many:
            txn.delete(HOSTS, name)
    assert db.snapshot().by(HOSTS, "zone", "b") == []


def test_misuse_is_an_error_that_says_what_to_do(db: Database) -> None:
    with pytest.raises(StateError, match="'absent' is not in this database"):
        db.snapshot().get(ABSENT, "x")
    with pytest.raises(StateError, match="'absent' is not in this database"), db.write() as txn:
        txn.put(ABSENT, Host("x"))
    with pytest.raises(StateError, match="'absent' is not in this database"):
        db.changes(ABSENT)
    with pytest.raises(StateError, match="no index 'colour'; it has: address, zone"):
        db.snapshot().by(HOSTS, "colour", "red")
    with pytest.raises(StateError, match="'zones' has no index 'address'; it has: none"):
        db.snapshot().by(ZONES, "address", "1")
    with pytest.raises(StateError, match="declared twice"):
        db.add(HOSTS)
    with pytest.raises(StateError, match="table name 'Hosts'"):
        Table[str, Host]("Hosts", Host, key=lambda row: row.name)


def test_transactions_do_not_nest(db: Database) -> None:
    with db.write() as txn:
        with pytest.raises(StateError, match="do not nest"), db.write():
            pass
        txn.put(HOSTS, Host("x"))
    assert names(db.snapshot().all(HOSTS)) == ["x"]


@pytest.mark.parametrize("aborted", [False, True])
def test_a_transaction_cannot_be_used_after_its_end(db: Database, aborted: bool) -> None:
    kept: list[WriteTxn] = []
    with suppress(KeyError), db.write() as txn:
        txn.put(HOSTS, Host("x"))
        kept.append(txn)
        if aborted:
            raise KeyError
    for use in (lambda: kept[0].put(HOSTS, Host("y")), lambda: kept[0].get(HOSTS, "x"), lambda: kept[0].count(HOSTS)):
        with pytest.raises(StateError, match="has ended"):
            use()


def test_stats_and_reprs_tell_what_there_is(db: Database) -> None:
    reader = db.changes(HOSTS)
    db.initializer(HOSTS, "kubernetes")
    put(db, Host("x"), Host("y"))
    assert db.stats()["hosts"] == TableStats(rows=2, revision=2, readers=1, unread=2, pending=("kubernetes",))
    assert repr(db) == "<Database hosts=2, zones=0>"
    assert repr(reader) == "<Changes of hosts, 2 unread>"
    assert repr(db.snapshot()) == "<Snapshot hosts@2, zones@0>"
    assert repr(HOSTS) == "<Table hosts of Host, indexes: address, zone>"
    with db.write() as txn:
        assert repr(txn) == "<WriteTxn so far empty>"
        txn.put(HOSTS, Host("z"))
        assert repr(txn) == "<WriteTxn hosts: 1 rows>"
