"""Calls that a redirect leaves out, on a real kernel: those of its own pods go where they would without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import BACKEND6, BACKENDS, CLUSTER_DNS, Caller, World, done, group, plan, programmed
from rows.balancing_world import World as Rows
from rows.balancing_world import make

from isthmus.datapath import CallersFirst, Datapath, remove, view
from isthmus.model.balancing import Plan, Scope
from isthmus.model.services import Port

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"
POD = "10.7.0.1"
NEAR, FAR = BACKENDS[:2]
REDIRECT = plan("echo", VIP, group(NEAR), skip=(POD,))
ORIGINAL = plan("echo", VIP, group(FAR), scope=Scope.ORIGINAL)


@pytest.fixture
def other(world: World) -> Caller:
    """A pod that is none of the redirect's."""
    return world.call_from(world.cgroup, namespace=world.server)


@pytest.fixture
def target(datapath: Datapath) -> CallersFirst:
    """The target that the agent programs plans through."""
    return CallersFirst(datapath.target(), datapath.callers())


def program(target: CallersFirst, *rows: Plan) -> None:
    assert done(target.update(rows)) == {}
    done(target.prune(rows))


def reached(caller: Caller, host: str = VIP) -> str:
    result = caller.tcp(host)
    return result.get("error") or result["answer"].split()[0]


def test_a_pod_of_the_redirect_reaches_the_original_and_the_others_the_redirect(
    world: World, target: CallersFirst, other: Caller
) -> None:
    program(target, ORIGINAL, REDIRECT)
    assert reached(world.caller) == FAR
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    assert reached(other) == NEAR


def test_datagrams_are_distinguished_as_well(world: World, target: CallersFirst, other: Caller) -> None:
    near, far = (group(each, protocol="UDP") for each in (NEAR, FAR))
    rows = (
        plan("echo", VIP, far, protocol="UDP", scope=Scope.ORIGINAL),
        plan("echo", VIP, near, protocol="UDP", skip=(POD,)),
    )
    program(target, *rows)
    for connected in (True, False):
        result = world.caller.udp(VIP, connected=connected)
        assert (result["answer"].split()[0], result["from"]) == (FAR, f"{VIP}:80")
        assert other.udp(VIP, connected=connected)["answer"].split()[0] == NEAR


def test_pods_of_ipv6_are_distinguished_as_well(world: World, target: CallersFirst, other: Caller) -> None:
    vip, pod, nobody = "fd00:96::7", "fd00:7::1", "[fd00:8::1]:9"
    original = plan("echo", vip, group(BACKEND6), scope=Scope.ORIGINAL)
    program(target, original, plan("echo", vip, group(nobody), skip=(pod,)))
    assert reached(world.caller, vip) == BACKEND6
    assert reached(other, vip) == "ECONNREFUSED"


def test_where_the_original_is_not_ours_its_calls_go_where_they_were_going(
    world: World, target: CallersFirst, other: Caller, datapath: Datapath
) -> None:
    program(target, plan("dns", CLUSTER_DNS, group(NEAR), skip=(POD,)))
    assert reached(other, CLUSTER_DNS) == NEAR
    assert reached(world.caller, CLUSTER_DNS) == f"{CLUSTER_DNS}:80"
    assert [(row["verdict"], row["calls"]) for row in datapath.counters()] == [("called", 1)]


def test_calls_from_inside_have_the_original_of_their_own_plan(
    world: World, target: CallersFirst, other: Caller
) -> None:
    inside = plan("echo", VIP, group(NEAR), scope=Scope.INTERNAL, skip=(POD,))
    original = plan("echo", VIP, group(BACKENDS[2]), scope=Scope.ORIGINAL_INTERNAL)
    program(target, ORIGINAL, original, REDIRECT, inside)
    assert reached(world.caller) == BACKENDS[2]
    assert reached(other) == NEAR


def test_the_pod_is_known_before_calls_are_redirected(world: World, target: CallersFirst) -> None:
    """From the first call on: a proxy that calls the address it answers for would call itself."""
    for turn in range(10):
        program(target, ORIGINAL, plan("echo", VIP, group(NEAR), skip=(POD, f"10.9.9.{turn}")))
        assert {reached(world.caller) for _ in range(5)} == {FAR}


def test_when_the_redirect_does_not_mean_anybody_less_nothing_of_it_is_left(
    world: World, target: CallersFirst, datapath: Datapath
) -> None:
    program(target, ORIGINAL, REDIRECT)
    programmed(datapath.target(), plan("echo", VIP, group(NEAR)))
    assert reached(world.caller) == NEAR
    assert view.dump(datapath.maps)["skips"] == []


@pytest.fixture
def restarted(world: World) -> Iterator[Datapath]:
    """The datapath of an agent that finds what another left."""
    first = world.open()
    target = CallersFirst(first.target(), first.callers())
    program(target, ORIGINAL, REDIRECT)
    first.close()
    second = world.open()
    yield second
    second.close()
    remove(world.pin)


def test_a_restart_changes_nothing(world: World, restarted: Datapath) -> None:
    before = view.dump(restarted.maps)
    assert reached(world.caller) == FAR
    programmed(restarted.target(), ORIGINAL, REDIRECT)
    after = view.dump(restarted.maps)
    assert [after[name] for name in ("plans", "skips", "callers")] == [
        before[name] for name in ("plans", "skips", "callers")
    ]


def test_deleted_entries_of_it_are_back_after_pruning(world: World, target: CallersFirst, datapath: Datapath) -> None:
    program(target, ORIGINAL, REDIRECT)
    datapath.maps.drop("skips", [key for key, _ in datapath.maps.items("skips")])
    assert reached(world.caller) == NEAR
    assert "repaired 1" in done(target.prune((ORIGINAL, REDIRECT)))
    assert reached(world.caller) == FAR


@pytest.mark.parametrize("which", ["all", "multicluster"])
def test_a_policy_that_skips_its_backends_comes_to_this(
    world: World, target: CallersFirst, other: Caller, which: str
) -> None:
    """From rows to sockets: a service of ours, and a plain one whose calls go where kube-proxy takes them."""
    address, port = FAR.split(":")
    ip = VIP if which == "all" else CLUSTER_DNS
    rows = Rows(which).put(make.service(cluster_ips=(ip,)), make.endpoints("c1", address, service="demo/echo"))
    rows.put(make.pod(address=POD, ports=(Port("http", int(port)),)))
    rows.put(make.local(skip_from_backend=True))
    program(target, *rows.plans)
    assert reached(other, ip) == "ECONNREFUSED", "it was sent to the pod, where nothing listens"
    assert reached(world.caller, ip) == (FAR if which == "all" else f"{CLUSTER_DNS}:80")
