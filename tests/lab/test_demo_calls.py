"""Calls that a story makes: when their split is as it was to be, and whom a caller that goes on has reached."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isthmus_lab.demo.calls import Load, Loading, aelsewhere
from isthmus_lab.demo.stage import StepFailed


@pytest.mark.parametrize(
    ("by", "wanted", "elsewhere", "wrong"),
    [
        ({"c1": 855, "c2": 145}, {"c1": 0.9, "c2": 0.1}, 0.0, ""),
        ({"c1": 850, "c2": 150}, {"c1": 0.9, "c2": 0.1}, 0.0, "c1 was to have 90.0%"),
        ({"c1": 9_100, "c2": 900}, {"c1": 0.9, "c2": 0.1}, 0.0, ""),
        ({"c1": 9_200, "c2": 800}, {"c1": 0.9, "c2": 0.1}, 0.0, "c1 was to have 90.0%"),
        ({"c1": 499, "c2": 1}, {"c1": 1.0}, 0.0, "c1 was to have 100.0%"),
        ({"c1": 499, "c2": 1}, {"c1": 1.0}, 0.01, ""),
        ({"c1": 500, "c2": 495, "c3": 5}, {"c1": 0.5, "c2": 0.5}, 0.0, "c3 was to have 0.0%"),
        ({"c1": 1_000}, {"c1": 0.5, "c2": 0.5}, 0.0, "c1 was to have 50.0%"),
    ],
)
def test_a_split_may_be_off_by_what_chance_takes_it_and_no_more(
    by: dict[str, int], wanted: dict[str, float], elsewhere: float, wrong: str
) -> None:
    assert aelsewhere(calls_of(by), wanted, elsewhere=elsewhere) == wrong


async def test_a_caller_that_goes_on_is_followed_until_a_cluster_has_answered() -> None:
    with caller("answered by c2", "answered by c3", "answered by c1") as calls:
        await calls.answered_by("c3")
        await calls.answered_by("c2")
        await calls.answered_by("c1")


async def test_a_caller_that_ends_before_a_cluster_has_answered_fails_the_step_with_what_it_said() -> None:
    failure = pytest.raises(StepFailed, match="no more calls are made: Name or service not known")
    with caller("answered by c2", "Name or service not known") as calls, failure:
        await calls.answered_by("c3")


def calls_of(by: dict[str, int]) -> Load:
    return Load(sum(by.values()), by, [], 0, 0, "", 0.0)


@contextmanager
def caller(*lines: str) -> Iterator[Loading]:
    command = [sys.executable, "-I", "-S", "-c", "import sys; print(sys.argv[1])", "\n".join(lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        yield Loading(child)
