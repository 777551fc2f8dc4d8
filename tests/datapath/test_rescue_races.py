"""Backends slower than the first time-out: the first that answers is the peer; the other's late answer counts as its
success, and ends its half-open connection."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from datapath_worlds.bpf_world import Load, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, SILENT
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.datapath.failures import codecs
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

VIP, VIP6 = "10.96.7.7", "fd00:96::7"
SLOW = ("10.8.2.1:8080", "10.8.2.2:8080", "10.8.2.3:8080")
SLOW6 = ("[fd00:8::21]:8080", "[fd00:8::22]:8080", "[fd00:8::23]:8080")
DELAY = 0.06
"""Seconds each way, with a first time-out of 50 ms: each connect is moved at least once before its first answer."""
NEVER = Ejection(after=0)


@pytest.fixture(scope="module", autouse=True)
def slow(served: World) -> None:
    served.slow_servers(DELAY, *SLOW, *SLOW6)


@contextmanager
def waiting(world: World, seconds: float) -> Iterator[Datapath]:
    """A datapath that rescues after this many seconds, without measurements, failures and late answers."""
    opened = world.open(syn_timeout=seconds)
    for name in ("round_trips", "failing", "caller_failing", "unanswered"):
        opened.maps.drop(name, [key for key, _ in opened.maps.items(name)])
    with world.on_link(opened):
        yield opened
    opened.close()


@pytest.fixture
def rescuing(world: World) -> Iterator[Datapath]:
    with waiting(world, 0.05) as opened:
        yield opened


@pytest.mark.parametrize(("vip", "backends"), [(VIP, SLOW), (VIP6, SLOW6)], ids=["IPv4", "IPv6"])
@pytest.mark.slow
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


def test_an_acknowledgement_of_an_earlier_connection_between_the_moved_syn_and_its_answer_changes_nothing(
    world: World,
) -> None:
    """It marks the connection as one whose SYN may have been wasted. Where the answer that came then did not count for
    more, the connect was taken for unsent, and its packets went to the first choice from there on."""
    port = 30777
    caller = world.call_from(world.cgroup)
    with waiting(world, 0.4) as opened:
        tiers = group(SILENT), group(SLOW[0], tier=1)
        programmed(opened.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
        with world.forging("ack", SLOW[0], port):
            assert caller.calls("hold", VIP, 80, local=port) == [{"answer": SLOW[0]}]
        assert caller.calls("echo", VIP, 80, text="bytes") == [{"answer": "bytes"}]
        assert [row["backend"] for row in view.rows(opened.maps, "failing")] == [f"{SILENT}/TCP"]
        assert caller.calls("drop", VIP, 80) == [{}]
        until(lambda: not view.rows(opened.maps, "flows"), what="the last segments have passed")


FAMILIES = [pytest.param(VIP, SLOW[0], GOOD[0], id="IPv4"), pytest.param(VIP6, SLOW6[0], GOOD6[0], id="IPv6")]


def late(datapath: Datapath) -> int:
    """Number of answers that arrived after the connect had left the backend."""
    return sum(row["answered"] for row in view.rows(datapath.maps, "unanswered"))


@pytest.mark.parametrize(("vip", "slow_backend", "near"), FAMILIES)
def test_the_late_answer_of_a_backend_that_a_connect_has_left_is_its_success(
    rescuing: Datapath, load: Load, vip: str, slow_backend: str, near: str
) -> None:
    """It stayed ejected: each call to it was moved before it answered, so that its answers were never measured."""
    tiers = group(slow_backend), group(near, tier=1)
    programmed(rescuing.target(), plan("echo", vip, *tiers, ejection=Ejection(3, 600.0, 600.0)))
    result = load.run(vip, calls=4, at_once=4)
    assert result.ended == {"ok": 4}
    assert result.answered == {near: 4}, "connects were not moved: this test has shown nothing"
    until(lambda: late(rescuing) == 4, what="it has answered each")
    assert [(row["failures"], row["ejected"]) for row in view.rows(rescuing.maps, "caller_failing")] == [(0, False)]
    assert [(row["failures"], row["ejected"]) for row in view.rows(rescuing.maps, "failing")] == [(0, False)]
    [row] = view.rows(rescuing.maps, "round_trips")
    assert row["microseconds"] > 100_000
    assert load.run(vip, calls=4).answered == {slow_backend: 4}


@pytest.mark.parametrize(("vip", "slow_backend", "near"), FAMILIES)
def test_a_backend_that_answers_late_keeps_no_half_open_connection(
    rescuing: Datapath, world: World, vip: str, slow_backend: str, near: str
) -> None:
    """It occupied the backend's backlog for as long as the moved connection lasted."""
    tiers = group(slow_backend), group(near, tier=1)
    programmed(rescuing.target(), plan("echo", vip, *tiers, ejection=NEVER))
    caller = world.call_from(world.cgroup)
    assert caller.calls("hold", vip, 80, local=30778) == [{"answer": near}]
    until(lambda: late(rescuing) == 1, what="it has answered")
    until(lambda: world.sockets("state", "syn-recv", namespace=world.far) == [], what="it has taken the RST")
    assert caller.calls("echo", vip, 80, text="bytes") == [{"answer": "bytes"}]
    assert caller.calls("drop", vip, 80) == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


