"""How often an object that another writer keeps changing is set right."""

from __future__ import annotations

from itertools import pairwise

from isthmus.desired.contention import CORRECTIONS_AT_ONCE, FORGET, LONGEST_PAUSE, Contention


def corrected_at(seconds: int) -> list[int]:
    """When corrections are made of an object that changes every second."""
    contention, made = Contention(), []
    for now in range(seconds):
        if contention.wait("a", now=now) == 0:
            contention.corrected("a", now=now)
            made.append(now)
    return made


def test_the_first_corrections_are_made_at_once_and_the_rest_ever_more_rarely() -> None:
    made = corrected_at(600)
    assert made[:CORRECTIONS_AT_ONCE] == list(range(CORRECTIONS_AT_ONCE))
    pauses = [later - earlier for earlier, later in pairwise(made)][CORRECTIONS_AT_ONCE - 1 :]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_a_day_of_it_costs_a_bounded_number_of_writes() -> None:
    assert len(corrected_at(86_400)) <= 12 + 86_400 / LONGEST_PAUSE


def test_an_object_left_alone_for_long_is_set_right_at_once_again() -> None:
    contention = Contention()
    for _ in range(CORRECTIONS_AT_ONCE):
        contention.corrected("a", now=0)
    assert contention.wait("a", now=0) > 0
    assert contention.wait("a", now=FORGET) == 0


def test_objects_are_counted_apart_and_forgotten() -> None:
    contention = Contention()
    for _ in range(CORRECTIONS_AT_ONCE):
        contention.corrected("a", now=0)
    assert contention.wait("b", now=0) == 0
    contention.corrected("b", now=FORGET)
    assert repr(contention) == "<Contention: 4 corrections, 1 objects>"
