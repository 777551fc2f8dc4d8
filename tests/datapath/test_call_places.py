"""What a socket called is kept in a place of a map, else in the socket's storage: by either it is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import (
    BACKENDS,
    NO_SOCKET,
    Caller,
    Load,
    World,
    group,
    needs_multipath,
    no_place_is_free,
    places,
    plan,
    programmed,
    target,
)
from datapath_worlds.failing_backends import GOOD, NO_ROUTE_HERE, REFUSES, SILENT, VIP, VIP6, host
from labs.lab_running import until
from machine.namespaces import put

from isthmus.datapath import Datapath, remove, view
from isthmus.datapath.core import attach, libbpf, shapes
from isthmus.datapath.services.codecs import CALL_PLACE
from isthmus.model import tables
from isthmus.model.balancing import Ejection
from isthmus.model.services import Protocol
from isthmus.statedb import Database
from isthmus_lab import cgroups

pytestmark = pytest.mark.bpf

NEVER = Ejection(after=0)
PROTOCOLS: tuple[Protocol, ...] = ("TCP", "UDP")
TABLES = (tables.BACKENDS, tables.DRAINING, tables.FRONTENDS, tables.PLANS)


@pytest.fixture(params=["a place", "no place"])
def kept(request: pytest.FixtureRequest, rescuing: Datapath) -> Iterator[str]:
    """Where sockets of this test keep what they called."""
    if request.param == "a place":
        yield request.param
        return
    with no_place_is_free(rescuing):
        yield request.param


@pytest.fixture(scope="module")
def echoes(world: World) -> list[str]:
    """More backends than a socket keeps."""
    endpoints = [f"10.8.0.1:{port}" for port in range(9001, 9021)]
    world.echo(*endpoints)
    return endpoints


@pytest.fixture
def caller(world: World) -> Caller:
    return world.call_from(world.cgroup)


@pytest.mark.parametrize("vip", [VIP, f"::ffff:{VIP}"])
def test_the_peer_is_the_service_and_stays_so(rescuing: Datapath, caller: Caller, kept: str, vip: str) -> None:
    before = places(rescuing)
    programmed(rescuing.target(), plan("echo", VIP, group(*GOOD), ejection=NEVER))
    caller.calls("keep", vip, 80, name="one", kind="tcp")
    assert len(places(rescuing) - before) == (1 if kept == "a place" else 0)
    assert caller.tcp(vip)["peer"] == f"{vip}:80"
    assert caller.calls("peer", vip, 80, name="one") == [{"peer": f"{vip}:80"}]
    caller.calls("close", vip, 80, name="one")
    until(lambda: places(rescuing) <= before, what="its place is free")


@pytest.mark.parametrize("prefix", ["", "::ffff:"])
def test_answers_to_one_udp_socket_come_from_each_service_that_it_asked(
    rescuing: Datapath, caller: Caller, kept: str, prefix: str
) -> None:
    before, vips = places(rescuing), [f"10.96.8.{n}" for n in range(1, 6)]
    udp = [group(backend, protocol="UDP") for backend in BACKENDS]
    rows = [plan(f"echo{n}", vip, udp[n], protocol="UDP") for n, vip in enumerate(vips)]
    programmed(rescuing.target(), *rows)
    for n, vip in enumerate([*vips, vips[0], vips[3]]):
        found = caller.udp(prefix + vip, name="all")
        assert (found["from"], found["answer"].split()[0]) == (f"{prefix}{vip}:80", BACKENDS[(*range(5), 0, 3)[n]])
    assert len(places(rescuing) - before) == (1 if kept == "a place" else 0)
    caller.calls("close", "", 0, name="all")
    assert places(rescuing) <= before


def test_of_many_services_that_a_udp_socket_asks_the_last_eight_are_known_by_their_replies(
    world: World, rescuing: Datapath, caller: Caller, echoes: list[str], kept: str
) -> None:
    vips = [f"10.96.8.{n}" for n in range(1, len(echoes) + 1)]
    rows = [
        plan(f"echo{vip}", vip, group(backend, protocol="UDP"), protocol="UDP")
        for vip, backend in zip(vips, echoes, strict=True)
    ]
    programmed(rescuing.target(), *rows)
    for vip in vips:
        assert caller.udp(vip, name="many")["from"] == f"{vip}:80"
    for vip in vips[-8:]:
        caller.calls("ask", vip, 80, name="many")
    replies = [caller.calls("hear", "", 0, name="many")[0]["from"] for _ in vips[-8:]]
    assert sorted(replies) == sorted(f"{vip}:80" for vip in vips[-8:])
    caller.calls("close", "", 0, name="many")


def test_a_connected_udp_socket_has_the_service_as_its_peer(rescuing: Datapath, caller: Caller, kept: str) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(*BACKENDS[:3], protocol="UDP"), protocol="UDP"))
    before = places(rescuing)
    for _ in range(20):
        found = caller.udp(VIP, connected=True)
        assert (found["peer"], found["from"]) == (f"{VIP}:80", f"{VIP}:80")
    assert places(rescuing) <= before, "a place is free when its socket is closed"


@pytest.mark.parametrize("vip", [VIP, f"::ffff:{VIP}"])
@pytest.mark.parametrize("bad", [REFUSES, SILENT])
@pytest.mark.slow
def test_a_dead_backend_is_left_and_blamed(rescuing: Datapath, load: Load, kept: str, bad: str, vip: str) -> None:
    steps = group(bad), group(GOOD[0], tier=1)
    programmed(rescuing.target(), plan("echo", VIP, *steps, ejection=Ejection(50, 60.0, 60.0)))
    assert load.run(vip, calls=20, at_once=5).ended == {"ok": 20}
    [row] = view.rows(rescuing.maps, "failing")
    assert (row["backend"], row["failures"]) == (f"{bad}/TCP", 20)


def test_a_drain_closes_the_connection(rescuing: Datapath, caller: Caller, kept: str) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0]), ejection=NEVER))
    caller.calls("hold", VIP, 80, local=0)
    called = (shapes.address(VIP), shapes.port(80)), target(GOOD[0])
    assert rescuing.drained_sockets(Database(*TABLES)).destroy({called}) == 1
    assert caller.calls("echo", VIP, 80, text="gone") == [{"error": "ECONNABORTED"}]


@pytest.mark.parametrize("to", [GOOD[0], REFUSES, SILENT, NO_ROUTE_HERE])
def test_a_place_is_free_again_however_its_socket_has_ended(rescuing: Datapath, load: Load, to: str) -> None:
    before = places(rescuing)
    programmed(rescuing.target(), plan("echo", VIP, group(to), ejection=NEVER))
    load.run(VIP, calls=20, at_once=10, timeout=0.5)
    until(lambda: places(rescuing) <= before, what="all are free")


@needs_multipath
def test_a_connect_by_multipath_tcp_that_makes_no_syn_leaves_no_place(rescuing: Datapath, caller: Caller) -> None:
    """Its subflow is the kernel's own socket, and no hook sees that closed."""
    before = places(rescuing)
    programmed(rescuing.target(), plan("echo", VIP, group(NO_ROUTE_HERE), ejection=NEVER))
    assert caller.calls("mptcp", VIP, 80, times=3) == [{"error": "ENETUNREACH"}] * 3
    until(lambda: places(rescuing) <= before, what="all are free")


