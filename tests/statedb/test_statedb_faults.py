"""A failure costs one unit: whatever raises, all else ends as it would without, and the faults name exactly that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from isthmus.statedb import (
    Database,
    Derivations,
    Derived,
    DerivedTogether,
    Dirty,
    Fault,
    Faults,
    Pairs,
    PendingWrites,
    Reader,
    Table,
    WriteTxn,
    part,
    rewrite,
)
from isthmus.statedb.faults import MAX_ERROR, MAX_NAME, MAX_ROWS, OTHERS


class Member(Struct, frozen=True, gc=False):
    """A row of the input. ``bad`` names the function that raises for it."""

    name: str
    group: str
    bad: str = ""


class Group(Struct, frozen=True, gc=False):
    name: str
    members: tuple[str, ...]


class Shadow(Struct, frozen=True, gc=False):
    """A row of the two tables that are computed together, and of the one computed from one of them."""

    name: str
    group: str


FAULTS = Table[tuple[str, str, str], Fault]("faults", Fault, key=lambda row: (row.part, row.kind, row.name))
MEMBERS = Table[str, Member]("members", Member, key=lambda row: row.name, indexes={"group": lambda row: (row.group,)})
GROUPS = Table[str, Group]("groups", Group, key=lambda row: row.name)
LEFT = Table[str, Shadow]("left", Shadow, key=lambda row: row.name, indexes={"group": lambda row: (row.group,)})
RIGHT = Table[str, Shadow]("right", Shadow, key=lambda row: row.name, indexes={"group": lambda row: (row.group,)})
LAST = Table[str, Shadow]("last", Shadow, key=lambda row: row.name, indexes={"group": lambda row: (row.group,)})


class Bug(Exception):  # noqa: N818
    """What a function raises that is made to."""


def bad(reader: Reader, group: str, function: str) -> bool:
    return any(row.bad == function for row in reader.by(MEMBERS, "group", group))


def groups(reader: Reader, group: str) -> Iterator[Group]:
    if bad(reader, group, "groups"):
        raise Bug(f"group {group}")
    if members := reader.by(MEMBERS, "group", group):
        yield Group(group, tuple(sorted(row.name for row in members)))


def group_of(reader: Reader, old: Member | None, new: Member | None) -> Iterable[str]:
    if new is not None and new.bad == "affected":
        raise Bug(new.name)
    return {row.group for row in (old, new) if row is not None}


def groups_of(reader: Reader, changed: Pairs) -> Iterable[str]:
    """By batch: it gives some units before it raises."""
    for old, new in changed:
        yield from group_of(reader, old, new)


def shadows(txn: WriteTxn, units: Dirty) -> None:
    """Writes of a batch are half done when it raises: of the unit, of others, of one table of two."""
    both = PendingWrites(txn, RIGHT)
    for unit in units:
        present = [Shadow(row.name, unit) for row in txn.by(MEMBERS, "group", unit)]
        rewrite(txn, LEFT, txn.by(LEFT, "group", unit), present)
        if bad(txn, unit, "shadows"):
            raise Bug(unit)
        both.exchange(txn.by(RIGHT, "group", unit), present)
    both.flush()


def last(reader: Reader, group: str) -> Sequence[Shadow]:
    return [] if bad(reader, group, "last") and 1 // 0 else reader.by(RIGHT, "group", group)


def of_row(reader: Reader, old: Shadow | None, new: Shadow | None) -> Iterable[str]:
    return {row.group for row in (old, new) if row is not None}


def declared() -> list[Derived[Any] | DerivedTogether]:
    return [
        Derived(GROUPS, compute=groups, reads={MEMBERS: group_of}),
        DerivedTogether(LEFT, RIGHT, renew=shadows, reads={MEMBERS: groups_of}),
        Derived(LAST, compute=last, reads={RIGHT: of_row, MEMBERS: group_of}, unit="group"),
    ]


PARTS = {"groups": "groups", "shadows": "left, right", "last": "last"}
TABLES: Sequence[Table[str, Any]] = (GROUPS, LEFT, RIGHT, LAST)


class World:
    def __init__(self) -> None:
        self.db = Database(FAULTS, MEMBERS, *TABLES)
        self.derivations = Derivations(self.db, *declared(), faults=FAULTS, units_per_pass=3)

    def put(self, *rows: Member | str) -> None:
        """Put rows, or delete those of a name, and compute."""
        with self.db.write() as txn:
            for row in rows:
                if isinstance(row, str):
                    txn.delete(MEMBERS, row)
                else:
                    txn.put(MEMBERS, row)
        while self.derivations.step():
            pass

    def faults(self) -> set[tuple[str, str, str]]:
        return {FAULTS.key(row) for row in self.db.snapshot().all(FAULTS)}

    def rows(self) -> dict[str, set[Any]]:
        return {table.name: {*self.db.snapshot().all(table)} for table in TABLES}


def test_a_unit_that_raises_keeps_its_rows_and_is_a_fault_until_its_inputs_are_good() -> None:
    world = World()
    world.put(Member("a1", "a"), Member("b1", "b"))
    before = world.rows()
    world.put(Member("a1", "a", "groups"), Member("a2", "a"), Member("b2", "b"))
    assert world.db.snapshot().get(GROUPS, "a") == Group("a", ("a1",)), "as it was last computed"
    assert world.db.snapshot().get(GROUPS, "b") == Group("b", ("b1", "b2"))
    assert world.rows() != before
    [fault] = world.db.snapshot().all(FAULTS)
    assert (fault.part, fault.kind, fault.name, fault.cause) == ("groups", "", "a", "bug")
    assert (fault.error, fault.tries) == ("Bug: group a", 1)
    assert fault.where.startswith("statedb/test_statedb_faults.py:")
    world.put(Member("a3", "a"))
    [again] = world.db.snapshot().all(FAULTS)
    assert (again.tries, again.since) == (2, fault.since)
    world.put(Member("a1", "a"))
    assert world.faults() == set()
    assert world.db.snapshot().get(GROUPS, "a") == Group("a", ("a1", "a2", "a3"))


def test_the_fault_of_a_unit_goes_with_its_inputs() -> None:
    world = World()
    world.put(Member("a1", "a", "groups"))
    assert world.faults() == {("groups", "", "a")}
    world.put("a1")
    assert world.faults() == set()


def test_a_batch_that_raises_costs_the_unit_at_fault_and_what_it_wrote_is_taken_back() -> None:
    world = World()
    world.put(Member("a1", "a"), Member("b1", "b"), Member("c1", "c"))
    world.put(Member("b1", "b", "shadows"), Member("b2", "b"), Member("a2", "a"), Member("c2", "c"))
    rows = world.rows()
    assert {row.name for row in rows["left"]} == {row.name for row in rows["right"]} == {"a1", "a2", "b1", "c1", "c2"}
    assert world.faults() == {("left, right", "", "b")}


def test_a_changed_row_that_affects_unknown_units_is_a_fault_and_is_made_up_for() -> None:
    world = World()
    world.put(Member("m", "a"), Member("n", "b"))
    world.put(Member("m", "c", "affected"), Member("n", "d"))
    assert world.faults() == {
        ("groups", "members", "m"),
        ("left, right", "members", "m"),
        ("last", "members", "m"),
    }
    assert {row.name for row in world.rows()["groups"]} == {"a", "d"}, "of the other row nothing is lost"
    world.put(Member("m", "e"))
    assert world.faults() == set()
    assert {row.name for row in world.rows()["groups"]} == {"e", "d"}, "nor what the row was before it failed"


def test_a_row_that_is_again_as_it_was_before_its_effects_were_unknown_has_its_unit_recomputed() -> None:
    world = World()
    world.put(Member("m", "a"))
    world.put(Member("m", "z", "affected"), Member("n", "z"))
    assert Shadow("m", "z") in world.rows()["left"], "a unit that is computed meanwhile takes the row of the other one"
    world.put(Member("m", "a"))
    assert world.faults() == set()
    assert world.rows()["left"] == world.rows()["last"] == {Shadow("m", "a"), Shadow("n", "z")}


def test_a_row_that_affects_unknown_units_leaves_no_fault_when_it_goes() -> None:
    world = World()
    world.put(Member("m", "a", "affected"))
    assert len(world.faults()) == 3
    world.put("m")
    assert world.faults() == set()
    assert not any(world.rows().values())


def test_an_exhausted_memory_is_no_fault() -> None:
    def exhausted(reader: Reader, unit: str) -> list[Group]:
        raise MemoryError

    db = Database(FAULTS, MEMBERS, GROUPS)
    derived = Derived(GROUPS, compute=exhausted, reads={MEMBERS: group_of})
    derivations = Derivations(db, derived, faults=FAULTS)
    with db.write() as txn:
        txn.put(MEMBERS, Member("a", "a"))
    with pytest.raises(MemoryError):
        derivations.step()


def test_without_a_table_of_faults_an_exception_ends_the_pass() -> None:
    db = Database(MEMBERS, *TABLES)
    derivations = Derivations(db, *declared())
    with db.write() as txn:
        txn.put(MEMBERS, Member("a", "a", "groups"))
    with pytest.raises(Bug):
        derivations.step()
    with pytest.raises(ZeroDivisionError):
        Faults(db, FAULTS, "rows").failed("a", ZeroDivisionError())


NAMES = st.sampled_from([f"{group}{number}" for group in "abcde" for number in range(3)])
BAD = st.sampled_from(["", "", "", "groups", "shadows", "last", "affected"])
CHANGES = st.lists(st.tuples(NAMES, st.sampled_from(["own", "z", None]), BAD), max_size=8)
"""Rows that change together: into the group of their own name, into one that they share, or they go."""


def applied(rows: dict[str, Member], change: tuple[str, str | None, str]) -> Member | str:
    name, group, function = change
    if group is None:
        rows.pop(name, None)
        return name
    rows[name] = Member(name, name[0] if group == "own" else group, function)
    return rows[name]


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, max_size=5))
def test_all_other_units_end_as_without_the_failures_and_the_faults_name_exactly_these(
    steps: list[list[tuple[str, str | None, str]]],
) -> None:
    world, rows = World(), dict[str, Member]()
    followed: dict[str, Member] = {}
    """Rows as they were when the units that they affect were known last."""
    for changes in steps:
        world.put(*[applied(rows, change) for change in changes])
        followed = {
            name: followed.get(name, row) if row.bad == "affected" else row
            for name, row in rows.items()
            if row.bad != "affected" or name in followed
        }
        unknown = {name for name, row in rows.items() if row.bad == "affected"}
        stale = {row.group for name in unknown for row in (rows[name], followed.get(name)) if row is not None}
        failing = {function: {row.group for row in rows.values() if row.bad == function} for function in PARTS}
        assert_equal(
            world.rows(),
            good(rows).rows(),
            but={
                "groups": failing["groups"] | stale,
                "left": failing["shadows"] | stale,
                "right": failing["shadows"] | stale,
                "last": failing["shadows"] | failing["last"] | stale,
            },
        )
        found = world.faults()
        for function, tables in PARTS.items():
            units = {name for own, kind, name in found if own == tables and not kind}
            assert failing[function] - stale <= units <= failing[function] | stale
            assert {name for own, kind, name in found if own == tables and kind} == unknown
    world.put(*[Member(row.name, row.group) for row in rows.values()])
    assert world.faults() == set()
    assert world.rows() == good(rows).rows()


def good(rows: dict[str, Member]) -> World:
    """The same rows, and nothing raises."""
    world = World()
    world.put(*[Member(row.name, row.group) for row in rows.values()])
    return world


def assert_equal(have: dict[str, set[Any]], wanted: dict[str, set[Any]], *, but: dict[str, set[str]]) -> None:
    """The rows of all units are these, but for those of some."""
    for table in TABLES:
        unit = attrgetter("name" if table is GROUPS else "group")
        rows, others = ({row for row in of[table.name] if unit(row) not in but[table.name]} for of in (have, wanted))
        assert rows == others, table


class Recorded:
    """Faults of one part, and their rows after each change."""

    def __init__(self) -> None:
        self.db = Database(FAULTS)
        self.faults = Faults(self.db, FAULTS, "rows", kind="things", clock=lambda: 7.0)

    def rows(self) -> dict[str, Fault]:
        self.faults.publish()
        return {row.name: row for row in self.db.snapshot().all(FAULTS)}


def test_rows_are_bounded_and_the_rest_is_counted() -> None:
    recorded = Recorded()
    for n in range(MAX_ROWS + 20):
        assert recorded.faults.failed(f"unit{n}", Bug())
    rows = recorded.rows()
    assert len(rows) == MAX_ROWS + 1
    assert (rows[OTHERS].count, rows[OTHERS].error) == (20, "20 more, of which only the number is kept")
    assert sum(row.count for row in rows.values()) == len(recorded.faults) == MAX_ROWS + 20
    for n in range(10, MAX_ROWS + 20):
        recorded.faults.succeeded(f"unit{n}")
    assert [*recorded.rows()] == [f"unit{n}" for n in range(10)]


def test_a_namespace_with_many_faults_makes_room_for_those_of_others() -> None:
    recorded = Recorded()
    for n in range(MAX_ROWS + 20):
        recorded.faults.failed(f"loud/{n}", Bug(), cause="malformed")
    for n in range(3):
        recorded.faults.failed(f"quiet{n}/a", Bug())
    rows = recorded.rows()
    assert {f"quiet{n}/a" for n in range(3)} <= rows.keys()
    assert (len(rows), rows[OTHERS].count, rows[OTHERS].cause) == (MAX_ROWS + 1, 23, "malformed")
    for n in range(MAX_ROWS + 20):
        recorded.faults.failed(f"louder/{n}", Bug())
    rows = recorded.rows()
    assert {f"quiet{n}/a" for n in range(3)} <= rows.keys()
    loud = sum(name.startswith("loud/") for name in rows)
    assert loud in (MAX_ROWS // 2 - 1, MAX_ROWS // 2 - 2), "two that want all of it have a half each"
    assert rows[OTHERS].cause == "bug", "one of the others is one"
    recorded.faults.retain([])
    assert recorded.rows() == {}


def test_names_and_messages_are_printable_and_bounded() -> None:
    recorded = Recorded()
    recorded.faults.failed("demo/\x1b[31m\ud800" + "x" * 5_000, Bug("\x00" * 9_000))
    recorded.faults.failed("demo/\x1b[31m\ud800" + "x" * 5_001, Bug("y"))
    rows = recorded.rows()
    assert len(rows) == 2, "names that differ beyond the bound differ within it"
    for row in rows.values():
        assert row.name.isprintable()
        assert row.error.isprintable()
        assert len(row.name) <= MAX_NAME
        assert len(row.error) <= MAX_ERROR


def test_an_exception_whose_message_raises_is_a_fault() -> None:
    class Mute(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise Bug

    recorded = Recorded()
    recorded.faults.failed(("c1", "demo/echo"), Mute())
    assert recorded.rows()["c1 demo/echo"].error == "Mute: (its message cannot be written)"


def test_rows_of_an_earlier_object_are_cleared() -> None:
    recorded = Recorded()
    recorded.faults.failed("a", Bug())
    recorded.rows()
    later = Faults(recorded.db, FAULTS, "rows", kind="things")
    with recorded.db.write() as txn:
        later.clear(txn)
    assert recorded.rows() == {}


ALL = Table[str, Group]("all_groups", Group, key=lambda row: row.name, indexes={"all": lambda row: (True,)})


def all_groups(reader: Reader, unit: bool) -> Iterator[Group]:
    """One unit: each group is a part of it."""
    for name in sorted({row.group for row in reader.all(MEMBERS)}):

        def compute(name: str = name) -> list[Group]:
            return list(groups(reader, name))

        def last(name: str = name) -> list[Group]:
            row = reader.get(ALL, name)
            return [row] if row is not None else []

        yield from part(name, compute, last=last)


def test_a_part_of_a_unit_that_is_a_whole_table_stays_as_it_was_and_the_others_go_on() -> None:
    db = Database(FAULTS, MEMBERS, ALL)
    affected = Derived(ALL, compute=all_groups, reads={MEMBERS: lambda reader, old, new: (True,)}, unit="all")
    derivations = Derivations(db, affected, faults=FAULTS)

    def put(*rows: Member) -> dict[str, tuple[str, ...]]:
        with db.write() as txn:
            txn.put_all(MEMBERS, rows)
        derivations.step()
        return {row.name: row.members for row in db.snapshot().all(ALL)}

    assert put(Member("a1", "a"), Member("b1", "b")) == {"a": ("a1",), "b": ("b1",)}
    bad_groups = (Member("a2", "a", "groups"), Member("b2", "b"), Member("c1", "c", "groups"))
    assert put(*bad_groups) == {"a": ("a1",), "b": ("b1", "b2")}
    assert {FAULTS.key(row) for row in db.snapshot().all(FAULTS)} == {
        ("all_groups", "part", "a"),
        ("all_groups", "part", "c"),
    }
    assert put(Member("a2", "a"), Member("c1", "c"))["a"] == ("a1", "a2")
    assert db.snapshot().count(FAULTS) == 0
    with pytest.raises(Bug):
        part("a", lambda: next(groups(db.snapshot(), "a")), last=lambda: 0) if put(*bad_groups) else None
