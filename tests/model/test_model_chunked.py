"""Large sorted sequences are what sorted tuples are, whatever changes led to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows.small_chunks import small_chunks

from isthmus.model import chunked
from isthmus.model.chunked import Chunked, changed, difference, sequence

ITEMS = st.sets(st.integers(0, 60), max_size=40)


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    """Few items are many here."""
    with small_chunks(chunk=4, small=6):
        yield


@given(ITEMS, st.lists(ITEMS, max_size=6))
def test_any_changes_lead_to_the_sorted_items(first: set[int], versions: list[set[int]]) -> None:
    start = present = sequence(sorted(first))
    items = first
    for wanted in versions:
        before = present
        present = changed(present, removed=items - wanted, added=wanted - items)
        assert tuple(present) == tuple(sorted(wanted))
        assert len(present) == len(wanted)
        assert [item in present for item in range(61)] == [item in wanted for item in range(61)]
        removed, added = difference(before, present)
        assert (sorted(removed), sorted(added)) == (sorted(items - wanted), sorted(wanted - items))
        removed, added = difference(start, present)  # several changes ago
        assert (sorted(removed), sorted(added)) == (sorted(first - wanted), sorted(wanted - first))
        assert (before == present) == (items == wanted)
        if isinstance(present, Chunked):
            assert all(present.chunks)
            assert all(len(chunk) < 2 * chunked.CHUNK for chunk in present.chunks)
            assert present == sequence(sorted(wanted))
            assert tuple(sorted(wanted)) == present
            assert hash(present) == hash(tuple(sorted(wanted)))
        items = wanted


def test_a_change_leaves_the_other_chunks_the_same_objects() -> None:
    before = sequence(range(0, 80, 2))
    after = changed(before, removed={40}, added={41})
    assert isinstance(before, Chunked)
    assert isinstance(after, Chunked)
    shared = {id(chunk) for chunk in before.chunks} & {id(chunk) for chunk in after.chunks}
    assert len(shared) == len(before.chunks) - 1


def test_a_sequence_keeps_the_one_that_it_was_made_of_and_none_before_it() -> None:
    before = sequence(range(0, 80, 2))
    after = changed(before, removed={40}, added={41})
    later = changed(after, removed={42}, added=set())
    assert isinstance(after, Chunked)
    assert isinstance(later, Chunked)
    assert (after.step, later.step) == (None, (after, [42], []))


def test_equal_items_that_are_other_objects_are_no_difference() -> None:
    one, other = (sequence([f"{n:03}" + "" for n in range(20)]) for _ in range(2))
    assert one == other
    assert difference(one, other) == ([], [])
    assert one[3] == "003"
    assert one[18:] == ("018", "019")