@needs_multipath
@pytest.mark.own_datapath
@pytest.mark.slow
def test_nor_does_one_on_a_kernel_that_has_no_helper_to_tell_subflows(
    served: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those before 5.19: whether a socket is a subflow is read in its struct."""
    has, mptcp = libbpf.has_helper, attach.HELPERS[1]
    monkeypatch.setattr(libbpf, "has_helper", lambda kind, helper: helper != mptcp and has(kind, helper))
    opened = served.open()
    try:
        programmed(opened.target(), plan("echo", VIP, group(NO_ROUTE_HERE), ejection=NEVER))
        caller = served.call_from(served.cgroup)
        assert caller.calls("mptcp", VIP, 80, times=3) == [{"error": "ENETUNREACH"}] * 3
        assert caller.calls("tcp", VIP, 80) == [{"error": "ENETUNREACH"}]
        until(lambda: not places(opened), what="all are free")
        programmed(opened.target(), plan("echo", VIP, group(GOOD[0]), ejection=NEVER))
        assert caller.tcp(VIP)["peer"] == f"{VIP}:80"
    finally:
        opened.close()
        remove(served.pin)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_socket_keeps_its_place_while_another_tries_for_it_and_frees_it_when_it_ends(
    rescuing: Datapath, caller: Caller, kind: str
) -> None:
    """The other has added its cookie, and not yet found that it is not alone. What ended in between was never freed."""
    before, another = places(rescuing), 1 << 40
    rows = [plan("echo", VIP, group(GOOD[0], protocol=each), protocol=each) for each in PROTOCOLS]
    programmed(rescuing.target(), *rows)
    caller.calls("keep", VIP, 80, name="one", kind=kind)
    [cookie] = places(rescuing) - before
    add_claim(rescuing, cookie, another)
    assert caller.calls("peer", VIP, 80, name="one") == [{"peer": f"{VIP}:80"}]
    caller.calls("close", VIP, 80, name="one")
    until(lambda: places(rescuing) <= before, what="it is nobody's")
    assert add_claim(rescuing, cookie, -another) == 0, "nobody claims it any more"


@pytest.mark.parametrize("kind", ["tcp", "udp"])
async def test_an_agent_that_starts_frees_the_places_of_sockets_that_ended_unseen_and_no_others(
    rescuing: Datapath, caller: Caller, kind: str
) -> None:
    """No program was attached when they ended."""
    rows = [plan("echo", VIP, group(GOOD[0], protocol=each), protocol=each) for each in PROTOCOLS]
    programmed(rescuing.target(), *rows)
    caller.calls("keep", VIP, 80, name="one", kind=kind)
    before = places(rescuing)
    free = [(key, value) for key, value in rescuing.maps.items("call_places") if not any(value[:8])][:3]
    left = [(key, CALL_PLACE.pack(NO_SOCKET + n, NO_SOCKET + n, value[16:])) for n, (key, value) in enumerate(free)]
    assert rescuing.maps.put("call_places", left) == {}
    assert len(places(rescuing)) == len(before) + 3
    keeping = asyncio.create_task(rescuing.keep())
    await asyncio.to_thread(until, lambda: places(rescuing) == before)
    keeping.cancel()
    assert caller.calls("peer", VIP, 80, name="one") == [{"peer": f"{VIP}:80"}]
    caller.calls("close", VIP, 80, name="one")


def add_claim(datapath: Datapath, cookie: int, claim: int) -> int:
    """What is then the sum of the claims to a socket's place."""
    found = list(datapath.maps.items("call_places"))
    key, value = found[cookie % len(found)]
    socket, claims, call = CALL_PLACE.unpack(value)
    assert datapath.maps.put("call_places", [(key, CALL_PLACE.pack(socket, claims + claim, call))]) == {}
    return int(claims + claim)


def test_a_socket_that_listens_after_a_connect_in_vain_leaves_no_place(rescuing: Datapath, caller: Caller) -> None:
    before = places(rescuing)
    programmed(rescuing.target(), plan("echo", VIP, group(NO_ROUTE_HERE), ejection=NEVER))
    assert caller.calls("listen", VIP, 80, times=3) == [{"error": "ENETUNREACH"}] * 3
    until(lambda: places(rescuing) <= before, what="all are free")


def test_a_refused_connect_of_a_socket_without_a_cookie_is_not_taken_for_the_call_in_a_free_place(
    rescuing: Datapath, world: World, caller: Caller
) -> None:
    """A free place has the number 0, as sockets have that no hook has seen, and what was called there last."""
    before = places(rescuing)
    tiers = group(GOOD[0]), group(GOOD[1], tier=1)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    caller.calls("keep", VIP, 80, name="one", kind="tcp")
    [cookie] = places(rescuing) - before
    caller.calls("close", VIP, 80, name="one")
    until(lambda: places(rescuing) <= before, what="its place is free")
    found = list(rescuing.maps.items("call_places"))
    first, left = found[0][0], found[cookie % len(found)][1]
    assert CALL_PLACE.unpack(left)[0] == 0
    assert any(left), "the call is still there"
    assert not any(CALL_PLACE.unpack(found[0][1])[:1]), "place 0 is in use"
    rescuing.maps.put("call_places", [(first, left)])
    outside = world.cgroup.with_name(f"{world.name}-outside")
    elsewhere = world.call_from(outside)
    try:
        assert elsewhere.calls("tcp", host(REFUSES), 8080) == [{"error": "ECONNREFUSED"}]
    finally:
        elsewhere.close()
        until(lambda: cgroups.remove(outside), what="its cgroup is removed")
    assert view.rows(rescuing.maps, "failing") == []


def test_a_connect_that_waits_for_data_and_is_closed_blames_nobody_and_leaves_no_place(
    rescuing: Datapath, world: World, caller: Caller
) -> None:
    """With TCP_FASTOPEN_CONNECT the SYN goes with the first bytes."""
    before = places(rescuing)
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), ejection=Ejection(50, 60.0, 60.0)))
    put(world.client, "net/ipv4/tcp_fastopen", 1 | 4)  # as a client, whose cookie need not be known
    try:
        assert caller.calls("deferred", VIP, 80, times=3) == [{}] * 3, "nothing was sent that could be refused"
    finally:
        put(world.client, "net/ipv4/tcp_fastopen", 1)
    until(lambda: places(rescuing) <= before, what="all are free")
    assert view.rows(rescuing.maps, "failing") == []


