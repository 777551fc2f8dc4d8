"""Links of a lab on a kernel that has netem: packets are delayed as the link specifies, until it is healed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest
from labs.lab_running import lab_name, until

from isthmus_lab import fault_targets, kernel, removal
from isthmus_lab.layout import Lab, Node
from isthmus_lab.network import fabric, impairments, namespaces, netem
from isthmus_lab.network.impairments import Impairments, Link

pytestmark = pytest.mark.netem

DELAY = 2.0
"""Seconds each way: far more than a slow machine takes for a packet."""
PORT = 7000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two clusters of two nodes: their networks alone, without a process."""
    made = Lab(lab_name("w"), 2, 2)
    made.directory.mkdir(parents=True)
    try:
        asyncio.run(fabric.build(made))
        yield made
    finally:
        removal.remove(made)


@pytest.fixture
def linked(lab: Lab) -> Iterator[Lab]:
    """One without links before and after."""
    put(lab)
    yield lab
    put(lab)


def put(lab: Lab, *links: Link) -> None:
    """Write links as `isthmus lab link` does on such a kernel."""
    impairments.write(lab, Impairments(links=links))
    netem.write(lab, Impairments(links=links))


def link(lab: Lab, a: str, b: str, **shape: float) -> Link:
    return Link(fault_targets.parse(lab, a), fault_targets.parse(lab, b), **shape)  # type: ignore[arg-type]


def bound(node: Node) -> socket.socket:
    """A UDP socket in a node's namespace."""
    with kernel.inside(namespaces.path(node.namespace)):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(60)
    made.bind((node.address, PORT))
    return made


def trip(source: Node, target: Node) -> float:
    """Seconds that a datagram takes from one node to the other."""
    with bound(source) as sender, bound(target) as receiver:
        began = time.monotonic()
        sender.sendto(b"x", receiver.getsockname())
        assert receiver.recv(10) == b"x"
        return time.monotonic() - began


def test_this_kernel_has_netem() -> None:
    netem.supported.cache_clear()
    assert netem.supported()


def test_packets_between_clusters_wait_in_each_direction_and_not_when_it_is_healed(linked: Lab) -> None:
    one, two = (cluster.nodes[0] for cluster in linked.clusters)
    put(linked, link(linked, "c1", "c2", delay=DELAY * 1000))
    assert trip(one, two) >= DELAY
    assert trip(two, one) >= DELAY
    put(linked)
    until(lambda: trip(one, two) < DELAY, what="a packet is faster than the delay that was")


def test_packets_of_one_link_wait_and_those_of_another_do_not(linked: Lab) -> None:
    (one, second), (two, _) = (cluster.nodes for cluster in linked.clusters)
    put(linked, link(linked, "c1/n1", "c1/n2", delay=DELAY * 1000))
    assert trip(one, second) >= DELAY
    assert trip(second, one) >= DELAY
    until(lambda: trip(one, two) < DELAY, what="a packet to the other cluster does not wait")


def test_a_narrow_link_takes_as_long_as_its_rate_says(linked: Lab) -> None:
    one, two = (cluster.nodes[0] for cluster in linked.clusters)
    put(linked, link(linked, "c1", "c2", rate=8_000))
    with bound(one) as sender, bound(two) as receiver:
        began = time.monotonic()
        for _ in range(3):
            sender.sendto(bytes(972), receiver.getsockname())  # 1,000 bytes with both headers
        for _ in range(3):
            assert len(receiver.recv(2000)) == 972
        assert time.monotonic() - began >= 2.0, (
            "a thousand bytes a second: three packets, the first of which may go at once"
        )
