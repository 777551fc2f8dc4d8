"""Every map is full, and those that forget are flooded: calls go on, and only what needs an entry fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from datapath_worlds.bpf_world import BACKENDS, Load, World, group, map_type, no_place_is_free, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, VIP, VIP6

from isthmus.datapath import Datapath, remove
from isthmus.datapath.core import libbpf
from isthmus.datapath.manifest import MAPS
from isthmus.model.balancing import Ejection

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

HASH, PERCPU_HASH, LRU_HASH, LRU_PERCPU_HASH = 1, 5, 9, 10
"""enum bpf_map_type of linux/bpf.h."""
NEVER = Ejection(after=0)
STICKY = "10.96.7.8"


@pytest.fixture
def small(served: World) -> Iterator[Datapath]:
    """Maps for 64 services, rescuing."""
    opened = served.open(max_entries=64)
    try:
        with served.on_link(opened):
            yield opened
    finally:
        opened.close()
        remove(served.pin)


def of_types(datapath: Datapath, *types: int) -> list[str]:
    return [name for name in MAPS if map_type(datapath.maps.fd(name)) in types]


def junk(datapath: Datapath, name: str, factor: int = 1) -> list[tuple[bytes, bytes]]:
    """Entries for keys that nothing has: one more than there is room for, or many times as many."""
    fd = datapath.maps.fd(name)
    key, value, room = libbpf.map_info(fd)
    if map_type(fd) in (PERCPU_HASH, LRU_PERCPU_HASH):
        value = (value + 7) // 8 * 8 * (os.cpu_count() or 1)
    return [(((0xF000_0000 + n).to_bytes(4, "big") * 64)[:key], bytes(value)) for n in range(factor * room + 1)]


@contextmanager
def everything_is_full(datapath: Datapath) -> Iterator[None]:
    """All maps that refuse another entry do."""
    ours = {name: junk(datapath, name) for name in of_types(datapath, HASH, PERCPU_HASH)}
    for name, entries in ours.items():
        refused = datapath.maps.put(name, entries).values()
        assert refused, name
        assert all(f"map {name} is full" in why for why in refused)
    with no_place_is_free(datapath):
        yield
    for name, entries in ours.items():
        datapath.maps.drop(name, [key for key, _ in entries])


def test_calls_go_on_while_every_map_is_full(small: Datapath, served: World, load: Load) -> None:
    udp = group(*BACKENDS[:3], protocol="UDP")
    rows = [
        plan("echo", VIP, group(*GOOD)),
        plan("echo", VIP6, group(*GOOD6)),
        plan("echo", VIP, udp, protocol="UDP"),
        plan("sticky", STICKY, group(*GOOD), affinity=600),
        plan("dying", "10.96.7.9", group(*GOOD, REFUSES), ejection=NEVER),
    ]
    programmed(small.target(), *rows)
    with everything_is_full(small):
        for vip in (VIP, VIP6, STICKY):
            assert load.run(vip, calls=200, at_once=10).ended == {"ok": 200}
        assert all("answer" in served.caller.udp(VIP) for _ in range(20))
        assert len(load.run(STICKY, calls=50, at_once=5).answered) == 1, "that map forgets, and refuses nobody"
        not_moved = load.run("10.96.7.9", calls=60, at_once=5)
        assert set(not_moved.ended) == {"ok", "ECONNREFUSED"}, "no room to move a call: it fails as without us"
    assert load.run("10.96.7.9", calls=60, at_once=5).ended == {"ok": 60}


@pytest.mark.slow
def test_calls_go_on_while_what_forgets_is_flooded(small: Datapath, served: World, load: Load) -> None:
    """Each flood is twenty times what the map has room for, again and again while calls are made."""
    programmed(small.target(), plan("sticky", STICKY, group(*GOOD), affinity=600))
    floods = {name: junk(small, name, 20) for name in of_types(small, LRU_HASH, LRU_PERCPU_HASH)}
    assert "affinity" in floods
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            for name, entries in floods.items():
                small.maps.put(name, entries)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        assert load.run(STICKY, calls=500, at_once=10).ended == {"ok": 500}
    finally:
        over.set()
        flooding.join()
    assert load.run(STICKY, calls=1).ended == {"ok": 1}
    assert len(load.run(STICKY, calls=50, at_once=5).answered) == 1, "and it is kept again"
