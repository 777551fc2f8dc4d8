"""The declarations of affected units: each as a sentence about the rows of two small tables."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from msgspec import Struct

from isthmus.statedb import Affected, Database, Table, on_change, through, unit_of


class Part(Struct, frozen=True):
    name: str


class Box(Struct, frozen=True):
    name: str
    part: Part = Part("p")
    room: str = ""


BOXES = Table[str, Box]("boxes", Box, key=attrgetter("name"), indexes={"room": lambda row: (row.room,)})


def units(affected: Affected, old: Any, new: Any, *boxes: Box) -> Iterable[Any]:
    database = Database(BOXES)
    with database.write() as txn:
        for box in boxes:
            txn.put(BOXES, box)
    return sorted(set(affected(database.snapshot(), old, new)))


def test_a_row_affects_its_unit_before_and_after() -> None:
    old, new = Box("a", Part("x")), Box("a", Part("y"))
    assert units(unit_of("part.name"), old, new) == ["x", "y"]
    assert units(unit_of("part.name"), old, None) == ["x"]
    assert units(unit_of(lambda row: f"box {row.name}"), None, new) == ["box a"]


def test_a_change_of_other_fields_affects_nothing() -> None:
    affected = on_change(("room", "part.name"), unit_of("name"))
    assert units(affected, Box("a", room="1"), Box("a", room="2")) == ["a"]
    assert units(affected, Box("a"), Box("a")) == []
    assert units(affected, None, Box("a")) == units(affected, Box("a"), None) == ["a"]


def test_without_fields_rows_affect_units_only_as_they_come_and_go() -> None:
    affected = on_change((), unit_of("name"))
    assert units(affected, Box("a", room="1"), Box("a", room="2")) == []
    assert units(affected, None, Box("a")) == ["a"]


def test_a_function_of_both_rows_may_decide_whether_a_change_counts() -> None:
    affected = on_change(lambda old, new: new is None, unit_of("name"))
    assert units(affected, None, Box("a")) == []
    assert units(affected, Box("a"), None) == ["a"]


def test_a_row_affects_the_units_of_the_rows_that_refer_to_it() -> None:
    boxes = Box("a", room="1"), Box("b", room="1"), Box("c", room="2")
    affected = through(BOXES, "name", index="room")
    assert units(affected, None, Part("1"), *boxes) == units(affected, Part("1"), None, *boxes) == ["a", "b"]
    assert units(through(BOXES, "room", index="room", key="part.name"), None, Box("x", Part("2")), *boxes) == ["2"]
    assert units(through(BOXES, "name"), None, Part("9"), *boxes) == ["a", "b", "c"]
