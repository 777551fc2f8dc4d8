"""Datagrams of one socket go where the service that each is for has a backend, and answers come from that service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import BACKENDS, Caller, World, group, no_place_is_free, plan, programmed

from isthmus.datapath import Datapath
from isthmus.model.balancing import Plan
from isthmus.model.services import Protocol

pytestmark = pytest.mark.bpf

BLUE, GREEN, OTHER = "10.96.10.1", "10.96.10.2", "10.96.10.3"


@pytest.fixture(params=["a place", "no place"])
def kept(request: pytest.FixtureRequest, datapath: Datapath) -> Iterator[str]:
    """Where sockets of this test keep what they called."""
    if request.param == "a place":
        yield request.param
        return
    with no_place_is_free(datapath):
        yield request.param


@pytest.fixture
def caller(world: World, datapath: Datapath) -> Iterator[Caller]:
    made = world.call_from(world.cgroup)
    yield made
    made.close()


def udp(name: str, vip: str, *endpoints: str) -> Plan:
    """A plan of UDP with one group."""
    return plan(name, vip, group(*endpoints, protocol="UDP"), protocol="UDP")


def answered_by(caller: Caller, vip: str, name: str = "one") -> str:
    """Backend that answers a kept socket's datagram to a service, whose address the answer has to come from."""
    answer = caller.udp(vip, name=name)
    assert answer["from"] == f"{vip}:80"
    return answer["answer"].split()[0]


def test_an_unconnected_socket_leaves_a_backend_that_its_service_lost_though_another_service_has_it(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    first, second = BACKENDS[:2]
    to, all_of_them = datapath.target(), udp("all", OTHER, first, second)
    programmed(to, udp("live", BLUE, first), all_of_them)
    assert answered_by(caller, BLUE) == first
    programmed(to, udp("live", BLUE, second), all_of_them)
    assert [answered_by(caller, BLUE), answered_by(caller, BLUE)] == [second, second]
    programmed(to, udp("live", BLUE, first, second), all_of_them)
    assert answered_by(caller, BLUE) == second, "it stays when the other comes back"
    programmed(to, udp("live", BLUE, first), all_of_them)
    assert [answered_by(caller, BLUE), answered_by(caller, BLUE)] == [first, first]


def test_an_answer_that_is_late_still_comes_from_the_service_that_has_left_the_backend(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    first, second = BACKENDS[:2]
    to = datapath.target()
    programmed(to, udp("live", BLUE, first))
    caller.calls("ask", BLUE, 80, name="one")
    programmed(to, udp("live", BLUE, second))
    caller.calls("tell", BLUE, 80, name="one")
    heard = [caller.calls("hear", BLUE, 80, name="one")[0] for _ in range(2)]
    assert sorted(each["answer"].split()[0] for each in heard) == [first, second]
    assert {each["from"] for each in heard} == {f"{BLUE}:80"}


def shared_by(datapath: Datapath, protocol: Protocol, *endpoints: str) -> tuple[str, str]:
    """Addresses of two services with the same backends."""
    backends = group(*endpoints, protocol=protocol)
    rows = [plan(name, vip, backends, protocol=protocol) for name, vip in (("blue", BLUE), ("green", GREEN))]
    programmed(datapath.target(), *rows)
    return BLUE, GREEN


def test_answers_to_one_socket_come_from_the_service_that_was_asked_though_services_share_backends(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    """Both services are asked before an answer is read."""
    vips = shared_by(datapath, "UDP", *BACKENDS[:2])
    for n in range(12):
        caller.calls("ask", vips[0], 80, name=f"socket{n}")
        caller.calls("tell", vips[1], 80, name=f"socket{n}")
        heard = [caller.calls("hear", "", 0, name=f"socket{n}")[0] for _ in vips]
        assert sorted(each["from"] for each in heard) == [f"{vip}:80" for vip in vips]


def test_a_socket_may_ask_many_services(world: World, datapath: Datapath, caller: Caller, kept: str) -> None:
    port = 9000 if kept == "a place" else 9001
    endpoints = [f"10.8.0.{n}:{port}" for n in range(20, 60)]
    world.echo(*endpoints)
    vips = [f"10.96.11.{n}" for n in range(len(endpoints))]
    programmed(datapath.target(), *(udp(f"s{n}", vip, endpoints[n]) for n, vip in enumerate(vips)))
    caller.calls("ask", vips[0], 80, name="one")
    for vip in vips[1:]:
        caller.calls("tell", vip, 80, name="one")
    heard = [caller.calls("hear", "", 0, name="one")[0] for _ in vips]
    answers = {each["from"]: each["answer"].split()[0] for each in heard}
    assert answers == {f"{vip}:80": endpoint for vip, endpoint in zip(vips, endpoints, strict=True)}


def test_services_that_share_their_only_backend_are_answered_by_it(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    """One question at a time: an answer comes from the service that was asked last."""
    first, second = shared_by(datapath, "UDP", BACKENDS[0])
    assert [answered_by(caller, vip) for vip in (first, second, first, second)] == [BACKENDS[0]] * 4


def test_more_services_than_backends_keep_the_backends_that_they_have(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    vips = [f"10.96.12.{n}" for n in range(1, 6)]
    programmed(datapath.target(), *(udp(f"s{n}", vip, *BACKENDS[:3]) for n, vip in enumerate(vips)))
    rounds = [[answered_by(caller, vip) for vip in vips] for _ in range(3)]
    assert rounds[1:] == rounds[:2]
    assert set(rounds[0]) == set(BACKENDS[:3])


def test_a_backend_of_the_next_tier_is_not_called_because_one_is_shared(
    datapath: Datapath, caller: Caller, kept: str
) -> None:
    here, there = group(BACKENDS[0], protocol="UDP"), group(BACKENDS[1], protocol="UDP", tier=1)
    rows = [plan(name, vip, here, there, protocol="UDP") for name, vip in (("blue", BLUE), ("green", GREEN))]
    programmed(datapath.target(), *rows)
    assert [answered_by(caller, vip) for vip in (BLUE, GREEN)] == [BACKENDS[0]] * 2


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_of_one_source_port_two_services_that_share_backends_are_called_at_a_time(
    datapath: Datapath, caller: Caller, kind: str
) -> None:
    vips = shared_by(datapath, "TCP" if kind == "tcp" else "UDP", *BACKENDS[:3])
    for local in range(40001, 40031):
        for vip in vips:
            assert caller.calls("keep", vip, 80, name=vip, kind=kind, local=local) == [{}]
        if kind == "udp":
            assert all("answer" in caller.calls("ping", "", 0, name=vip)[0] for vip in vips)
        for vip in vips:
            caller.calls("close", vip, 80, name=vip)


def test_a_source_port_towards_the_only_backend_of_two_services_fails_as_without_us(
    datapath: Datapath, caller: Caller
) -> None:
    vips = shared_by(datapath, "TCP", BACKENDS[0])
    outcomes = [caller.calls("keep", vip, 80, name=vip, kind="tcp", local=40001)[0] for vip in vips]
    assert outcomes == [{}, {"error": "EADDRNOTAVAIL"}]
    caller.calls("close", "", 0, name=vips[0])
