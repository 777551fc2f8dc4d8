"""The sink against a model: after any sequence of lists and events the rows are those of the objects there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from isthmus import reflector
from isthmus.model.tables import FAULTS
from isthmus.reflector import LIST_BATCH, Event, Unreadable
from isthmus.sources.sink import Malformed, TableSink
from isthmus.statedb import Database, Table


class Row(Struct, frozen=True, gc=False):
    name: str
    value: int


ROWS = Table[str, Row]("rows", Row, key=lambda row: row.name)

Wire = tuple[str, int]
"""What an object is: the row's name, which may move to another object, and a value; see ``convert``."""


def convert(wire: Wire) -> Row | None:
    if wire[1] == 0:
        raise Malformed("value: 0 cannot be")
    return Row(*wire) if wire[1] > 1 else None


def rows_of(objects: Mapping[str, Wire]) -> dict[str, Row]:
    return {wire[0]: Row(*wire) for wire in objects.values() if wire[1] > 1}


def last_good(before: Wire | None, now: Wire) -> Wire:
    """What counts of an object: a malformed version changes nothing, and one that never was another is no row."""
    return now if now[1] != 0 else before or now


KEYS = st.sampled_from("abcd")
# A row's name belongs to one object, as everywhere in Kubernetes; only its first letter is the object's own.
OBJECTS = st.dictionaries(KEYS, st.tuples(st.sampled_from("xy"), st.integers(0, 4)))
EVENTS = st.lists(st.tuples(KEYS, st.none() | st.tuples(st.sampled_from("xy"), st.integers(0, 4))), max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["whole", "partial"]), OBJECTS) | st.tuples(st.just("events"), EVENTS))


def named(key: str, wire: Wire) -> Wire:
    return key + wire[0], wire[1]


@given(STEPS)
def test_rows_are_those_of_the_last_good_versions_of_the_objects_there_are(steps: list[tuple[str, object]]) -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    objects: dict[str, Wire] = {}
    whole = False
    for step, what in steps:
        if isinstance(what, dict):
            found = {key: named(key, wire) for key, wire in what.items()}
            asyncio.run(sink.replace(found, partial=step == "partial"))
            found = {key: last_good(objects.get(key), wire) for key, wire in found.items()}
            objects = {**objects, **found} if step == "partial" else found
            whole = whole or step == "whole"
        elif isinstance(what, list):
            events: list[Event[Wire]] = [Event(key, wire and named(key, wire)) for key, wire in what]
            sink.apply(events)
            for key, item in events:
                if item is None:
                    objects.pop(key, None)
                else:
                    objects[key] = last_good(objects.get(key), item)
        snapshot = db.snapshot()
        assert {row.name: row for row in snapshot.all(ROWS)} == rows_of(objects)
        assert snapshot.initialized(ROWS) == whole


MOVING = st.lists(
    st.tuples(
        st.sampled_from(["whole", "events"]),
        st.dictionaries(st.sampled_from("abcdefg"), st.sampled_from("stuvwxyz")),
        st.sampled_from([2, 3]),
    )
)
"""How the next state of all objects comes, and each object's row: a name may move from any object to any other."""


@given(MOVING)
def test_a_row_whose_key_moves_between_objects_is_kept(steps: list[tuple[str, dict[str, str], int]]) -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    objects: dict[str, Wire] = {}
    for step, names, value in steps:
        found = {key: (name, value) for name, key in {name: key for key, name in names.items()}.items()}
        if step == "whole":
            with mock.patch.object(reflector, "LIST_BATCH", 2):
                asyncio.run(sink.replace(found, partial=False))
        else:
            sink.apply([Event(key, found.get(key)) for key in {**objects, **found}])
        objects = found
        assert {row.name: row for row in db.snapshot().all(ROWS)} == rows_of(objects)


async def test_a_row_that_an_earlier_list_left_to_two_objects_stays_with_the_one_that_is_left() -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    await sink.replace({"a": ("k", 2)}, partial=False)
    await sink.replace({"b": ("k", 2)}, partial=True)
    await sink.replace({"b": ("k", 2)}, partial=False)
    assert [*db.snapshot().all(ROWS)] == [Row("k", 2)]


async def test_a_list_with_few_changes_is_seen_as_a_whole_however_long_it_is() -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    long = {f"{n:06}": (f"{n:06}", 2) for n in range(3 * LIST_BATCH)}
    await sink.replace(long, partial=False)
    before = db.snapshot().revision(ROWS)
    listing = asyncio.create_task(sink.replace({**dict([*long.items()][1:]), "z": ("000000", 3)}, partial=False))
    seen: set[tuple[int, int]] = set()
    while not listing.done():
        await asyncio.sleep(0)
        row = db.snapshot().get(ROWS, "000000")
        assert row is not None
        seen.add((row.value, db.snapshot().revision(ROWS) - before))
    assert seen == {(2, 0), (3, 1)}


