"""Dicts that are nearly full grow one at a time, and keep what is in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec import Struct

from isthmus.statedb import Database, Growth, Table
from isthmus.statedb.growth import EVERY, grow
from isthmus.statedb.ordered import CHUNK_KEYS, SortedDict


class Row(Struct, frozen=True, gc=False):
    name: str


ROWS = Table[str, Row]("rows", Row, key=lambda row: row.name, indexes={"name": lambda row: (row.name,)})
FULL = 43_690
"""Keys of which a dict has room for one more only after it has moved."""


def keys(count: int) -> dict[object, int]:
    return {f"key-{n}": n for n in range(count)}


def ints(count: int) -> dict[object, int]:
    return {n: n for n in range(count)}


@pytest.mark.parametrize("made", [keys, ints])
@pytest.mark.parametrize("count", [FULL * 7 // 8 + 1, FULL - 100, FULL])
def test_a_dict_that_grows_early_has_the_room_of_one_that_grew_of_itself(
    made: Callable[[int], dict[object, int]], count: int
) -> None:
    early, late = made(count), made(FULL + 1)
    grow(early)
    assert sys.getsizeof(early) == sys.getsizeof(late)
    assert early == made(count)


def test_of_dicts_that_are_nearly_full_one_grows_at_each_fourth_look_and_each_once() -> None:
    dicts, growth = [keys(FULL - 100), ints(FULL - 100), keys(1_000)], Growth()
    sizes: list[list[int]] = []
    for _ in range(4 * EVERY):
        growth.look(dicts)
        sizes.append([sys.getsizeof(each) for each in dicts])
    grown = [sum(a != b for a, b in zip(before, after, strict=True)) for before, after in pairwise(sizes)]
    assert sum(grown) == 2
    assert max(grown) == 1
    assert sizes[2 * EVERY - 1] == sizes[-1]


def test_dicts_behind_an_ordered_index_grow() -> None:
    behind, growth = keys(FULL - 100), Growth()
    before = sys.getsizeof(behind)
    sorted_ = SortedDict(chunk_keys=CHUNK_KEYS)
    sorted_.update(keys(FULL - 100))
    for _ in range(EVERY):
        growth.look([sorted_, behind])
    assert sys.getsizeof(behind) > before
    assert len(sorted_) == FULL - 100


def test_rows_and_indexes_of_a_table_grow_in_different_commits() -> None:
    db = Database(ROWS)
    with db.write() as txn:
        txn.by(ROWS, "name", "")
        txn.put_all(ROWS, [Row(f"row-{n}") for n in range(FULL * 7 // 8)])
    state = db._states["rows"]
    grown: list[int] = []
    for n in range(20):
        before = [sys.getsizeof(each) for each in state.dicts()]
        with db.write() as txn:
            txn.put(ROWS, Row(f"more-{n}"))
        grown.append(sum(a != sys.getsizeof(b) for a, b in zip(before, state.dicts(), strict=True)))
    assert sum(grown) == 2
    assert max(grown) == 1
    assert db.snapshot().count(ROWS) == FULL * 7 // 8 + 20
    assert db.snapshot().get(ROWS, "\0") is None
