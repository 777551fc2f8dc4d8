"""Calls of the pods of a namespace that has routes of its own, on a real kernel: they go to the node's proxy, and those
of every other caller where they would without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from datapath_worlds.bpf_world import BACKENDS, CLUSTER_DNS, Caller, World, done, group, plan, programmed, target
from msgspec.structs import replace

from isthmus.datapath import Datapath, identities, remove, view
from isthmus.datapath.services.callers import Identities, Identity
from isthmus.datapath.services.codecs import namespace_hash
from isthmus.model.balancing import Consumer
from isthmus.model.services import Pod

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"
POD = "10.7.0.1"
PROXY, OWN, OTHER, SERVER = BACKENDS[:4]
UID = "00000000-1111-2222-3333-444444444444"
APP: Identities = {POD: Identity("app", UID)}
PLAN = plan("echo", VIP, group(OWN))
SPLIT = replace(PLAN, consumers=(Consumer("app", target(PROXY)),))


@pytest.fixture
def other(world: World) -> Caller:
    """A pod that is not in the table of pods yet."""
    return world.call_from(world.cgroup, namespace=world.server)


def reached(caller: Caller, host: str = VIP) -> str:
    result = caller.tcp(host)
    return result.get("error") or result["answer"].split()[0]


def known_as(datapath: Datapath, found: Identities) -> list[int]:
    """The namespaces of pods that the kernel knows."""
    datapath.callers().renew(found)
    return [row["namespace"] for row in view.dump(datapath.maps)["callers"]]


def test_a_pod_of_the_namespace_reaches_its_proxy_and_others_what_they_would_without(
    world: World, datapath: Datapath, other: Caller
) -> None:
    programmed(datapath.target(), SPLIT)
    assert reached(world.caller) == OWN, "its namespace is not known yet"
    datapath.callers().renew(APP)
    assert reached(world.caller) == PROXY
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    assert reached(other) == OWN
    datapath.callers().renew({POD: Identity("bbb", UID)})
    assert reached(world.caller) == OWN


def test_each_namespace_has_its_own_proxy(world: World, datapath: Datapath) -> None:
    more = Consumer("bbb", target(OTHER))
    programmed(datapath.target(), replace(SPLIT, consumers=(*SPLIT.consumers, more)))
    for namespace, want in (("app", PROXY), ("bbb", OTHER), ("ccc", OWN)):
        datapath.callers().renew({POD: Identity(namespace, UID)})
        assert reached(world.caller) == want


def test_calls_of_others_are_not_touched_where_they_are_not_ours(
    world: World, datapath: Datapath, other: Caller
) -> None:
    row = replace(plan("dns", CLUSTER_DNS, group(OWN)), consumers=SPLIT.consumers, consumers_only=True)
    programmed(datapath.target(), row)
    datapath.callers().renew(APP)
    assert reached(world.caller, CLUSTER_DNS) == PROXY
    assert reached(other, CLUSTER_DNS) == f"{CLUSTER_DNS}:80"
    assert [(row["verdict"], row["calls"]) for row in datapath.counters()] == [("called", 1)]


@pytest.mark.parametrize("only", [True, False])
def test_a_proxy_that_refuses_is_passed_over_for_the_services_own_backends(
    world: World, datapath: Datapath, only: bool
) -> None:
    refusing = Consumer("app", target("10.8.0.1:9"))
    programmed(datapath.target(), replace(SPLIT, consumers=(refusing,), consumers_only=only))
    datapath.callers().renew(APP)
    assert [reached(world.caller) for _ in range(6)][-1] == OWN


def test_when_there_is_no_consumer_any_more_nothing_of_it_is_left(world: World, datapath: Datapath) -> None:
    to = datapath.target()
    programmed(to, SPLIT)
    assert [row["backend"] for row in view.dump(datapath.maps)["consumers"]] == [f"{PROXY}/TCP"]
    programmed(to, PLAN)
    dumped = view.dump(datapath.maps)
    assert dumped["consumers"] == []
    assert [row["backend"] for row in dumped["backends"]] == [f"{OWN}/TCP"]


@pytest.fixture
def restarted(world: World) -> Iterator[Datapath]:
    """The datapath of an agent that finds what another left."""
    first = world.open()
    programmed(first.target(), SPLIT)
    first.callers().renew(APP)
    first.close()
    second = world.open()
    yield second
    second.close()
    remove(world.pin)


def test_a_restart_changes_nothing(world: World, restarted: Datapath) -> None:
    before = view.dump(restarted.maps)
    assert reached(world.caller) == PROXY
    programmed(restarted.target(), SPLIT)
    after = view.dump(restarted.maps)
    for name in ("plans", "consumers", "callers", "backends"):
        assert after[name] == before[name]


def test_deleted_entries_are_back_after_pruning(world: World, datapath: Datapath) -> None:
    to = datapath.target()
    programmed(to, SPLIT)
    datapath.callers().renew(APP)
    datapath.maps.drop("consumers", [key for key, _ in datapath.maps.items("consumers")])
    assert reached(world.caller) == OWN
    assert "repaired 1" in done(to.prune((SPLIT,)))
    assert reached(world.caller) == PROXY


def pod(name: str, address: str, *, uid: str = UID, phase: str = "Running") -> Pod:
    return Pod(name=name, uid=uid, node="n1", addresses=(address,), phase=phase)


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        ([pod("app/a", POD)], Identity("app", UID)),
        ([pod("app/a", POD), pod("bbb/b", POD)], None),
        ([pod("app/a", POD, phase="Succeeded"), pod("bbb/b", POD)], Identity("bbb", UID)),
        ([pod("app/a", "172.30.1.11")], None),
    ],
    ids=["one-pod", "two-pods", "one-of-them-ended", "of-the-node"],
)
def test_an_address_is_of_a_namespace_only_beyond_doubt(pods: list[Pod], want: Identity | None) -> None:
    assert identities(pods, ["172.30.1.11"]) == {pods[0].addresses[0]: want}


@pytest.mark.parametrize("style", ["pod{}", "kubepods-burstable-pod{}.slice"])
def test_a_pod_that_has_the_address_of_one_that_is_going_is_in_no_namespace_until_it_is_known(
    world: World, datapath: Datapath, style: str
) -> None:
    """Where the kubelet names control groups by the UIDs of pods."""
    programmed(datapath.target(), SPLIT)
    written = UID.replace("-", "_") if style.endswith("slice") else UID
    group = world.cgroup / style.format(written)
    group.mkdir()
    caller, address = world.call_from(group, namespace=world.server), SERVER.partition(":")[0]
    try:
        assert known_as(datapath, {address: Identity("app", "99999999-1111-2222-3333-444444444444")}) == [0]
        assert reached(caller) == OWN
        assert known_as(datapath, {address: Identity("app", UID)}) == [namespace_hash("app")]
        assert reached(caller) == PROXY
    finally:
        caller.close()
        group.rmdir()
