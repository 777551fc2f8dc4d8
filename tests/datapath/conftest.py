"""A world of its own for each module: a cgroup, a bpffs, and two namespaces joined by a wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import Load, World, sweep
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, host

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
def datapath(world: World, request: pytest.FixtureRequest) -> Iterator[Datapath]:
    """One over empty maps: the module's, or under the marker ``own_datapath`` one that is removed after the test."""
    if not request.node.get_closest_marker("own_datapath"):
        with world.shared() as shared:
            yield shared
        return
    opened = world.open()
    try:
        yield opened
    finally:
        opened.close()
        remove(world.pin)


@pytest.fixture(scope="module")
def served(world: World) -> World:
    """One whose answering and refusing endpoints have addresses, and those that answer a server."""
    world.address("add", *map(host, (*GOOD, *GOOD6, REFUSES, REFUSES6)))
    world.serve(*GOOD, *GOOD6)
    return world


@pytest.fixture(scope="module")
def load(served: World) -> Load:
    """Many callers at once, in the cgroup of the programs."""
    return served.load_from(served.cgroup)


@pytest.fixture(scope="module")
def namespaces(served: World) -> tuple[str, str, str]:
    """Network namespaces of three pods, on the links ``eth0``, ``p1`` and ``p2`` of the node."""
    return served.client, served.pod(1), served.pod(2)


@pytest.fixture(scope="module")
def pods(served: World, namespaces: tuple[str, str, str]) -> list[Load]:
    """Three pods: each has a network namespace, a cgroup and a link to the node."""
    return [served.load_from(served.cgroup / f"pod{n}", namespace=name) for n, name in enumerate(namespaces)]


@pytest.fixture
def rescuing(served: World, datapath: Datapath) -> Iterator[Datapath]:
    """One whose programs are on the node's end of the pod's link."""
    with served.on_link(datapath):
        yield datapath
