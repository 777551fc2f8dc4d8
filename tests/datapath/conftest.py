"""A world of its own for each module: a cgroup, a bpffs, and two namespaces joined by a wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bpf_world import World, sweep

from isthmus.datapath import Datapath, cgroup_root, remove


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> None:
    """What test runs that were killed left behind."""
    if cgroup_root() is not None:
        sweep()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("datapath"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def datapath(world: World) -> Iterator[Datapath]:
    """One over empty maps, removed after the test."""
    opened = world.open()
    try:
        yield opened
    finally:
        opened.close()
        remove(world.pin)
