"""Which socket load balancer decides: ours on the pods' cgroup, or another one on a cgroup above, as Cilium's is.

The other one is a second datapath of ours: it translates connects, datagrams and their replies in the same hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, group, plan, programmed

from isthmus.datapath import Datapath, remove
from isthmus.model.balancing import Plan
from isthmus.model.services import Protocol

SHARED, THEIRS = "10.96.7.1", "10.96.7.2"
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP")

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]


def plans(name: str, address: str, backend: str) -> list[Plan]:
    return [plan(name, address, group(backend, protocol=each), protocol=each) for each in PROTOCOLS]


@pytest.fixture
def pods(world: World) -> Path:
    """Cgroup of all pods of the node; the world's own is that of the node."""
    path = world.cgroup / "pods"
    path.mkdir()
    return path


@pytest.fixture
def ours(world: World, pods: Path) -> Iterator[Datapath]:
    """Ours, below another one that has backends of its own for the address that both know."""
    pin = f"{world.bpffs}/above"
    above, below = world.open(pin=pin), world.open(cgroup=str(pods))
    try:
        programmed(above.target(), *plans("shared", SHARED, BACKENDS[0]), *plans("theirs", THEIRS, BACKENDS[2]))
        programmed(below.target(), *plans("shared", SHARED, BACKENDS[1]))
        yield below
    finally:
        for opened in (below, above):
            opened.close()
        for where in (world.pin, pin):
            remove(where)


def test_ours_decides_and_the_one_above_keeps_the_services_that_we_do_not_have(
    world: World, ours: Datapath, pods: Path
) -> None:
    caller = world.call_from(pods / "a")
    for address, backend in ((SHARED, BACKENDS[1]), (THEIRS, BACKENDS[2])):
        called = caller.tcp(address)
        assert (called["answer"].split()[0], called["peer"]) == (backend, f"{address}:80")
        for connected in (False, True):
            asked = caller.udp(address, connected=connected)
            assert (asked["answer"].split()[0], asked["from"]) == (backend, f"{address}:80")
    ours.repair()
    assert ours.rival == "", "it is no second agent: that would be on the same cgroup"
