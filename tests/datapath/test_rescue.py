"""A connect that meets a dead backend is moved to another one; the application sees no failure. Real kernel, load."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import Load, World, done, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, SILENT, SILENT6, VIP, VIP6, host
from labs.lab_running import until
from machine.namespaces import put

from isthmus.datapath import Datapath, remove, view
from isthmus.datapath.failures import codecs
from isthmus.datapath.failures.watch import FailureWatch
from isthmus.model import tables
from isthmus.model.balancing import Ejection
from isthmus.statedb import Database

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
SOON = Ejection()
CALLS = 400


def left(datapath: Datapath) -> list[object]:
    """What is left of moved connections, once the last FINs have passed."""
    deadline = time.monotonic() + 60
    while (found := view.rows(datapath.maps, "flows")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [*found, *datapath.maps.items("flows")]


BOTH = [
    pytest.param(VIP, GOOD, (REFUSES, SILENT), id="IPv4"),
    pytest.param(VIP6, GOOD6, (REFUSES6, SILENT6), id="IPv6"),
]


@pytest.mark.parametrize("ejection", [NEVER, SOON], ids=["no ejection", "ejection"])
@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_no_call_fails_while_one_of_three_refuses(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: tuple[str, str], ejection: Ejection
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(*good, bad[0]), ejection=ejection))
    result = load.run(vip, calls=CALLS, at_once=10)
    assert result.ended == {"ok": CALLS}
    assert set(result.answered) == set(good)
    assert left(rescuing) == []


@pytest.mark.parametrize("ejection", [NEVER, SOON], ids=["no ejection", "ejection"])
@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_no_call_fails_while_one_of_three_is_silent(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: tuple[str, str], ejection: Ejection
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(*good, bad[1]), ejection=ejection))
    result = load.run(vip, calls=CALLS, at_once=10)
    assert result.ended == {"ok": CALLS}
    assert set(result.answered) == set(good)
    assert left(rescuing) == []


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_no_call_fails_while_one_refuses_and_one_is_silent(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: tuple[str, str]
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(good[0], *bad), ejection=NEVER))
    result = load.run(vip, calls=CALLS, at_once=10)
    assert result.ended == {"ok": CALLS}
    assert set(result.answered) == {good[0]}
    assert left(rescuing) == []


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_three_megabytes_of_a_moved_connection_are_intact(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: tuple[str, str]
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(*bad), group(good[0], tier=1), ejection=NEVER))
    result = load.run(vip, calls=6, at_once=3, bytes=3_000_000, timeout=20.0)
    assert result.ended == {"ok": 6}
    assert left(rescuing) == []


def test_the_next_tier_is_used_when_the_first_is_dead(rescuing: Datapath, load: Load) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[1], tier=1), ejection=NEVER))
    result = load.run(VIP, calls=50, at_once=5)
    assert (result.ended, set(result.answered)) == ({"ok": 50}, {GOOD[1]})


def test_when_all_refuse_the_call_is_refused(rescuing: Datapath, load: Load) -> None:
    other = "10.8.1.9:8081"
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES, other), ejection=NEVER))
    result = load.run(VIP, calls=20, at_once=5)
    assert result.ended == {"ECONNREFUSED": 20}
    assert left(rescuing) == []


def test_when_all_are_silent_the_call_ends_as_without_us_and_not_later(
    rescuing: Datapath, world: World, load: Load
) -> None:
    """With one retransmission the kernel alone gives up after 3 s, and here after 0.6 s."""
    linear = "net/ipv4/tcp_syn_linear_timeouts"  # since 6.5
    usual = {"net/ipv4/tcp_syn_retries": 6} | ({linear: 4} if Path("/proc/sys", linear).exists() else {})
    for setting in usual:
        put(world.client, setting, 1 if setting != linear else 0)
    try:
        programmed(rescuing.target(), plan("echo", VIP, group(SILENT, "10.9.0.8:8080"), ejection=NEVER))
        ours = [load.run(VIP, calls=1, timeout=60.0).failures[0] for _ in range(3)]  # a machine may stand still for one
        [without] = load.run(host(SILENT), calls=1, timeout=60.0).failures
        assert {why for why, _ in [*ours, without]} == {"timeout while connecting"}
        assert min(took for _, took in ours) < without[1] < 60_000, "ms: the caller's patience was not over"
    finally:
        for setting, value in usual.items():
            put(world.client, setting, value)
    assert left(rescuing) == []


@pytest.mark.own_datapath
def test_a_call_that_finds_no_room_to_be_moved_fails_as_without_us_and_is_counted(served: World) -> None:
    """Two entries for each moved connection: with two, one at a time."""
    small = served.open(max_entries=2)
    try:
        with served.on_link(small):
            rows = group(REFUSES), group(GOOD[0], tier=1)
            programmed(small.target(), plan("echo", VIP, *rows, ejection=NEVER))
            caller = served.call_from(served.cgroup)
            assert caller.calls("hold", VIP, 80, local=30131) == [{"answer": GOOD[0]}]
            assert served.caller.tcp(VIP) == {"error": "ECONNREFUSED"}
            assert [row["calls"] for row in small.counters() if row["verdict"] == "failed"] == [1]
            caller.calls("drop", VIP, 80)
            assert left(small) == []
            assert served.caller.tcp(VIP)["answer"].strip() == GOOD[0]
    finally:
        small.close()
        remove(served.pin)


def test_neither_side_keeps_a_socket_of_a_moved_connection(rescuing: Datapath, world: World, load: Load) -> None:
    """Entries go with the last acknowledgement: before, the backend's FIN would go unanswered and stay in LAST_ACK."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=NEVER))
    assert load.run(VIP, calls=300, at_once=10).ended == {"ok": 300}
    assert left(rescuing) == []
    until(lambda: not world.sockets("state", "last-ack") + world.sockets("state", "close-wait"), what="none there")
    until(
        lambda: not world.sockets("state", "connected", "exclude", "time-wait", namespace=world.client),
        what="none here",
    )