def test_a_backend_that_answers_after_a_minute_teaches_its_cluster_no_more_than_a_second(
    rescuing: Datapath, load: Load
) -> None:
    """One such backend had each lost SYN to any other one of the cluster sent again after three minutes."""
    programmed(rescuing.target(), plan("echo", VIP, group(SLOW[0]), group(GOOD[0], tier=1), ejection=NEVER))
    for _ in range(10):  # it answers 70 ms after it was left, mostly later than it is written here
        rescuing.maps.drop("round_trips", [key for key, _ in rescuing.maps.items("round_trips")])
        rescuing.maps.drop("unanswered", [key for key, _ in rescuing.maps.items("unanswered")])
        load.start(VIP, calls=1)
        [(key, value)] = until(lambda: [*rescuing.maps.items("unanswered")], what="it is left")
        syn = codecs.UNANSWERED.named(value)
        aged = codecs.UNANSWERED.pack(*{**syn, "sent": syn["sent"] - 60 * 10**9}.values())
        assert rescuing.maps.put("unanswered", [(key, aged)]) == {}
        assert load.result().ended == {"ok": 1}
        time.sleep(2 * DELAY)
        if late(rescuing):
            break
    else:
        pytest.fail("it has answered before: this test has shown nothing")
    [row] = view.rows(rescuing.maps, "round_trips")
    assert row["microseconds"] == 1_000_000


@pytest.mark.needs("nft")
@pytest.mark.slow
def test_a_first_choice_that_won_and_repeats_its_answer_is_not_reset(
    rescuing: Datapath, world: World, load: Load
) -> None:
    """A backend repeats it while the pod's acknowledgement is lost or late."""
    lost = f"ip daddr {SLOW[0].partition(':')[0]} tcp flags & (syn|ack) == ack drop"
    table = f"table inet lost {{ chain forward {{ type filter hook forward priority 0; {lost}; }}; }}"
    nft = ["ip", "netns", "exec", world.server, "nft"]
    silent = (SILENT, "10.9.0.8:8080", "10.9.0.7:8080")
    programmed(rescuing.target(), plan("echo", VIP, group(SLOW[0]), group(*silent, tier=1), ejection=NEVER))
    subprocess.run([*nft, table], check=True)
    try:
        load.start(VIP, calls=1, timeout=60.0)
        until(
            lambda: any(
                re.search(r"timer:\(on,[^,]*,[1-9]", line)
                for line in world.sockets("-o", "state", "syn-recv", namespace=world.far)
            ),
            what="the first choice has repeated its answer",
        )
    finally:
        subprocess.run([*nft, "delete", "table", "inet", "lost"], check=True)
    assert load.result().answered == {SLOW[0]: 1}
