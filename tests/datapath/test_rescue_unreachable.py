"""A connect to a backend without a route, a pod that has just ended say, is moved as one that is refused.

The node that the pod was on answers that there is no route, or has only its default route for the address: then the
packet goes to and fro between it and its router until its hops are used up, and the answer is "time exceeded".
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from datapath_worlds.bpf_world import Load, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, SILENT, VIP, VIP6, host
from labs.lab_running import until
from machine.namespaces import ip, put, switch_on

from isthmus.datapath import Datapath, remove, view
from isthmus.model.balancing import Ejection

pytestmark = [pytest.mark.bpf, pytest.mark.needs("nft")]

NEVER = Ejection(after=0)
NO_ROUTE, NO_ROUTE6 = "10.9.1.9:8080", "[fd00:9:1::9]:8080"
LOOP, LOOP6 = "10.9.2.9:8080", "[fd00:9:2::9]:8080"
BOTH = [
    pytest.param(VIP, GOOD, NO_ROUTE, id="IPv4"),
    pytest.param(VIP6, GOOD6, NO_ROUTE6, id="IPv6"),
    pytest.param(VIP, GOOD, LOOP, id="IPv4, hops used up"),
    pytest.param(VIP6, GOOD6, LOOP6, id="IPv6, hops used up"),
]


RULES = """\
table inet unreachable {
  chain prerouting {
    type filter hook prerouting priority 0
    ip daddr 10.9.1.0/24 reject with icmpx type host-unreachable
    ip6 daddr fd00:9:1::/64 reject with icmpx type host-unreachable
    ip daddr 10.9.2.0/24 ip ttl set 1
    ip6 daddr fd00:9:2::/64 ip6 hoplimit set 1
  }
}
"""
"""The kernel reports an unreachable route to a caller five times, then once in a second, whatever is configured.
A packet on its last hop is one that has gone in a loop.
"""
BACK = (("10.9.2.0/24", "10.7.0.1"), ("fd00:9:2::/64", "fd00:7::1"))


@pytest.fixture(scope="module", autouse=True)
def node(served: World) -> Iterator[None]:
    """A node that answers every packet to these backends by ICMP."""
    nft = ["ip", "netns", "exec", served.server, "nft"]
    for setting in ("net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"):
        ip("netns", "exec", served.server, "sh", "-c", f"echo 0 >/proc/sys/{setting}")
    subprocess.run([*nft, "-f", "-"], input=RULES, text=True, check=True)
    switch_on(served.server, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    for network, router in BACK:
        ip("-n", served.server, "route", "add", network, "via", router)
    yield
    for network, _ in BACK:
        ip("-n", served.server, "route", "del", network)
    subprocess.run([*nft, "delete", "table", "inet", "unreachable"], check=True)


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
@pytest.mark.slow
def test_no_call_fails_while_there_is_no_route_to_one_of_three(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(*good, bad), ejection=NEVER))
    result = load.run(vip, calls=150, at_once=10)
    assert result.ended == {"ok": 150}
    assert set(result.answered) == set(good)


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_it_is_blamed_as_unreachable_but_where_the_own_node_found_the_hops_used_up(
    rescuing: Datapath, load: Load, vip: str, good: tuple[str, ...], bad: str
) -> None:
    """Any pod's packets are answered so that it sends with one hop. The router beyond the node is another matter."""
    programmed(
        rescuing.target(), plan("echo", vip, group(bad), group(good[0], tier=1), ejection=Ejection(3, 60.0, 60.0))
    )
    assert load.run(vip, calls=20, at_once=2).ended == {"ok": 20}
    rows = view.rows(rescuing.maps, "caller_failing")
    found = [(row["backend"], row["ejected"], row["reason"]) for row in rows]
    assert found == ([] if bad in (LOOP, LOOP6) else [(f"{bad}/TCP", True, "unreachable")])


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
def test_an_error_that_quotes_more_than_the_headers_moves_the_connect_as_well(
    rescuing: Datapath, served: World, vip: str, good: tuple[str, ...], bad: str
) -> None:
    """Here data in the SYN, which is quoted up to 576 and 1,280 bytes; from other routers extensions (RFC 4884)."""
    put(served.client, "net/ipv4/tcp_fastopen", 5)
    try:
        many = Ejection(50, 60.0, 60.0)
        programmed(rescuing.target(), plan("echo", vip, group(bad), group(good[0], tier=1), ejection=many))
        text = "x" * 1000
        caller = served.call_from(served.cgroup)
        assert caller.calls("fast", vip, 80, times=3, text=text) == [{"answer": f"{good[0]}\n{text}"}] * 3
        reasons = {row["backend"]: row["reason"] for row in view.rows(rescuing.maps, "failing")}
        assert reasons == ({} if bad in (LOOP, LOOP6) else {f"{bad}/TCP": "unreachable"}), "not as a silent one"
    finally:
        put(served.client, "net/ipv4/tcp_fastopen", 1)


