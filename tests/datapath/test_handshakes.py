"""The time after which a connect is moved follows from the measured handshakes of each backend."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import Load, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, SILENT, VIP
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.datapath.core import libbpf
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.services.codecs import BACKEND
from isthmus.datapath.settings import CONFIG, CONFIG_MEASURED, HZ
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
MILLISECOND = 10**6
SLOW = "10.8.2.1:8080"
DELAY = 0.03
"""Seconds each way."""


@pytest.fixture
def datapath(datapath: Datapath) -> Iterator[Datapath]:
    """A datapath with ``syn_timeout = "auto"``."""
    [(key, before)] = datapath.maps.items("config")
    raw = CONFIG.named(before)
    changed = CONFIG.encode(**raw | {"flags": raw["flags"] | CONFIG_MEASURED})
    assert datapath.maps.put("config", [(key, changed)]) == {}
    yield datapath
    assert datapath.maps.put("config", [(key, before)]) == {}


@pytest.fixture(scope="module")
def slow(served: World) -> str:
    served.slow_servers(DELAY, SLOW)
    return SLOW


def measured(datapath: Datapath, *, smoothed: int, deviation: int) -> None:
    """Write the times of handshakes with every backend (ns)."""
    known = [
        (key, codecs.HANDSHAKE.pack(BACKEND.named(value)["generation"], smoothed, deviation, 0))
        for key, value in datapath.maps.items("backends")
    ]
    assert datapath.maps.put("handshakes", known) == {}


def cluster_measured(datapath: Datapath, microseconds: int) -> None:
    """Write the round trip to every cluster."""
    keys = [key for key, _ in datapath.maps.items("clusters")]
    assert datapath.maps.put("round_trips", [(key, ID.pack(microseconds)) for key in keys]) == {}


def time_out(world: World) -> int:
    """Milliseconds after which the first SYN of the one connect is sent again, or that time doubled."""

    def shown() -> re.Match[str] | None:
        return re.search(r" rto:(\d+)", " ".join(world.sockets("-i", "state", "syn-sent", namespace=world.client)))

    return int(until(shown, what="a connect that waits")[1])


@pytest.mark.parametrize(
    ("smoothed", "deviation", "cluster", "expected"),
    [
        pytest.param(1 * MILLISECOND, MILLISECOND // 4, 1_000, 20, id="near: the least there is"),
        pytest.param(60 * MILLISECOND, 5 * MILLISECOND, 1_000, 80 + 1000 // HZ, id="far: its own"),
        pytest.param(1 * MILLISECOND, MILLISECOND // 4, 50_000, 150, id="near, in a far cluster: three round trips"),
        pytest.param(0, 0, 1_000, 100, id="of a cluster with others: the least for one unknown"),
        pytest.param(0, 0, 0, 200, id="nothing is known"),
    ],
)
def test_a_syn_is_sent_again_as_handshakes_with_its_backend_allow(
    datapath: Datapath, world: World, load: Load, smoothed: int, deviation: int, cluster: int, expected: int
) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(SILENT), ejection=NEVER))
    if smoothed:
        measured(datapath, smoothed=smoothed, deviation=deviation)
    cluster_measured(datapath, cluster)
    load.start(VIP, calls=1, timeout=0.5)
    found = time_out(world)
    load.result()
    assert found in {-(-expected * HZ // 1000) * (1000 // HZ) << doubled for doubled in range(7)}


def test_handshakes_are_measured_by_backend(datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(*GOOD)))
    load.run(VIP, calls=30)
    rows = view.rows(datapath.maps, "handshakes")
    assert {row["backend"] for row in rows} == {f"{each}/TCP" for each in GOOD}
    assert all(0 < row["microseconds"] < 1_000_000 for row in rows)


def test_a_far_backend_beside_near_ones_keeps_its_share(rescuing: Datapath, load: Load, slow: str) -> None:
    """At 60 ms it is slower than the least time-out. Measurements of near backends give it 100 ms, later its own do."""
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0], slow), ejection=Ejection()))
    cluster_measured(rescuing, 1_000)
    assert load.run(VIP, calls=12, at_once=4).ended == {"ok": 12}
    answered = Counter(load.run(VIP, calls=60, at_once=6).answered)
    assert 12 < answered[slow] < 48
    [row] = [row for row in view.rows(rescuing.maps, "handshakes") if row["backend"] == f"{slow}/TCP"]
    assert row["microseconds"] > 50_000


def test_a_backend_that_became_slower_is_measured_by_its_late_answers(
    rescuing: Datapath, load: Load, slow: str
) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(slow), group(GOOD[0], tier=1), ejection=Ejection()))
    measured(rescuing, smoothed=MILLISECOND, deviation=0)
    cluster_measured(rescuing, 1_000)
    for _ in range(20):
        assert load.run(VIP, calls=2).ended == {"ok": 2}
        if load.run(VIP, calls=1).answered == {slow: 1}:
            return
    pytest.fail("it is still left before it answers")


@pytest.fixture
def silent(rescuing: Datapath) -> Datapath:
    """The first choice of each call is silent, and its earlier handshakes took 1 ms."""
    programmed(rescuing.target(), plan("echo", VIP, group(SILENT), group(GOOD[0], tier=1), ejection=NEVER))
    measured(rescuing, smoothed=MILLISECOND, deviation=0)
    cluster_measured(rescuing, 1_000)
    return rescuing


def test_moves_before_the_time_that_nothing_is_known_are_bounded(silent: Datapath, load: Load) -> None:
    """All calls that meet it are moved in the end; beyond the bound they wait for that time."""
    cpus = os.cpu_count() or 1
    result = load.run(VIP, calls=100 * cpus, at_once=100 * cpus)
    assert result.answered == {GOOD[0]: 100 * cpus}
    size = codecs.EARLY_MOVES.size
    raw = libbpf.lookup(silent.maps.fd("early_moves"), ID.pack(0), size * libbpf.possible_cpus())
    moves = [codecs.EARLY_MOVES.named(raw[at : at + size])["moves"] for at in range(0, len(raw), size)]
    assert max(moves) <= 20
    assert sum(moves) > 0


@pytest.mark.failover
def test_a_silent_backend_that_was_measured_costs_little_more_than_the_least_time_out(
    rescuing: Datapath, load: Load
) -> None:
    """One of three, with ejection, in rounds of calls; asserts times: in `make test-failover`, not in `make test`."""
    times = list[float]()
    for n in range(10):
        programmed(rescuing.target(), plan(f"echo{n}", VIP, group(*GOOD, SILENT), ejection=Ejection()))
        measured(rescuing, smoothed=MILLISECOND, deviation=0)
        cluster_measured(rescuing, 1_000)
        result = load.run(VIP, calls=60, at_once=6)
        assert result.ended == {"ok": 60}
        times += result.times
    times.sort()
    print(f"p50 {times[300]:.1f}, p99 {times[593]:.1f}, slowest {times[-1]:.1f} ms; {sum(t > 19 for t in times)} moved")
    assert times[593] < 100
