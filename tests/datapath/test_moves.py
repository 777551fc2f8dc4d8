"""Which slots of a large group are written so that it holds other backends, change after change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.datapath.services import moves
from isthmus.datapath.services.moves import Many
from isthmus.model.chunked import Chunked

NOTHING: Chunked[int] = Chunked([])
"""Targets, of which an edit needs none."""


@pytest.fixture(autouse=True, scope="module")
def groups_around_what_is_scanned() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "MAX_SCANNED", 12)
        patch.setattr(moves, "MAX_SCANS", 3)
        yield


@given(st.sets(st.integers(0, 30), min_size=1), st.lists(st.sets(st.integers(0, 30), max_size=4), max_size=8))
def test_a_group_holds_what_it_is_to_hold_after_as_many_writes_as_there_are_changes(
    first: set[int], turned: list[set[int]]
) -> None:
    group, held = Many([*first], NOTHING), set(first)  # type: ignore[arg-type]  # numbers stand for targets
    slots = dict(enumerate(group))
    for turn in turned:
        gone, come = held & turn, turn - held
        held ^= turn
        edit = group.edit([*gone], [*come], NOTHING)  # type: ignore[arg-type]
        assert len(edit.writes) <= max(len(gone), len(come))
        group.apply(edit)
        slots.update(edit.writes)
        assert [slots[n] for n in range(edit.size)] == list(group)
        assert sorted(group) == sorted(held)
        assert [each in group for each in range(31)] == [each in held for each in range(31)]
