"""Ctrl-C at any moment of a wait for rows is a KeyboardInterrupt, which commands end at with 0."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from isthmus.cli import arrivals, follow
from isthmus.cli.arrivals import Arrivals

WAITS = {module.__file__ for module in (queue, threading, arrivals, follow)}

LINES = 60
"""More than any such wait has."""


def interrupted(line: int, wait: Callable[[], Any]) -> BaseException | None:
    """How a wait ends that is interrupted before its n-th line of Python; ``None`` if it has fewer."""
    lines = itertools.count(1)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in WAITS:
            return None
        if event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        wait()
    except BaseException as error:
        return error
    finally:
        sys.settrace(before)
    return None


def wait(items: Arrivals[Any], period: float | None) -> None:
    list(follow._arriving(items, period))


@pytest.mark.parametrize("period", [None, 0.001])
def test_an_interrupt_at_any_line_of_a_wait_is_no_other_error(period: float | None) -> None:
    ends: set[type[BaseException] | None] = set()
    for line in range(1, LINES):
        items = Arrivals[Any](1)
        later = threading.Timer(0.0 if period else 0.002, items.put, [("plans", "a line")])
        later.start()
        error = interrupted(line, partial(wait, items, period))
        later.join()
        ends.add(type(error) if error is not None else None)
    assert ends == {KeyboardInterrupt, None}, "None: the wait has fewer lines"


def test_no_more_arrives_than_is_read() -> None:
    items = Arrivals[int](2)

    def read() -> None:
        for number in range(4):
            items.put(number)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert [items.get(), items.get()] == [0, 1]
    reader.join()
    blocked = threading.Thread(target=items.put, args=(4,), daemon=True)
    blocked.start()
    blocked.join(0.05)
    assert blocked.is_alive()
    assert [items.get() for _ in range(3)] == [2, 3, 4]
    blocked.join()
    with pytest.raises(queue.Empty):
        items.get(timeout=0.001)


def test_a_wait_whose_time_ends_while_it_begins_ends() -> None:
    """``SimpleQueue.get(timeout=…)`` of CPython 3.11 never ended if its time was over at once: once in 1,000 here."""

    def read() -> None:
        for _ in range(4_000):
            with suppress(queue.Empty):
                Arrivals[int](1).get(timeout=1e-9)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(30)
    assert not reader.is_alive()
