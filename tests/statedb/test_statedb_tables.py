"""Transactions, snapshots and indexes, one rule each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from msgspec import Struct

from isthmus.statedb import Database, StateError, Table, TableStats, WriteTxn


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
    assert not db._states["hosts"].index(0).found


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