def test_a_socket_whose_packets_get_no_further_than_the_node_gets_the_error_of_a_route(
    rescuing: Datapath, load: Load
) -> None:
    """As without us: IP_TTL=1 is the socket's choice, and every backend's answer is the node's."""
    programmed(rescuing.target(), plan("echo", VIP, group(LOOP), group("10.9.2.8:8080", tier=1), ejection=NEVER))
    result = load.run(VIP, calls=3, timeout=20.0, options={"ttl": 1})
    assert result.ended == {"EHOSTUNREACH": 3}


def test_a_call_goes_on_to_the_third_when_the_second_has_no_route_either(rescuing: Datapath, load: Load) -> None:
    tiers = group(SILENT), group(NO_ROUTE, tier=1), group(GOOD[0], tier=2)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    assert load.run(VIP, calls=6, at_once=6).answered == {GOOD[0]: 6}
    assert {row["backend"]: row["reason"] for row in view.rows(rescuing.maps, "failing")} == {
        f"{SILENT}/TCP": "silent",
        f"{NO_ROUTE}/TCP": "unreachable",
    }


@pytest.mark.parametrize(("vip", "bad"), [(VIP, NO_ROUTE), (VIP6, NO_ROUTE6), (VIP, LOOP), (VIP6, LOOP6)])
def test_when_there_is_no_other_backend_the_call_fails_as_without_us(
    rescuing: Datapath, load: Load, vip: str, bad: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(bad), ejection=NEVER))
    result = load.run(vip, calls=10, at_once=5, timeout=1.0)
    assert set(result.ended) <= {"EHOSTUNREACH", "ENETUNREACH", "timeout while connecting"}, (
        "an error while connect() has the lock waits"
    )
    assert result.failed == 10


@pytest.mark.own_datapath
@pytest.mark.parametrize(("vip", "good", "bad"), BOTH[:2])
@pytest.mark.slow
def test_a_live_connection_keeps_its_packets_while_a_moved_one_waits_to_send_its_syn(
    served: World, vip: str, good: tuple[str, ...], bad: str
) -> None:
    """The tuples are the same for as long as that takes: here 3 s. The other's packets had the pod reset it."""
    opened = served.open(syn_timeout=3.0)
    try:
        with served.on_link(opened), ThreadPoolExecutor(1) as thread:
            programmed(opened.target(), plan("echo", vip, group(bad), group(good[0], tier=1), ejection=NEVER))
            live, moved = served.call_from(served.cgroup), served.call_from(served.cgroup)
            assert live.calls("hold", host(good[0]), 8080, local=30132) == [{"answer": good[0]}]
            held = thread.submit(moved.calls, "hold", vip, 80, local=30132)
            until(lambda: view.rows(opened.maps, "flows"), what="it is to go where the other is")
            for text in ("while it waits", "again"):
                assert live.calls("echo", host(good[0]), 8080, text=text) == [{"answer": text}]
            assert held.result() == [{"answer": good[0]}]
            assert live.calls("echo", host(good[0]), 8080, text="and after") == [{"answer": "and after"}]
            assert live.calls("drop", host(good[0]), 8080) == moved.calls("drop", vip, 80) == [{}]
            until(lambda: not view.rows(opened.maps, "flows"), what="the last segments have passed")
    finally:
        opened.close()
        remove(served.pin)
