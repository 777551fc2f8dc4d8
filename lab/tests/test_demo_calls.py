"""Calls that a story makes: when their split matches the policy, and which backends a running caller has reached."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isthmus_lab.demo.calls import Load, Loading, aelsewhere, total
from isthmus_lab.demo.stage import Call, StepFailed
from isthmus_lab.demo.steps import unharmed
from isthmus_lab.own_programs import ON_HOST


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


def test_failed_connects_and_lost_answers_are_counted_apart_and_only_answers_may_be_lost() -> None:
    answered, lost = Call(at=0.0, took=0.0, ok=True), Call(at=0.0, took=0.0, ok=False, failed="answer")
    refused = Call(at=0.0, took=0.0, ok=False, failed="connect", error="ConnectionRefusedError")
    unknown = Call(at=0.0, took=0.0, ok=False, failed="name", error="gaierror")

    assert unharmed([answered, lost, lost], rescued=True) == "3 calls, 0 failed connects, 2 lost answers"
    for failed in (refused, unknown):
        with pytest.raises(StepFailed, match=f"1 failed connects, 1 lost answers; the first .*{failed.error}"):
            unharmed([answered, lost, failed], rescued=True)
    assert unharmed([answered, refused], rescued=False) == "2 calls, 1 failed connects, 0 lost answers"


def test_calls_of_several_callers_are_one_load() -> None:
    one = Load(10, {"c1": 9}, ["c1"], 0, 1, "answer: reset", 0.2)
    assert total([calls_of({"c1": 1, "c2": 2}), one]) == Load(
        13, {"c1": 10, "c2": 2}, ["c1"], 0, 1, "answer: reset", 0.2
    )


def test_the_caller_tells_a_connect_that_is_refused_from_an_answer_that_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = ("127.0.0.1", str(server.getsockname()[1]))
        child = subprocess.Popen(ON_HOST.command("caller.py", *words), stdout=subprocess.PIPE)
        server.accept()[0].close()
        assert child.communicate(timeout=60)[0].count(b'"failed": "answer"') == 1
    done = subprocess.run(ON_HOST.command("caller.py", *words), capture_output=True, timeout=60, check=False)
    assert done.stdout.count(b'"failed": "connect"') == 1
    none = subprocess.run(ON_HOST.command("caller.py", "a..b", "80"), capture_output=True, timeout=60, check=False)
    assert none.stdout.count(b'"failed": "name"') == 1


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
