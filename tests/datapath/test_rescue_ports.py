"""A moved connection whose local port is in use towards the new backend gets a spare one there: no call is left out."""

from __future__ import annotations

import pytest
from datapath_worlds.bpf_world import Caller, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, SILENT, SILENT6, VIP, VIP6, host
from labs.lab_running import until

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
OTHER, OTHER6 = "10.96.7.8", "fd00:96::8"
FAMILIES = [
    pytest.param(VIP, OTHER, GOOD[0], (REFUSES, SILENT), id="IPv4"),
    pytest.param(VIP6, OTHER6, GOOD6[0], (REFUSES6, SILENT6), id="IPv6"),
]


@pytest.fixture
def caller(world: World, rescuing: Datapath) -> Caller:
    """One without connections; its namespace's programs rescue."""
    return world.call_from(world.cgroup)


def both_work(caller: Caller, *held: tuple[str, int]) -> None:
    """Bytes of one connection never reach the other, and both end in order."""
    for n, (to, port) in enumerate((*held, *held)):
        assert caller.calls("echo", to, port, text=f"bytes {n}") == [{"answer": f"bytes {n}"}]
    for to, port in held:
        assert caller.calls("drop", to, port) == [{}]


@pytest.mark.parametrize(("vip", "other", "good", "bad"), FAMILIES)
@pytest.mark.slow
def test_a_live_connection_with_the_tuple_of_a_moved_one_stays_as_it_is(
    rescuing: Datapath, caller: Caller, vip: str, other: str, good: str, bad: tuple[str, str]
) -> None:
    """The only backend that answers, called directly from the port of the call that is moved there."""
    programmed(rescuing.target(), plan("echo", vip, group(bad[0]), group(good, tier=1), ejection=NEVER))
    assert caller.calls("hold", host(good), 8080, local=30123) == [{"answer": good}]
    assert caller.calls("hold", vip, 80, local=30123) == [{"answer": good}]
    both_work(caller, (host(good), 8080), (vip, 80))
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


@pytest.mark.parametrize(("vip", "other", "good", "bad"), FAMILIES)
def test_two_calls_from_one_port_are_moved_to_the_same_backend(
    rescuing: Datapath, caller: Caller, vip: str, other: str, good: str, bad: tuple[str, str]
) -> None:
    """As their port numbers cross, calls of one pod often have the same port towards two dead backends."""
    programmed(
        rescuing.target(),
        plan("echo", vip, group(bad[0]), group(good, tier=1), ejection=NEVER),
        plan("other", other, group(bad[1]), group(good, tier=1), ejection=NEVER),
    )
    assert caller.calls("hold", vip, 80, local=30126) == [{"answer": good}]
    assert caller.calls("hold", other, 80, local=30126) == [{"answer": good}]
    both_work(caller, (vip, 80), (other, 80))
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


@pytest.mark.parametrize(("vip", "other", "good", "bad"), FAMILIES)
def test_a_later_call_from_the_port_of_a_moved_connection_gets_through(
    rescuing: Datapath, caller: Caller, vip: str, other: str, good: str, bad: tuple[str, str]
) -> None:
    """The kernel gives it that port, since the moved connection has another peer there; no failure is counted."""
    programmed(
        rescuing.target(),
        plan("echo", vip, group(bad[0]), group(good, tier=1), ejection=NEVER),
        plan("other", other, group(good), ejection=Ejection(50, 60.0, 60.0)),
    )
    assert caller.calls("hold", vip, 80, local=30127) == [{"answer": good}]
    assert caller.calls("hold", other, 80, local=30127) == [{"answer": good}]
    assert view.rows(rescuing.maps, "failing") == []
    both_work(caller, (vip, 80), (other, 80))
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


def test_a_tuple_in_time_wait_is_taken(rescuing: Datapath, world: World, caller: Caller) -> None:
    """Treating TIME_WAIT as busy would change ports for nothing: its port can belong to no other connection."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=NEVER))
    caller.calls("hold", host(GOOD[0]), 8080, local=30124)
    caller.calls("drop", host(GOOD[0]), 8080)
    assert world.sockets("state", "time-wait", "sport", "=", ":30124", namespace=world.client) != []
    assert caller.calls("hold", VIP, 80, local=30124) == [{"answer": GOOD[0]}]
    assert world.sockets("sport", "=", ":8080", "dport", "=", ":30124") != []


@pytest.mark.parametrize(("vip", "other", "good", "bad"), FAMILIES)
def test_a_backend_that_has_an_earlier_connection_of_the_tuple_still_is_asked_again(
    rescuing: Datapath, caller: Caller, vip: str, other: str, good: str, bad: tuple[str, str]
) -> None:
    """It acknowledges what is left of that, and the pod's RST ends it: only the next SYN is about this call. As one
    that is silent it was passed over, and the call refused where all others were dead."""
    last = bad[0].replace(":8080", ":8081")
    steps = (group(bad[0]), group(good, tier=1), group(last, tier=2))
    programmed(rescuing.target(), plan("echo", vip, *steps, ejection=Ejection(50, 60.0, 60.0)))
    assert caller.calls("hold", host(good), 8080, local=30129) == [{"answer": good}]
    assert caller.calls("abandon", host(good), 8080) == [{}]
    assert caller.calls("hold", vip, 80, local=30129) == [{"answer": good}]
    assert [row["backend"] for row in view.rows(rescuing.maps, "failing")] == [f"{bad[0]}/TCP"]
    both_work(caller, (vip, 80))
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")