def test_what_is_seen_of_a_moved_connection_is_kept_by_its_side(rescuing: Datapath, world: World) -> None:
    """Two processors may follow it at once: of one word, what one of them writes would be lost."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=NEVER))
    caller = world.call_from(world.cgroup)

    def kept() -> tuple[int, int, int]:
        both = [(codecs.FLOW_KEY.named(key), codecs.FLOW.named(value)) for key, value in rescuing.maps.items("flows")]
        [found] = [flow for key, flow in both if not key["reverse"]]
        return found["pod_flags"], found["peer_flags"], found["socket_flags"]

    assert caller.calls("hold", VIP, 80, local=30128) == [{"answer": GOOD[0]}]
    assert kept() == (codecs.FLOW_SENT, codecs.FLOW_ANSWERED, 0)
    world.address("del", host(GOOD[0]))
    try:
        caller.calls("abandon", VIP, 80)
        assert kept() == (codecs.FLOW_SENT, codecs.FLOW_ANSWERED, codecs.FLOW_CLOSED)
    finally:
        world.address("add", host(GOOD[0]))


def test_when_all_were_tried_in_vain_they_are_tried_again(rescuing: Datapath, world: World, load: Load) -> None:
    two = ("10.9.0.8:8080", SILENT)
    programmed(rescuing.target(), plan("echo", VIP, group(*two), ejection=NEVER))
    world.listen_anywhere()
    served = world.serve(SILENT)
    load.start(VIP, calls=4, at_once=4, timeout=15.0)
    time.sleep(1.0)  # each has been at both by now
    world.address("add", host(SILENT))
    try:
        assert load.result().answered == {SILENT: 4}
    finally:
        served.kill()
        served.wait(60)
        world.address("del", host(SILENT))


@pytest.mark.parametrize("old_plan", ["is there", "has gone"])
@pytest.mark.parametrize(
    ("vip", "good", "silent"), [(VIP, GOOD, "10.9.0.{}:8080"), (VIP6, GOOD6, "[fd00:9::{}]:8080")], ids=["IPv4", "IPv6"]
)
def test_a_connect_is_moved_to_backends_of_the_plan_that_took_the_place_of_its_own(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], silent: str, old_plan: str
) -> None:
    """A change of weights is a new plan, under which other backends may be: connects under way have to reach them."""
    clock = [0.0]
    target = rescuing.target(clock=lambda: clock[0])
    dead = group(*(silent.format(n) for n in (1, 2, 3)), weight=3)
    programmed(target, plan("echo", vip, dead, ejection=NEVER))
    before = {key for key, _ in rescuing.maps.items("plans")}
    load.start(vip, calls=4, at_once=4, timeout=60.0)
    until(lambda: sum(row["calls"] for row in rescuing.counters()) == 4, what="all four have begun")
    assert done(target.update([plan("echo", vip, group(good[0]), group(good[1], tier=1), ejection=NEVER)])) == {}
    if old_plan == "has gone":
        clock[0] += 3600.0
        target.sweep_due()
    assert before.isdisjoint(key for key, _ in rescuing.maps.items("plans")) is (old_plan == "has gone")
    result = load.result()
    assert (result.ended, set(result.answered) <= set(good)) == ({"ok": 4}, True)
    assert left(rescuing) == []


def test_a_call_is_moved_although_packets_did_not_leave_the_pod_for_a_while(
    rescuing: Datapath, world: World, load: Load
) -> None:
    """A full queue, or a machine too busy to send, is no failure of the backend that the call was moved to."""
    programmed(
        rescuing.target(), plan("echo", VIP, group(SILENT), group(GOOD[0], tier=1), ejection=Ejection(50, 60.0, 60.0))
    )
    with world.nothing_leaves_the_pod():
        load.start(VIP, calls=3, at_once=3, timeout=15.0)
        time.sleep(1.0)  # each SYN was sent again four times, and dropped
    assert load.result().ended == {"ok": 3}
    assert {row["backend"] for row in view.rows(rescuing.maps, "failing")} == {f"{SILENT}/TCP"}
    assert left(rescuing) == []


@pytest.mark.needs("nft")
def test_a_backend_whose_answer_is_on_its_way_is_neither_left_nor_blamed(
    rescuing: Datapath, world: World, load: Load
) -> None:
    """The node has seen the answer, and the pod has not when the next SYN is due: as on a machine that is too busy."""
    nft = ["ip", "netns", "exec", world.client, "nft"]
    late = "table inet late { chain input { type filter hook input priority 0; tcp flags == syn|ack drop; }; }"
    steps = group(REFUSES), group(GOOD[0], tier=1), group(GOOD[1], tier=2)
    programmed(rescuing.target(), plan("echo", VIP, *steps, ejection=Ejection(50, 60.0, 60.0)))
    subprocess.run([*nft, late], check=True)
    try:
        load.start(VIP, calls=1, timeout=60.0)
        until(
            lambda: any(
                "backoff:2" in line for line in world.sockets("-i", "state", "syn-sent", namespace=world.client)
            ),
            what="two more SYNs have gone",
        )
        assert [(row["moved_to"], row["answered"]) for row in view.rows(rescuing.maps, "flows")] == [(GOOD[0], True)]
    finally:
        subprocess.run([*nft, "delete", "table", "inet", "late"], check=True)
    assert load.result().answered == {GOOD[0]: 1}
    assert {row["backend"] for row in view.rows(rescuing.maps, "failing")} == {f"{REFUSES}/TCP"}
    assert left(rescuing) == []


@pytest.mark.needs("nft")
@pytest.mark.slow
def test_a_backend_whose_answer_was_lost_and_that_is_silent_since_is_left(
    rescuing: Datapath, world: World, load: Load
) -> None:
    late = "table inet late { chain input { type filter hook input priority 0; tcp flags == syn|ack drop; }; }"
    drop = f"ip saddr {host(GOOD[0])} drop"
    dead = f"table inet dead {{ chain output {{ type filter hook output priority 0; {drop}; }}; }}"
    steps = group(REFUSES), group(GOOD[0], tier=1), group(GOOD[1], tier=2)
    programmed(rescuing.target(), plan("echo", VIP, *steps, ejection=Ejection(50, 60.0, 60.0)))
    nft(world.client, late)
    try:
        load.start(VIP, calls=1, timeout=60.0)
        until(
            lambda: [row["moved_to"] for row in view.rows(rescuing.maps, "flows") if row["answered"]] == [GOOD[0]],
            what="the second backend has answered",
        )
        nft(world.server, dead)
    finally:
        nft(world.client, "delete table inet late")
    try:
        assert load.result().answered == {GOOD[1]: 1}
    finally:
        nft(world.server, "delete table inet dead")
    assert {row["backend"] for row in view.rows(rescuing.maps, "failing")} == {f"{REFUSES}/TCP", f"{GOOD[0]}/TCP"}


def nft(namespace: str, text: str) -> None:
    subprocess.run(["ip", "netns", "exec", namespace, "nft", text], check=True)


@pytest.mark.parametrize("bad", [REFUSES, SILENT])
def test_the_backend_that_failed_is_blamed_and_the_one_that_answered_is_not(
    rescuing: Datapath, load: Load, bad: str
) -> None:
    programmed(
        rescuing.target(), plan("echo", VIP, group(bad), group(GOOD[0], tier=1), ejection=Ejection(50, 60.0, 60.0))
    )
    assert load.run(VIP, calls=20, at_once=5).ended == {"ok": 20}
    [row] = view.rows(rescuing.maps, "failing")
    assert (row["backend"], row["failures"]) == (f"{bad}/TCP", 20)


def test_the_peer_of_a_moved_connection_is_the_service_on_both_address_families(
    rescuing: Datapath, world: World
) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=NEVER))
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    assert world.caller.tcp(f"::ffff:{VIP}")["peer"] == f"::ffff:{VIP}:80"


@pytest.mark.slow
def test_no_call_fails_while_backends_come_and_go(rescuing: Datapath, world: World, load: Load) -> None:
    flips = ("10.8.1.3:8080", "10.8.1.4:8080")
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0], *flips)))
    world.address("add", *map(host, flips))
    load.start(VIP, calls=1500, at_once=10)
    for turn in range(12):
        served = world.serve(flips[turn % 2])
        time.sleep(0.1 + 0.03 * turn)
        served.kill()
        served.wait(60)
    result = load.result()
    connected = {how: count for how, count in result.ended.items() if how not in ("ok", "empty", "ECONNRESET")}
    assert connected == {}
    assert result.failed <= 12 * 10, "what was established to a process that died, at most the calls under way"
    assert left(rescuing) == []


def test_without_a_program_on_the_link_nothing_is_moved_and_nobody_else_is_blamed(
    datapath: Datapath, load: Load
) -> None:
    """As with hostNetwork: the call fails as it would without us."""
    programmed(
        datapath.target(), plan("echo", VIP, group(SILENT), group(GOOD[0], tier=1), ejection=Ejection(50, 60.0, 60.0))
    )
    assert load.run(VIP, calls=5, at_once=5, timeout=1.5).ended == {"timeout while connecting": 5}
    assert {row["backend"] for row in view.rows(datapath.maps, "failing")} == {f"{SILENT}/TCP"}
    assert left(datapath) == []


def test_connections_whose_last_segment_never_came_are_swept_and_the_gate_closes(
    rescuing: Datapath, world: World
) -> None:
    """The caller is killed while its backend is cut off: no FIN comes back."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=NEVER))
    caller = world.call_from(world.cgroup)
    assert caller.calls("hold", VIP, 80, local=30125) == [{"answer": GOOD[0]}]
    assert len(view.rows(rescuing.maps, "flows")) == 1
    db = Database(tables.BACKENDS, tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS)
    watching = FailureWatch(rescuing.maps, rescuing.state, db, longest=1.0, closing=0)
    watching.step()
    assert len(view.rows(rescuing.maps, "flows")) == 1, "it lives"
    world.address("del", host(GOOD[0]))
    try:
        caller.calls("abandon", VIP, 80)
        watching.step()
        assert left(rescuing) == []
        assert list(rescuing.maps.items("gates")) == list(rescuing.maps.items("settled"))
    finally:
        world.address("add", host(GOOD[0]))


def test_off_means_off(world: World, load: Load) -> None:
    opened = world.open(rescue="off")
    with world.on_link(opened):
        programmed(opened.target(), plan("echo", VIP, group(GOOD[0], REFUSES), ejection=NEVER))
        assert load.run(VIP, calls=60).ended["ECONNREFUSED"] > 10
    opened.close()
    remove(world.pin)
