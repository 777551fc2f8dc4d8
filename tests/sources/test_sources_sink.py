"""The sink against a model: after any sequence of lists and events the rows are those of the objects there are."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from isthmus.reflector import Event
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


KEYS = st.sampled_from("abcd")
# A row's name belongs to one object, as everywhere in Kubernetes; only its first letter is the object's own.
OBJECTS = st.dictionaries(KEYS, st.tuples(st.sampled_from("xy"), st.integers(0, 4)))
EVENTS = st.lists(st.tuples(KEYS, st.none() | st.tuples(st.sampled_from("xy"), st.integers(0, 4))), max_size=6)
STEPS = st.lists(st.tuples(st.sampled_from(["whole", "partial"]), OBJECTS) | st.tuples(st.just("events"), EVENTS))


def named(key: str, wire: Wire) -> Wire:
    return key + wire[0], wire[1]


@given(STEPS)
def test_rows_are_those_of_the_objects_there_are(steps: list[tuple[str, object]]) -> None:
    db = Database(ROWS)
    sink: TableSink[Wire, Row] = TableSink(db, ROWS, "test", convert)
    objects: dict[str, Wire] = {}
    whole = False
    for step, what in steps:
        if isinstance(what, dict):
            found = {key: named(key, wire) for key, wire in what.items()}
            sink.replace(found, partial=step == "partial")
            objects = {**objects, **found} if step == "partial" else found
            whole = whole or step == "whole"
        elif isinstance(what, list):
            events: list[Event[Wire]] = [Event(key, wire and named(key, wire)) for key, wire in what]
            sink.apply(events)
            for key, item in events:
                if item is None:
                    objects.pop(key, None)
                else:
                    objects[key] = item
        snapshot = db.snapshot()
        assert {row.name: row for row in snapshot.all(ROWS)} == rows_of(objects)
        assert snapshot.initialized(ROWS) == whole
