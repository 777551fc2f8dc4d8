"""Dicts that are nearly full grow one at a time, and keep what is in them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count, pairwise

import pytest
from msgspec import Struct

from isthmus.statedb import Database, Growth, Table
from isthmus.statedb.growth import EVERY, REST, grow
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


def test_of_dicts_that_are_nearly_full_one_grows_at_a_fourth_look_and_each_once() -> None:
    times = count()
    dicts, growth = [keys(FULL - 100), ints(FULL - 100), keys(1_000)], Growth(clock=lambda: float(next(times)))
    sizes: list[list[int]] = []
    for _ in range(4 * EVERY):
        growth.look(dicts)
        sizes.append([sys.getsizeof(each) for each in dicts])
    grown = [sum(a != b for a, b in zip(before, after, strict=True)) for before, after in pairwise(sizes)]
    assert sum(grown) == 2
    assert max(grown) == 1
    assert sizes[2 * EVERY - 1] == sizes[-1]


def test_none_grows_soon_after_another() -> None:
    now = [1.0]
    dicts, growth = [keys(FULL - 100), keys(FULL - 200)], Growth(clock=lambda: now[0])
    sizes = [sys.getsizeof(each) for each in dicts]
    for _ in range(4 * EVERY):
        growth.look(dicts)
    assert [sys.getsizeof(each) > size for each, size in zip(dicts, sizes, strict=True)] == [True, False]
    now[0] += 2 * REST
    for _ in range(EVERY):
        growth.look(dicts)
    assert all(sys.getsizeof(each) > size for each, size in zip(dicts, sizes, strict=True))


def test_what_grows_beside_something_rests_after_its_moves_too() -> None:
    now = [1.0]
    first = Growth(clock=lambda: now[0])
    growth, dicts = Growth(clock=lambda: now[0], beside=first), [keys(FULL - 100)]
    before = sys.getsizeof(dicts[0])
    for _ in range(EVERY):
        first.look([keys(FULL - 100)])
    for _ in range(EVERY):
        growth.look(dicts)
    assert sys.getsizeof(dicts[0]) == before
    now[0] += 2 * REST
    for _ in range(EVERY):
        growth.look(dicts)
    assert sys.getsizeof(dicts[0]) > before


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
    db, times = Database(ROWS), count()
    db.growth = Growth(clock=lambda: float(next(times)))
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