@pytest.mark.parametrize("usable", [True, False])
async def test_other_tasks_run_while_a_long_list_is_taken_in_and_nothing_is_removed_before_its_end(
    usable: bool,
) -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    await sink.replace({"old": ("old", 2)}, partial=True)
    long = {f"{n:06}": (f"{n:06}", 2 if usable else 0) for n in range(3 * LIST_BATCH)}
    listing = asyncio.create_task(sink.replace(long, partial=False))
    seen: list[int] = []
    while not listing.done():
        await asyncio.sleep(0)
        snapshot = db.snapshot()
        seen.append(snapshot.count(ROWS))
        assert (snapshot.get(ROWS, "old") is None) == snapshot.initialized(ROWS)
    assert seen[:2] == [1] * 2  # it is read over as many turns before
    assert [*dict.fromkeys(seen)][:3] == ([1, LIST_BATCH + 1, 2 * LIST_BATCH + 1] if usable else [1, 0])
    assert {row.name for row in db.snapshot().all(ROWS)} == (long.keys() if usable else set())
    assert db.snapshot().initialized(ROWS)


class Bug(Exception):  # noqa: N818
    """What a conversion raises that is made to."""


Step = tuple[str, dict[str, Wire | Unreadable | None]]
VERSIONS = st.tuples(st.just("x"), st.integers(-1, 4)) | st.just(Unreadable("it is no object", uid="u"))
FAILING_STEPS = st.lists(
    st.tuples(st.sampled_from(["whole", "partial", "events"]), st.dictionaries(KEYS, VERSIONS | st.none(), max_size=4))
)


@given(FAILING_STEPS)
def test_whatever_conversions_raise_all_other_objects_are_rows_and_the_faults_name_exactly_the_failing_ones(
    steps: list[Step],
) -> None:
    def raising(wire: Wire) -> Row | None:
        if wire[1] == -1:
            raise Bug(wire[0])
        return convert(wire)

    db = Database(ROWS, FAULTS)
    sink: TableSink[Any, Row] = TableSink(db, ROWS, "test", raising, kind="things")
    rows: dict[str, Row | None] = {}
    causes: dict[str, str] = {}
    for step, changes in steps:
        found = {
            key: wire if wire is None or isinstance(wire, Unreadable) else named(key, wire)
            for key, wire in changes.items()
        }
        if step == "events":
            sink.apply([Event(key, wire) for key, wire in found.items()])
        else:
            found = {key: wire for key, wire in found.items() if wire is not None}
            asyncio.run(sink.replace(found, partial=step == "partial"))
            if step == "whole":
                rows = {key: row for key, row in rows.items() if key in found}
                causes = {key: cause for key, cause in causes.items() if key in found}
        for key, wire in found.items():
            cause = cause_of(wire)
            causes.pop(key, None)
            if cause:
                causes[key] = cause
                rows.setdefault(key, None)
            else:
                rows[key] = convert(wire) if wire is not None and not isinstance(wire, Unreadable) else None
        snapshot = db.snapshot()
        assert {*snapshot.all(ROWS)} == {row for row in rows.values() if row is not None}
        assert {(row.part, row.kind, row.name): row.cause for row in snapshot.all(FAULTS)} == {
            ("rows", "things", key): cause for key, cause in causes.items()
        }


def cause_of(wire: Wire | Unreadable | None) -> str:
    """Why an object cannot be a row; empty: it can, or is none."""
    if wire is None:
        return ""
    return "unreadable" if isinstance(wire, Unreadable) else {-1: "bug", 0: "malformed"}.get(wire[1], "")


def test_a_conversion_that_raises_has_its_place_in_the_fault_and_a_tenants_error_only_its_sentence() -> None:
    def raising(wire: Wire) -> Row | None:
        if wire[1] == 1:
            raise KeyError("ports")
        return convert(wire)

    db = Database(ROWS, FAULTS)
    sink: TableSink[Any, Row] = TableSink(db, ROWS, "test", raising, kind="things")
    sink.apply([Event("a", ("ax", 1)), Event("b", ("bx", 0)), Event("c", Unreadable("at `$.spec`", uid="u7"))])
    bug, malformed, unreadable = sorted(db.snapshot().all(FAULTS), key=lambda row: row.name)
    assert bug.error == "KeyError: 'ports'"
    assert bug.where.startswith("sources/test_sources_sink.py:")
    assert (malformed.error, malformed.where) == ("value: 0 cannot be", "")
    assert (unreadable.error, unreadable.uid) == ("at `$.spec`", "u7")


def test_without_a_table_of_faults_a_bug_is_raised() -> None:
    sink: TableSink[Any, Row] = TableSink(Database(ROWS), ROWS, "test", lambda wire: Row(*wire[2]))
    with pytest.raises(IndexError):
        sink.apply([Event("a", ("ax", 1))])
