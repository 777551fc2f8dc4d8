"""A backend that fails connects is passed over, and tried again by single calls: on a real kernel, under load."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest
from datapath_worlds.bpf_world import Load, World, group, plan, programmed, target
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, SILENT, SILENT6, VIP, VIP6, host
from labs.lab_running import PATIENCE, until

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.clock import BootTime
from isthmus.datapath.failures import codecs
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Ejection
from isthmus.model.names import ServiceName
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

LONG = Ejection(after=3, first=3600.0, longest=3600.0)
"""Longer than a test takes on an emulated machine: when it ends, a call tries the backend again."""


@pytest.fixture
def watch(datapath: Datapath) -> FailureWatch:
    db = Database(tables.BACKENDS, tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS)
    with db.write() as txn:
        for endpoint in (*GOOD, REFUSES, SILENT):
            of = target(endpoint)
            key = BackendKey(ServiceName("demo/echo"), of.cluster, of.address, of.port, of.protocol)
            txn.put(tables.BACKENDS, Backend(key=key, port_names=("",)))
    return FailureWatch(datapath.maps, datapath.state, db, longest=1.0)


def ejected_by_two(watch: FailureWatch, pods: list[Load]) -> bool:
    """Two pods call until they have found it dead."""
    for pod in pods[:2]:
        pod.run(VIP, calls=60)
    return watch.step() == 1


def families(bad: str, bad6: str) -> list[object]:
    return [
        pytest.param(VIP, (*GOOD, bad), id="IPv4"),
        pytest.param(VIP6, (*GOOD6, bad6), id="IPv6"),
    ]


@pytest.mark.parametrize(("vip", "backends"), families(REFUSES, REFUSES6))
@pytest.mark.slow
def test_a_backend_that_refuses_costs_no_more_calls_than_it_takes_to_notice(
    datapath: Datapath, load: Load, vip: str, backends: tuple[str, ...]
) -> None:
    """At most as many as are under way when the threshold is reached; none later."""
    programmed(datapath.target(), plan("echo", vip, group(*backends), ejection=LONG))
    result = load.run(vip, calls=1500, at_once=20, timeout=PATIENCE)
    assert 3 <= result.failed <= 3 + 20, result.ended
    assert set(result.ended) == {"ok", "ECONNREFUSED"}
    second = load.run(vip, calls=600, at_once=20, timeout=PATIENCE)
    assert second.ended == {"ok": 600}
    assert set(second.answered) == set(backends[:2])


@pytest.mark.parametrize(("vip", "backends"), families(SILENT, SILENT6))
@pytest.mark.slow
def test_a_backend_that_is_silent_costs_no_more_calls_than_are_under_way(
    datapath: Datapath, load: Load, vip: str, backends: tuple[str, ...]
) -> None:
    to = datapath.target()
    programmed(to, plan("echo", vip, group(*backends[:2]), ejection=LONG))
    slowest = max(load.run(vip, calls=60, at_once=15, timeout=PATIENCE).times) / 1000
    programmed(to, plan("echo", vip, group(*backends), ejection=LONG))
    result = load.run(vip, calls=600, at_once=15, timeout=max(4.0, 10 * slowest))  # no other call takes that long
    assert 3 <= result.failed <= 15, result.ended
    assert set(result.ended) == {"ok", "timeout while connecting"}
    assert load.run(vip, calls=300, at_once=15, timeout=PATIENCE).ended == {"ok": 300}


def test_failures_are_counted_in_a_row_and_a_success_begins_anew(served: World, datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(REFUSES), ejection=LONG))
    assert load.run(VIP, calls=2).failed == 2
    process = served.serve(REFUSES)
    try:
        assert load.run(VIP, calls=1).failed == 0
    finally:
        process.kill()
        process.wait(60)
    assert load.run(VIP, calls=2).failed == 2
    for name in ("failing", "caller_failing"):
        assert [(row["failures"], row["ejected"]) for row in view.rows(datapath.maps, name)] == [(2, False)]


def test_connects_given_up_before_the_first_syn_is_repeated_count_as_silent(datapath: Datapath, load: Load) -> None:
    """Clients of memcached, nginx and Redis wait 50 to 150 ms."""
    programmed(datapath.target(), plan("echo", VIP, group(SILENT), group(GOOD[0], tier=1), ejection=LONG))
    assert load.run(VIP, calls=3, timeout=0.1).ended == {"timeout while connecting": 3}
    [row] = view.rows(datapath.maps, "caller_failing")
    assert (row["backend"], row["ejected"], row["reason"]) == (f"{SILENT}/TCP", True, "silent")
    assert load.run(VIP, calls=20, timeout=PATIENCE).answered == {GOOD[0]: 20}


def test_a_connect_given_up_within_three_round_trips_is_no_failure_and_stays_the_trial(
    datapath: Datapath, load: Load
) -> None:
    """It says nothing of the backend, which the next caller with such a time-out would try as much in vain."""
    times = Ejection(after=1, first=0.2, longest=0.2)
    programmed(datapath.target(), plan("echo", VIP, group(SILENT), ejection=times))
    assert load.run(VIP, calls=1, timeout=0.1).failed == 1
    [before] = view.rows(datapath.maps, "caller_failing")
    [(cluster, _)] = datapath.maps.items("clusters")
    assert datapath.maps.put("round_trips", [(cluster, (10_000_000).to_bytes(4, "little"))]) == {}
    time.sleep(0.5)
    assert load.run(VIP, calls=1, timeout=0.1).failed == 1
    [after] = view.rows(datapath.maps, "caller_failing")
    assert (before["failures"], after["failures"]) == (1, 1)
    [(_, value)] = datapath.maps.items("caller_failing")
    assert codecs.CALLER_FAILING.named(value)["trial"] != 0


def test_calls_go_to_the_next_tier_when_all_of_the_first_are_ejected(datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=LONG))
    assert load.run(VIP, calls=20).ended == {"ECONNREFUSED": 3, "ok": 17}


def test_when_all_are_ejected_all_are_called(datapath: Datapath, load: Load) -> None:
    """Panic: a failing backend is better than none."""
    programmed(datapath.target(), plan("echo", VIP, group(REFUSES, SILENT), ejection=LONG))
    load.run(VIP, calls=60, at_once=6, timeout=0.5)
    assert {row["backend"]: row["ejected"] for row in view.rows(datapath.maps, "caller_failing")} == {
        f"{REFUSES}/TCP": True,
        f"{SILENT}/TCP": True,
    }
    assert load.run(VIP, calls=20, at_once=4, timeout=0.5).failed == 20
    assert {row["verdict"] for row in datapath.counters()} - {"ejected"} == {"called", "failed"}


def test_a_single_call_tries_it_again_and_success_brings_it_back(
    served: World, datapath: Datapath, pods: list[Load], watch: FailureWatch
) -> None:
    times = Ejection(after=3, first=0.3, longest=0.3)
    programmed(datapath.target(), plan("echo", VIP, group(GOOD[0], REFUSES), ejection=times))
    until(partial(ejected_by_two, watch, pods), what="it is ejected for all")
    load = pods[0]
    result = load.run(VIP, calls=30, at_once=10, pause=0.05)  # each window of 0.3 s lets one call through
    assert result.failed <= 3, result.ended
    process = served.serve(REFUSES)
    try:
        load.run(VIP, calls=40, at_once=2, pause=0.05)
        assert load.run(VIP, calls=100).answered.keys() == {GOOD[0], REFUSES}
    finally:
        process.kill()
        process.wait(60)
    assert watch.step() == 0
    maps = ("failing", "caller_failing")
    assert not any(row["ejected"] for name in maps for row in view.rows(datapath.maps, name))


def test_the_time_is_raised_once_for_a_window_however_many_calls_fail_late(datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(SILENT), ejection=LONG))
    load.run(VIP, calls=60, at_once=60, timeout=3.0)
    assert [(row["failures"], row["level"]) for row in view.rows(datapath.maps, "caller_failing")] == [(60, 1)]


def test_a_client_with_affinity_is_moved_and_then_stays(datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(*GOOD, REFUSES), affinity=600, ejection=LONG))
    for _ in range(30):
        datapath.maps.drop("affinity", [key for key, _ in datapath.maps.items("affinity")])
        load.run(VIP, calls=1)
    assert [row["ejected"] for row in view.rows(datapath.maps, "caller_failing")] == [True]
    assert len(load.run(VIP, calls=30).answered) == 1


def test_a_caller_whose_backend_of_a_ring_is_ejected_stays_with_one_other(datapath: Datapath, load: Load) -> None:
    tiers = group(REFUSES), group(*GOOD, tier=1)
    programmed(datapath.target(), plan("echo", VIP, *tiers, consistent=True, ejection=LONG))
    load.run(VIP, calls=10, at_once=1)
    result = load.run(VIP, calls=40)
    assert result.ended == {"ok": 40}
    assert len(result.answered) == 1


def test_never_means_never(datapath: Datapath, load: Load) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(GOOD[0], REFUSES), ejection=Ejection(after=0)))
    result = load.run(VIP, calls=200)
    assert result.ended["ECONNREFUSED"] > 50
    assert view.rows(datapath.maps, "failing") == []


def test_an_ejected_backend_is_shown_with_why_and_until_when(
    datapath: Datapath, pods: list[Load], watch: FailureWatch
) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(GOOD[0], REFUSES), ejection=LONG))
    began = time.time()
    assert ejected_by_two(watch, pods)
    [row] = watch._db.snapshot().all(tables.FAILURES)
    assert (row.key.address, row.reason) == (host(REFUSES), "refused")
    assert row.failures >= 3
    assert "refused" in row.error
    assert began - 5 < row.since < time.time() + 5, "Unix time"
    assert row.until - row.since == pytest.approx(LONG.first, abs=1)


def test_times_of_an_ejection_follow_a_clock_that_is_set(
    datapath: Datapath, pods: list[Load], watch: FailureWatch
) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(GOOD[0], REFUSES), ejection=LONG))
    assert ejected_by_two(watch, pods)
    [before] = watch._db.snapshot().all(tables.FAILURES)
    watch._boot = BootTime(wall=lambda: time.time() + 3600)
    watch.step()
    [after] = watch._db.snapshot().all(tables.FAILURES)
    assert (after.since, after.until) == pytest.approx((before.since + 3600, before.until + 3600), abs=1)


def test_entries_of_backends_that_have_gone_are_deleted_and_connects_look_no_more(
    datapath: Datapath, load: Load, watch: FailureWatch
) -> None:
    to = datapath.target()
    programmed(to, plan("echo", VIP, group(GOOD[0], REFUSES), ejection=LONG))
    load.run(VIP, calls=40)
    assert list(datapath.maps.items("gates")) != list(datapath.maps.items("settled"))
    programmed(to, plan("echo", VIP, group(GOOD[0]), ejection=LONG))
    assert watch.step() == 0
    for name in ("failing", "caller_failing", "trials"):
        assert view.rows(datapath.maps, name) == []
    assert list(datapath.maps.items("gates")) == list(datapath.maps.items("settled"))


def time_out(world: World) -> int:
    """Milliseconds after which the SYN of the one connect is sent again, at first; each time may double them."""

    def shown() -> re.Match[str] | None:
        return re.search(r" rto:(\d+)", " ".join(world.sockets("-i", "state", "syn-sent", namespace=world.client)))

    found = int(until(shown, what="a connect that waits")[1])
    return next(first for first in (200, 1000, 1200) if found in (first << doubled for doubled in range(7)))


@pytest.mark.slow
def test_the_first_syn_is_sent_again_in_time(world: World, load: Load) -> None:
    """After 200 ms and not after the kernel's second; and a silent backend is counted."""
    for seconds, milliseconds in ((0.2, 200), (0.0, 1000)):
        opened = world.open(syn_timeout=seconds)
        programmed(opened.target(), plan("echo", VIP, group(SILENT)))
        load.start(VIP, calls=1, timeout=4.0)
        assert time_out(world) == milliseconds
        assert load.result().ended == {"timeout while connecting": 1}
        assert len(view.rows(opened.maps, "failing")) == 1
        programmed(opened.target())
        opened.maps.drop("failing", [key for key, _ in opened.maps.items("failing")])
        opened.close()


@pytest.mark.slow
def test_round_trips_bound_the_time_out_from_below(world: World, load: Load) -> None:
    opened = world.open(syn_timeout=0.05)
    programmed(opened.target(), plan("echo", VIP, group(SILENT)), plan("other", "10.96.7.8", group(GOOD[0])))
    load.run("10.96.7.8", calls=5)
    [row] = view.rows(opened.maps, "round_trips")
    assert row["cluster"] == "c1"
    assert 0 < row["microseconds"] < 1_000_000
    [(key, _)] = opened.maps.items("round_trips")
    opened.maps.put("round_trips", [(key, (400_000).to_bytes(4, "little"))])
    load.start(VIP, calls=1, timeout=6.0)
    assert time_out(world) == 1200, "three round trips"
    load.result()
    opened.close()
