"""Ordered indexes: as a sorted list would be, whatever comes and goes; in a transaction and in a snapshot held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from isthmus.statedb import Database, StateError, Table, ordered

WORDS = [f"{namespace}/{name}" for namespace in ("a", "ab", "b") for name in ("", "a", "b", "ba", "c")]


class Row(Struct, frozen=True, gc=False):
    key: int
    words: tuple[str, ...] = ()


sizes = pytest.mark.parametrize("size", [2, 4, ordered.CHUNK_KEYS])
"""Chunks of a few values, so that they split and join, and of as many as they have."""


def ordered_table(size: int) -> Table[int, Row]:
    return Table[int, Row](
        "rows",
        Row,
        key=lambda row: row.key,
        indexes={"word": lambda row: row.words, "pair": lambda row: [tuple(word.split("/")) for word in row.words]},
        ordered=("word", "pair"),
        chunk_keys=size,
    )


def expected(rows: dict[int, Row], index: str, start: str) -> list[Any]:
    """The slow and obvious way."""
    words = {word for row in rows.values() for word in row.words}
    values: list[Any] = [word if index == "word" else tuple(word.split("/")) for word in words]
    return sorted(value for value in values if value >= (start if index == "word" else tuple(start.split("/"))))


change = st.builds(Row, st.integers(0, 30), st.sets(st.sampled_from(WORDS), max_size=3).map(tuple))
commits = st.lists(st.lists(st.tuples(st.booleans(), change), max_size=8), max_size=12)


@sizes
@given(commits=commits, start=st.sampled_from(WORDS), index=st.sampled_from(["word", "pair"]), early=st.booleans())
@pytest.mark.slow
def test_what_is_read_from_a_value_on_is_what_a_sorted_list_has(
    size: int, commits: list[list[tuple[bool, Row]]], start: str, index: str, early: bool
) -> None:
    kept = ordered_table(size)
    db, rows, held = Database(kept), dict[int, Row](), []
    low: Any = start if index == "word" else tuple(start.split("/"))
    for commit in commits:
        if early:  # else the index is made at the end, all at once
            held.append((db.snapshot(), expected(rows, index, start)))
            assert values(db.snapshot().lower_bound(kept, index, low), index, low) == held[-1][1]
        with db.write() as txn:
            for put, row in commit:
                if put:
                    txn.put(kept, row)
                    rows[row.key] = row
                else:
                    txn.delete(kept, row.key)
                    rows.pop(row.key, None)
                assert values(txn.lower_bound(kept, index, low), index, low) == expected(rows, index, start)
    assert values(db.snapshot().lower_bound(kept, index, low), index, low) == expected(rows, index, start)
    for snapshot, was in held:
        assert values(snapshot.lower_bound(kept, index, low), index, low) == was


def values(rows: Iterator[Row], index: str, start: Any) -> list[Any]:
    """The values that rows came for, each once, in the order in which they came: a row comes once for each it has."""
    seen: list[Any] = []
    counted: dict[int, list[Any]] = {}
    for row in rows:
        mine: list[Any] = [word if index == "word" else tuple(word.split("/")) for word in sorted(row.words)]
        left = counted.setdefault(row.key, [value for value in mine if value >= start])
        value = left.pop(0)
        if not seen or seen[-1] != value:
            seen.append(value)
    assert not any(counted.values())
    return seen


@sizes
@given(commits=commits)
@pytest.mark.slow
def test_chunks_are_sorted_never_empty_and_not_too_long(size: int, commits: list[list[tuple[bool, Row]]]) -> None:
    chunks: ordered.Chunks = ()
    have: set[int] = set()
    for commit in commits:
        come = {row.key for put, row in commit if put} - have
        removed = {row.key for put, row in commit if not put} & have
        have = have - removed | come
        chunks = ordered.changed(chunks, added=come, removed=removed, chunk_keys=size)
        assert [value for chunk in chunks for value in chunk] == sorted(have)
        assert all(0 < len(chunk) <= size for chunk in chunks)


@sizes
def test_what_a_change_does_not_touch_is_shared(size: int) -> None:
    before = ordered.changed((), added=range(5_000), removed=(), chunk_keys=size)
    after = ordered.changed(before, added=[7_000], removed=(), chunk_keys=size)
    assert before[0] is after[0]
    assert sum(mine is not other for mine, other in zip(before, after, strict=False)) <= 1


@sizes
def test_rows_below_a_prefix_of_text_or_of_a_tuple(size: int) -> None:
    kept = ordered_table(size)
    db = Database(kept)
    with db.write() as txn:
        for key, word in enumerate(reversed(WORDS)):
            txn.put(kept, Row(key, (word,)))
    found = [row.words[0] for row in db.snapshot().prefix(kept, "word", "a/")]
    assert found == ["a/", "a/a", "a/b", "a/ba", "a/c"]
    assert [row.words[0] for row in db.snapshot().prefix(kept, "word", "a/b")] == ["a/b", "a/ba"]
    assert [row.words[0] for row in db.snapshot().prefix(kept, "pair", ("ab",))] == [w for w in WORDS if w[:2] == "ab"]
    assert list(db.snapshot().prefix(kept, "word", "c")) == []
    assert len(list(db.snapshot().prefix(kept, "word", ""))) == len(WORDS)


def test_an_index_that_is_not_ordered_says_so() -> None:
    table = Table[int, Row]("plain", Row, key=lambda row: row.key, indexes={"word": lambda row: row.words})
    with pytest.raises(StateError, match="index 'word' of table 'plain' is not ordered"):
        list(Database(table).snapshot().prefix(table, "word", "a"))
    with pytest.raises(StateError, match="has no index 'no'"):
        Table[int, Row]("other", Row, key=lambda row: row.key, ordered=("no",))
