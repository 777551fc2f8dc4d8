"""Backends slower than the first time-out: the first that answers is the peer; the other's answer changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from bpf_world import Load, World, group, plan, programmed
from lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

VIP, VIP6 = "10.96.7.7", "fd00:96::7"
SLOW = ("10.8.2.1:8080", "10.8.2.2:8080", "10.8.2.3:8080")
SLOW6 = ("[fd00:8::21]:8080", "[fd00:8::22]:8080", "[fd00:8::23]:8080")
DELAY = 0.06
"""Seconds each way, with a first time-out of 50 ms: each connect is moved at least once before its first answer."""
NEVER = Ejection(after=0)


@pytest.fixture(scope="module")
def load(world: World) -> Load:
    world.slow_servers(DELAY, *SLOW, *SLOW6)
    return world.load_from(world.cgroup)


@pytest.fixture
def rescuing(world: World) -> Iterator[Datapath]:
    opened = world.open(syn_timeout=0.05)
    for key, _ in opened.maps.items("round_trips"):
        opened.maps.drop("round_trips", [key])
    with world.on_link(opened):
        yield opened
    opened.close()


@pytest.mark.parametrize(("vip", "backends"), [(VIP, SLOW), (VIP6, SLOW6)], ids=["IPv4", "IPv6"])
def test_every_call_is_intact_although_every_backend_is_slower_than_the_time_out(
    rescuing: Datapath, load: Load, vip: str, backends: tuple[str, ...]
) -> None:
    moved = 0
    for n in range(12):
        rescuing.maps.drop("round_trips", [key for key, _ in rescuing.maps.items("round_trips")])
        programmed(rescuing.target(), plan(f"echo{n}", vip, group(*backends), ejection=NEVER))
        load.start(vip, calls=10, at_once=10, bytes=20_000, timeout=10.0)
        looking = time.monotonic() + 0.5
        seen: set[object] = set()
        while time.monotonic() < looking:
            seen |= {row["pod"] for row in view.rows(rescuing.maps, "flows")}
        assert load.result().ended == {"ok": 10}
        moved += len(seen)
    assert moved > 20, "connects were not moved: this test has shown nothing"
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")
