"""A moved connection behaves as any other: path MTU, RST outside the window, data in the SYN, IP options, affinity."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import Caller, Load, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, VIP, VIP6, host
from labs.lab_running import until
from machine.namespaces import ip, put

from isthmus.datapath import Datapath, view
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
NARROW, NARROW6 = "10.8.3.1:8080", "[fd00:8::31]:8080"
"""Behind a path of 1,300 bytes that the caller's link does not have."""
FAMILIES = [pytest.param(VIP, REFUSES, GOOD[0], id="IPv4"), pytest.param(VIP6, REFUSES6, GOOD6[0], id="IPv6")]


@pytest.fixture(scope="module")
def narrow(served: World) -> None:
    served.slow_servers(0.001, NARROW, NARROW6)
    for endpoint in (NARROW, NARROW6):
        ip("-n", served.server, "route", "change", host(endpoint), "dev", "slow", "mtu", "1300")


@pytest.fixture
def caller(world: World, rescuing: Datapath) -> Caller:
    return world.call_from(world.cgroup)


@pytest.fixture
def fast_open(served: World) -> Iterator[None]:
    """The kernel of the pod sends data in a SYN without asking for a cookie first."""
    put(served.client, "net/ipv4/tcp_fastopen", 5)
    yield
    put(served.client, "net/ipv4/tcp_fastopen", 1)


@pytest.mark.parametrize(("vip", "bad", "good"), [(VIP, REFUSES, NARROW), (VIP6, REFUSES6, NARROW6)])
def test_a_moved_upload_over_a_path_narrower_than_its_link_arrives(
    rescuing: Datapath, narrow: None, load: Load, vip: str, bad: str, good: str
) -> None:
    """Routers answer about the backend that a packet went to, of which the pod's kernel knows nothing."""
    programmed(rescuing.target(), plan("echo", vip, group(bad), group(good, tier=1), ejection=NEVER))
    assert load.run(vip, calls=4, at_once=2, bytes=300_000, timeout=20.0).ended == {"ok": 4}


def test_a_reset_outside_the_window_does_not_end_a_moved_connection(
    rescuing: Datapath, served: World, caller: Caller
) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(GOOD[0], tier=1), ejection=NEVER))
    assert caller.calls("hold", VIP, 80, local=30140) == [{"answer": GOOD[0]}]
    with served.forging("rst", GOOD[0], 30140):
        for n in range(300):
            assert caller.calls("echo", VIP, 80, text=f"bytes {n}") == [{"answer": f"bytes {n}"}]
    assert caller.calls("drop", VIP, 80) == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


@pytest.mark.parametrize(("vip", "bad", "good"), FAMILIES)
def test_a_reset_of_the_backend_ends_a_moved_connection_and_its_entries(
    rescuing: Datapath, served: World, caller: Caller, vip: str, bad: str, good: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(bad), group(good, tier=1), ejection=NEVER))
    assert caller.calls("hold", vip, 80, local=30141) == [{"answer": good}]
    kill = ["ip", "netns", "exec", served.server, "ss", "-K", "dport", "=", ":30141"]
    subprocess.run(kill, check=True, capture_output=True)
    assert caller.calls("echo", vip, 80, text="?") in ([{"error": "ECONNRESET"}], [{"error": "EPIPE"}])
    assert caller.calls("close", vip, 80, name=f"{vip}:80") == [{}]
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the entries have gone with the socket")


@pytest.mark.parametrize(("vip", "bad", "good"), FAMILIES)
def test_a_syn_with_data_that_is_refused_goes_to_another_backend(
    rescuing: Datapath, caller: Caller, fast_open: None, vip: str, bad: str, good: str
) -> None:
    """RST acknowledges the data as well (TCP Fast Open)."""
    programmed(rescuing.target(), plan("echo", vip, group(bad), group(good, tier=1), ejection=NEVER))
    text = "x" * 300
    for call in caller.calls("fast", vip, 80, times=5, text=text):
        assert call == {"answer": f"{good}\n{text}"}
    until(lambda: not view.rows(rescuing.maps, "flows"), what="the last segments have passed")


@pytest.mark.parametrize(("vip", "bad", "good"), FAMILIES)
def test_a_socket_with_ip_options_is_refused_at_once_as_without_us(
    rescuing: Datapath, caller: Caller, vip: str, bad: str, good: str
) -> None:
    """Its packets are none that the programs rewrite, so that its SYN would go to the same backend for ever."""
    programmed(rescuing.target(), plan("echo", vip, group(bad), group(good, tier=1), ejection=NEVER))
    assert caller.calls("options", vip, 80, times=3) == [{"error": "ECONNREFUSED"}] * 3
    assert view.rows(rescuing.maps, "flows") == []


@pytest.mark.parametrize(("vip", "bad", "good"), [(VIP, REFUSES, GOOD), (VIP6, REFUSES6, GOOD6)])
def test_a_caller_with_affinity_stays_where_its_first_connect_was_moved_to(
    rescuing: Datapath, load: Load, vip: str, bad: str, good: tuple[str, ...]
) -> None:
    tiers = group(bad), group(*good, tier=1)
    programmed(rescuing.target(), plan("echo", vip, *tiers, affinity=600, ejection=NEVER))
    result = load.run(vip, calls=30)
    assert result.ended == {"ok": 30}
    assert len(result.answered) == 1
    assert {row["verdict"]: row["calls"] for row in rescuing.counters()}["rescued"] == 1, "the others are at home there"
