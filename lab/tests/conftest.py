"""Labs for tests: small ones, under names of their own, gone afterwards whatever happened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> None:
    """Labs of test runs that were killed: their process is gone, and with it whoever would take them down."""
    for name in removal.names():
        if (found := re.fullmatch(r"t(\d+)[a-z]+", name)) and not Path(f"/proc/{found[1]}").exists():
            removal.remove(Lab(name))


@pytest.fixture
def spare() -> Iterator[Running]:
    """A lab that is not up yet."""
    lab = Lab(lab_name("s"), 1, 1)
    yield Running(lab)
    removal.remove(lab)


@pytest.fixture(scope="module")
def clusters() -> Iterator[Running]:
    """A lab of one cluster with two nodes and nothing of Isthmus in it, shared by the tests of a file."""
    running = Running(Lab(lab_name("m"), 1, 2))
    try:
        running.cli("up", "--clusters", "1", "--nodes", "2", "--without-isthmus")
        yield running
    finally:
        removal.remove(running.lab)
