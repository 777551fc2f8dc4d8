"""The database against a model of two dicts: after any operations in any order, both read the same."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec import Struct

from isthmus.statedb import Attribute, Changes, Database, Reader, Snapshot, Table, WriteTxn

KEYS = st.sampled_from("abcdef")
COLOURS = st.lists(st.sampled_from(["red", "green", "blue"]), max_size=3)


class Row(Struct, frozen=True):
    name: str
    colours: tuple[str, ...]


class Indigestible(Exception):  # noqa: N818
    """What the function of an index raises."""


def digested(row: Row) -> tuple[str, ...]:
    if "brown" in row.colours:
        raise Indigestible
    return row.colours


TABLES = [
    Table[str, Row](
        "left", Row, key=lambda row: row.name, indexes={"colour": lambda row: row.colours, "digested": digested}
    ),
    Table[str, Row]("right", Row, key=lambda row: row.name, indexes={"colour": lambda row: set(row.colours)}),
    Table[str, Row](
        "clustered",
        Row,
        key=lambda row: row.name,
        indexes={"colour": lambda row: row.colours, "half": lambda row: (row.name < "d",), "digested": digested},
        clustered=("half", lambda name: name < "d"),
    ),
    Table[str, Row](
        "alone",
        Row,
        key=lambda row: row.name,
        indexes={"colour": lambda row: row.colours, "name": Attribute("name")},
        clustered=("name", lambda name: name),
    ),
]
WRITE = st.tuples(st.sampled_from(TABLES), KEYS, st.none() | COLOURS)
MANY_PUT = st.tuples(st.sampled_from(TABLES), st.lists(KEYS, min_size=4, max_size=6), COLOURS)
"""Of one table: rows of some names, all of the same colours, to put together."""
BLOCK = st.tuples(st.lists(WRITE | MANY_PUT, max_size=6), st.booleans(), st.sampled_from([None, None, *TABLES[::2]]))
"""Of a savepoint: what is written, whether it raises then, and a table that is given rows whose index raises."""
MANY = st.tuples(
    st.sampled_from(TABLES),
    st.lists(st.tuples(KEYS, COLOURS), max_size=6) | st.lists(KEYS, max_size=6),
)
"""Of one table: rows to put together, or keys to delete together; a key may be among them twice."""

Model = dict[str, dict[str, Row]]


def assert_same(reader: Reader, model: Model) -> None:
    """Every way of reading gives what the dicts give."""
    for table in TABLES:
        rows = model[table.name]
        assert {row.name: row for row in reader.all(table)} == rows
        assert reader.count(table) == len(rows)
        assert all(reader.get(table, name) == rows.get(name) for name in "abcdef")
        for colour in ("red", "green", "blue"):
            found = sorted(row.name for row in reader.by(table, "colour", colour))
            assert found == sorted(name for name, row in rows.items() if colour in row.colours)
            if "digested" in table.indexes:
                assert {row.name for row in reader.by(table, "digested", colour)} == {*found}
        if "half" in table.indexes:
            assert {row.name for row in reader.by(table, "half", True)} == {name for name in rows if name < "d"}


def copy(model: Model) -> Model:
    return {name: dict(rows) for name, rows in model.items()}


def interrupt() -> None:
    raise InterruptedError


class Follower:
    """A reader of changes, and the table as its changes so far give it."""

    def __init__(self, changes: Changes[Row]) -> None:
        self.changes = changes
        self.rows: dict[str, Row] = {}

    def read(self, model: dict[str, Row]) -> None:
        _, changes = self.changes.next()
        for key, old, new in changes:
            assert self.rows.get(key) == old
            assert old != new
            if new is None:
                del self.rows[key]
            else:
                self.rows[key] = new
        assert self.rows == model


class Tables(RuleBasedStateMachine):
    snapshots: Bundle[tuple[Snapshot, Model]] = Bundle("snapshots")
    readers: Bundle[tuple[Follower, str]] = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.db = Database(*TABLES)
        self.model: Model = {table.name: {} for table in TABLES}
        self.revisions = {table.name: 0 for table in TABLES}

    @rule(writes=st.lists(WRITE, max_size=8), aborted=st.booleans())
    def transaction(self, writes: list[Any], aborted: bool) -> None:
        model, revisions = copy(self.model), dict(self.revisions)
        try:
            with self.db.write() as txn:
                for table, name, colours in writes:
                    rows = model[table.name]
                    before = rows.pop(name, None)
                    if colours is None:
                        assert txn.delete(table, name) == before
                        changed = before is not None
                    else:
                        rows[name] = Row(name, tuple(colours))
                        assert txn.put(table, rows[name]) == before
                        changed = before != rows[name]
                    revisions[table.name] += changed
                assert_same(txn, model)
                if aborted:
                    interrupt()
        except InterruptedError:
            return
        self.model, self.revisions = model, revisions

    @rule(batches=st.lists(MANY, max_size=4), aborted=st.booleans())
    def transaction_of_batches(self, batches: list[Any], aborted: bool) -> None:
        """What is put or deleted together is what each by itself makes of the tables."""
        model, revisions = copy(self.model), dict(self.revisions)
        try:
            with self.db.write() as txn:
                for table, batch in batches:
                    rows = model[table.name]
                    gone = [each for each in batch if isinstance(each, str)]
                    put = [Row(each[0], tuple(each[1])) for each in batch if not isinstance(each, str)]
                    for name in gone:
                        revisions[table.name] += rows.pop(name, None) is not None
                    for row in put:
                        revisions[table.name] += rows.pop(row.name, None) != row
                        rows[row.name] = row
                    txn.delete_all(table, gone)
                    txn.put_all(table, put)
                    assert_same(txn, model)
                if aborted:
                    interrupt()
        except InterruptedError:
            return
        self.model, self.revisions = model, revisions

    @rule(parts=st.lists(BLOCK, max_size=4), many=st.sampled_from(["c", "ac", "abcdef"]))
    def transaction_with_savepoints(self, parts: list[Any], many: str) -> None:
        """What a block wrote before it raised is taken back alone, in the middle of a write, too."""
        held: list[tuple[Snapshot, Model]] = []
        with self.db.write() as txn:
            model, revisions = copy(self.model), dict(self.revisions)
            for writes, raises, indigestible in parts:
                inner, numbers = copy(model), dict(revisions)
                try:
                    with txn.savepoint(TABLES):
                        for write in writes:
                            self.write_in_block(txn, write, inner, numbers)
                        if indigestible is not None:
                            txn.put_all(indigestible, [Row(name, ("red", "brown")[name > "b" :]) for name in many])
                        if raises:
                            interrupt()
                except (InterruptedError, Indigestible):
                    inner, numbers = model, revisions
                model, revisions = inner, numbers
                assert_same(txn, model)
                held.append((self.db.snapshot(), copy(self.model)))
                assert_same(*held[-1])
        for snapshot, before in held:
            assert_same(snapshot, before)
        self.model, self.revisions = model, revisions

    def write_in_block(self, txn: WriteTxn, write: Any, model: Model, revisions: dict[str, int]) -> None:
        table, name, colours = write
        rows = model[table.name]
        if isinstance(name, list):
            put = [Row(each, tuple(colours)) for each in name]
            for row in put:
                revisions[table.name] += rows.pop(row.name, None) != row
                rows[row.name] = row
            txn.put_all(table, put)
            return
        before = rows.pop(name, None)
        if colours is None:
            txn.delete(table, name)
            revisions[table.name] += before is not None
        else:
            rows[name] = Row(name, tuple(colours))
            txn.put(table, rows[name])
            revisions[table.name] += before != rows[name]

    @rule(target=snapshots)
    def take(self) -> tuple[Snapshot, Model]:
        return self.db.snapshot(), copy(self.model)

    @rule(taken=consumes(snapshots))
    def look_at_an_old_snapshot(self, taken: tuple[Snapshot, Model]) -> None:
        assert_same(*taken)

    @rule(target=readers, table=st.sampled_from(TABLES))
    def follow(self, table: Table[str, Row]) -> tuple[Follower, str]:
        return Follower(self.db.changes(table)), table.name

    @rule(reader=readers)
    def read(self, reader: tuple[Follower, str]) -> None:
        follower, table = reader
        follower.read(self.model[table])

    @rule(reader=consumes(readers))
    def leave(self, reader: tuple[Follower, str]) -> None:
        reader[0].changes.close()

    @invariant()
    def the_present_is_the_models(self) -> None:
        assert_same(self.db.snapshot(), self.model)
        assert {table.name: self.db.snapshot().revision(table) for table in TABLES} == self.revisions


Tables.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTables = Tables.TestCase