def test_a_socket_that_connects_again_has_the_peer_that_it_called_last(rescuing: Datapath, caller: Caller) -> None:
    """Its first connect was refused, or had no route, and the second is to another service."""
    before = places(rescuing)
    for first in (REFUSES, NO_ROUTE_HERE):
        rows = plan("first", "10.96.7.8", group(first), ejection=NEVER), plan("echo", VIP, group(GOOD[0]))
        programmed(rescuing.target(), *rows)
        found = caller.calls("again", VIP, 80, first="10.96.7.8")
        assert found == [{"answer": GOOD[0], "peer": f"{VIP}:80"}]
    until(lambda: places(rescuing) <= before, what="its place is free")


def test_a_connect_to_no_service_is_not_followed_though_the_socket_called_one_before_without_a_syn(
    rescuing: Datapath, caller: Caller
) -> None:
    before = places(rescuing)
    tiers = group(NO_ROUTE_HERE), group(GOOD[0], tier=1)
    programmed(rescuing.target(), plan("echo", VIP, *tiers, ejection=Ejection(50, 60.0, 60.0)))
    assert caller.calls("again", host(SILENT), 80, first=VIP, patience=1.5) == [{"error": "timed out"}]
    assert view.rows(rescuing.maps, "failing") == []
    until(lambda: places(rescuing) <= before, what="its place is free")


@pytest.mark.parametrize(("vip", "backend"), [(VIP, NO_ROUTE_HERE), (VIP6, "[fe00::9]:8080")], ids=["IPv4", "IPv6"])
def test_a_call_without_a_route_from_the_pod_is_counted_as_failed_and_blames_no_backend(
    rescuing: Datapath, load: Load, vip: str, backend: str
) -> None:
    """That is of the pod: other pods of the node may reach the backend. It is counted when the socket is closed."""
    good = GOOD[0] if vip == VIP else "[fd00:8::11]:8080"
    programmed(
        rescuing.target(), plan("echo", vip, group(backend), group(good, tier=1), ejection=Ejection(3, 60.0, 60.0))
    )
    assert load.run(vip, calls=20).ended == {"ENETUNREACH": 20}
    assert view.rows(rescuing.maps, "failing") == []
    counted = {row["verdict"]: row["calls"] for row in rescuing.counters()}
    assert counted == {"called": 20, "failed": 20}
