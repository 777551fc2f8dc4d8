"""Calls of a pod on a real kernel: what is ours goes to a backend, what is not goes where it was going."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from datapath_worlds.bpf_world import (
    BACKEND6,
    BACKENDS,
    CLUSTER_DNS,
    World,
    group,
    needs_multipath,
    plan,
    programmed,
    refused,
)

from isthmus.datapath import Datapath, remove
from isthmus.datapath.core import libbpf
from isthmus.datapath.services import codecs
from isthmus.model.balancing import Scope

pytestmark = pytest.mark.bpf

VIP = "10.96.7.7"


def test_a_tcp_call_reaches_a_backend_and_its_peer_is_the_service(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    assert world.caller.tcp(VIP) == {"answer": f"{BACKENDS[0]} 10.7.0.1", "peer": f"{VIP}:80"}


@pytest.mark.parametrize("connected", [True, False])
def test_a_udp_answer_comes_from_the_service(world: World, datapath: Datapath, connected: bool) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0], protocol="UDP"), protocol="UDP"))
    result = world.caller.udp(VIP, connected=connected)
    assert result["answer"] == f"{BACKENDS[0]} 10.7.0.1"
    assert result["from"] == f"{VIP}:80"
    assert result["peer"] == (f"{VIP}:80" if connected else "")


def test_a_socket_of_ipv6_calls_the_same_services_by_mapped_addresses(world: World, datapath: Datapath) -> None:
    programmed(
        datapath.target(),
        plan("echo", VIP, group(BACKENDS[0])),
        plan("echo", VIP, group(BACKENDS[0], protocol="UDP"), protocol="UDP"),
    )
    mapped = f"::ffff:{VIP}"
    assert world.caller.tcp(mapped) == {"answer": f"{BACKENDS[0]} 10.7.0.1", "peer": f"{mapped}:80"}
    assert world.caller.udp(mapped)["from"] == f"{mapped}:80"
    result = world.caller.udp(mapped, connected=True)
    assert (result["peer"], result["from"]) == (f"{mapped}:80", f"{mapped}:80")
    assert world.caller.tcp("::ffff:10.8.0.2", 8080)["peer"] == "::ffff:10.8.0.2:8080"


def test_services_of_ipv6_are_served_alike(world: World, datapath: Datapath) -> None:
    vip = "fd00:96::7"
    programmed(
        datapath.target(),
        plan("echo", vip, group(BACKEND6)),
        plan("echo", vip, group(BACKEND6, protocol="UDP"), protocol="UDP"),
    )
    assert world.caller.tcp(vip) == {"answer": f"{BACKEND6} fd00:7::1", "peer": f"{vip}:80"}
    assert world.caller.udp(vip)["from"] == f"{vip}:80"
    result = world.caller.udp(vip, connected=True)
    assert (result["peer"], result["from"]) == (f"{vip}:80", f"{vip}:80")


def test_a_call_that_is_not_ours_is_untouched(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    direct = world.caller.tcp("10.8.0.2", 8080)
    assert direct == {"answer": "10.8.0.2:8080 10.7.0.1", "peer": "10.8.0.2:8080"}
    assert world.caller.tcp(CLUSTER_DNS)["answer"] == f"{CLUSTER_DNS}:80 10.7.0.1"
    assert datapath.counters() == []


def test_every_backend_of_a_group_gets_calls(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(*BACKENDS[:3])))
    answers = _answers(world, 90)
    assert set(answers) == set(BACKENDS[:3])
    assert min(answers.values()) >= 10


def test_groups_share_calls_by_weight_and_a_weight_of_zero_is_never(world: World, datapath: Datapath) -> None:
    groups = (group(BACKENDS[0], weight=3), group(BACKENDS[1], weight=1), group(BACKENDS[2], weight=0))
    programmed(datapath.target(), plan("echo", VIP, *groups))
    answers = _answers(world, 200)
    assert set(answers) == set(BACKENDS[:2])
    assert 120 <= answers[BACKENDS[0]] <= 180


def test_a_tier_is_used_only_while_every_lower_one_is_empty(world: World, datapath: Datapath) -> None:
    target = datapath.target()
    programmed(target, plan("echo", VIP, group(BACKENDS[1], tier=1), group(BACKENDS[0], tier=0)))
    assert set(_answers(world, 20)) == {BACKENDS[0]}
    programmed(target, plan("echo", VIP, group(BACKENDS[1], tier=1), group(tier=0)))
    assert set(_answers(world, 20)) == {BACKENDS[1]}


def test_a_service_without_backends_refuses_at_once(world: World, datapath: Datapath) -> None:
    programmed(
        datapath.target(),
        plan("echo", VIP),
        plan("echo", VIP, protocol="UDP"),
    )
    assert world.caller.tcp(VIP) == refused()
    assert world.caller.udp(VIP) == refused()
    assert _counts(datapath) == {
        ("demo/echo:80/TCP/IPv4", "", "refused"): 1,
        ("demo/echo:80/UDP/IPv4", "", "refused"): 1,
    }


def test_calls_are_counted_by_service_and_cluster(world: World, datapath: Datapath) -> None:
    groups = (group(BACKENDS[0], cluster="c1"), group(BACKENDS[1], cluster="c2"))
    programmed(datapath.target(), plan("echo", VIP, *groups), plan("other", "10.96.7.8", group(BACKENDS[2])))
    answers = _answers(world, 60)
    assert _counts(datapath) == {
        ("demo/echo:80/TCP/IPv4", "c1", "called"): answers[BACKENDS[0]],
        ("demo/echo:80/TCP/IPv4", "c2", "called"): answers[BACKENDS[1]],
    }
    assert sum(answers.values()) == 60


def test_a_client_with_affinity_stays_until_its_backend_leaves(world: World, datapath: Datapath) -> None:
    target = datapath.target()
    programmed(target, plan("echo", VIP, group(*BACKENDS[:4]), affinity=600))
    [first] = _answers(world, 20)
    rest = [each for each in BACKENDS[:4] if each != first]
    programmed(target, plan("echo", VIP, group(*rest), affinity=600))
    [second] = _answers(world, 20)
    assert second in rest
    programmed(target, plan("echo", VIP, group(*BACKENDS[:4]), affinity=600))
    assert set(_answers(world, 20)) == {second}


@pytest.mark.parametrize(("passed", "stays"), [(15, True), (35, False)])  # an emulated machine is up for minutes only
def test_affinity_ends_when_its_time_is_over_since_the_last_call(
    world: World, datapath: Datapath, passed: int, stays: bool
) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(*BACKENDS[:4]), affinity=30))
    found = set(_answers(world, 1))
    for _ in range(20):
        [(key, value)] = datapath.maps.items("affinity")
        entry = codecs.AFFINITY.named(value)
        entry["used"] -= passed * 10**9
        datapath.maps.put("affinity", [(key, codecs.AFFINITY.pack(*entry.values()))])
        found |= set(_answers(world, 1))
    assert (len(found) == 1) is stays


def test_affinity_to_a_number_that_another_backend_has_since_is_not_followed(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), plan("echo", VIP, group(*BACKENDS[:4]), affinity=600))
    _answers(world, 1)
    [(key, value)] = datapath.maps.items("affinity")
    entry = codecs.AFFINITY.named(value)
    entry["generation"] -= 1
    datapath.maps.put("affinity", [(key, codecs.AFFINITY.pack(*entry.values()))])
    assert set(_answers(world, 1)) <= set(BACKENDS[:4])
    assert {row["verdict"] for row in datapath.counters()} == {"called"}


def test_affinity_that_another_cpu_renewed_a_moment_later_has_not_expired(world: World, datapath: Datapath) -> None:
    """Two CPUs serve one client: the time in the entry may be later than the clock that was read before it."""
    programmed(datapath.target(), plan("echo", VIP, group(*BACKENDS), affinity=600))
    found = set(_answers(world, 1))
    for _ in range(20):
        [(key, value)] = datapath.maps.items("affinity")
        entry = codecs.AFFINITY.named(value)
        entry["used"] += 2 * 10**9
        datapath.maps.put("affinity", [(key, codecs.AFFINITY.pack(*entry.values()))])
        found |= set(_answers(world, 1))
    assert len(found) == 1


def test_a_client_of_many_services_does_not_end_the_affinity_of_another(world: World, datapath: Datapath) -> None:
    """Entries of one network namespace are bounded, or one pod could push out those of all others of the node."""
    other = world.call_from(world.cgroup, namespace=world.server)
    crowd = [plan(f"s{n}", f"10.96.{16 + n // 256}.{n % 256}", group(BACKENDS[0]), affinity=600) for n in range(900)]
    programmed(datapath.target(), plan("echo", VIP, group(*BACKENDS), affinity=600), *crowd)
    [first] = _answers(world, 1)
    before = set(datapath.maps.items("affinity"))
    for row in crowd:
        other.tcp(row.frontends[0].address)
    assert before <= set(datapath.maps.items("affinity"))
    assert len(list(datapath.maps.items("affinity"))) <= 1 + 1024 // 16
    assert set(_answers(world, 5)) == {first}


def test_affinity_is_a_clients_own_and_a_services_own(world: World, datapath: Datapath) -> None:
    names = [f"10.96.9.{n}" for n in range(8)]
    programmed(datapath.target(), *(plan(f"s{n}", vip, group(*BACKENDS), affinity=600) for n, vip in enumerate(names)))
    chosen = {vip: world.caller.tcp(vip)["answer"] for vip in names}
    assert len(set(chosen.values())) > 1
    assert {vip: world.caller.tcp(vip)["answer"] for vip in names} == chosen


@pytest.mark.parametrize(
    ("name", "tear"),
    [
        ("frontends", lambda value: b"\xff" + value[1:]),
        ("plans", lambda value: value[:4] + b"\xff" + value[5:]),
        ("slots", lambda value: b"\xff" + value[1:]),
        ("slots", lambda value: value[:8] + b"\xff" + value[9:]),
        ("backends", lambda value: b"\xff" + value[1:]),
        ("plans", None),
        ("slots", None),
        ("backends", None),
    ],
)
def test_what_is_not_what_was_asked_for_is_never_called(
    world: World, datapath: Datapath, name: str, tear: Callable[[bytes], bytes] | None
) -> None:
    """An element recycled for another key, or one that is gone: after three looks the call ends, counted as lost."""
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    [(key, value)] = datapath.maps.items(name)
    if tear:
        datapath.maps.put(name, [(key, tear(value))])
    else:
        datapath.maps.drop(name, [key])
    assert world.caller.tcp(VIP) == refused()
    assert [row["verdict"] for row in datapath.counters()] == ["lost"]
    datapath.maps.put(name, [(key, value)])
    assert world.caller.tcp(VIP)["answer"].startswith(BACKENDS[0])


def test_where_the_kernel_cannot_say_why_a_refused_call_sees_eperm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libbpf, "has_helper", lambda *_: False)
    previous = world.open()
    programmed(previous.target(), plan("echo", VIP))
    assert world.caller.tcp(VIP) == {"error": "EPERM"}
    previous.close()
    remove(world.pin)


def test_one_udp_socket_stays_with_its_backend_and_knows_it_by_each_name(world: World, datapath: Datapath) -> None:
    names = [f"10.96.9.{n}" for n in range(1, 5)]
    rows = [plan(f"s{n}", vip, group(*BACKENDS[:3], protocol="UDP"), protocol="UDP") for n, vip in enumerate(names)]
    programmed(datapath.target(), *rows)
    first = [world.caller.udp(vip, name="kept") for vip in names]
    second = [world.caller.udp(vip, name="kept") for vip in names]
    assert [result["from"] for result in (*first, *second)] == [f"{vip}:80" for vip in names] * 2
    assert [result["answer"] for result in first] == [result["answer"] for result in second]


@pytest.mark.parametrize("count", [2, 4])
def test_an_unconnected_udp_socket_keeps_its_backend_when_others_come_or_go(
    world: World, datapath: Datapath, count: int
) -> None:
    to = datapath.target()
    three, changed = (group(*BACKENDS[:n], protocol="UDP") for n in (3, count))
    programmed(to, plan("echo", VIP, three, protocol="UDP"))
    names = [f"grow{count}-{n}" for n in range(40)]
    first = [world.caller.udp(VIP, name=name)["answer"].split()[0] for name in names]
    programmed(to, plan("echo", VIP, changed, protocol="UDP"))
    second = [world.caller.udp(VIP, name=name)["answer"].split()[0] for name in names]
    stayed = [(a, b) for a, b in zip(first, second, strict=True) if a in BACKENDS[:count]]
    assert len(stayed) > 10, "of 40, two thirds or all"
    assert [pair for pair in stayed if pair[0] != pair[1]] == []
    assert set(second) <= set(BACKENDS[:count])


@needs_multipath
def test_a_call_by_multipath_tcp_has_the_service_as_its_peer(world: World, datapath: Datapath) -> None:
    """Linux 5.19 and later; before, the program cannot get from the subflow to the socket that the application has."""
    programmed(datapath.target(), plan("echo", VIP, group(BACKENDS[0])))
    [result] = world.caller.calls("mptcp", VIP, 80)
    assert result == {"answer": f"{BACKENDS[0]} 10.7.0.1", "peer": f"{VIP}:80"}


def test_a_plan_for_calls_from_inside_comes_before_that_for_all(world: World, datapath: Datapath) -> None:
    target = datapath.target()
    outside = plan("echo", VIP, group(BACKENDS[0]))
    inside = plan("echo", VIP, group(BACKENDS[1]), scope=Scope.INTERNAL)
    programmed(target, outside, inside)
    assert world.caller.tcp(VIP)["answer"].startswith(BACKENDS[1])
    programmed(target, outside)
    assert world.caller.tcp(VIP)["answer"].startswith(BACKENDS[0])


@pytest.mark.own_datapath
def test_an_exempt_cgroup_and_all_below_it_are_never_touched(world: World, datapath: Datapath) -> None:
    exempt = world.cgroup / "exempt"
    inside = world.call_from(exempt / "below")
    datapath.close()
    reopened = world.open(exempt=(str(exempt),))
    try:
        programmed(reopened.target(), plan("echo", CLUSTER_DNS, group(BACKENDS[0])))
        assert world.caller.tcp(CLUSTER_DNS)["answer"] == f"{BACKENDS[0]} 10.7.0.1"
        assert inside.tcp(CLUSTER_DNS)["answer"] == f"{CLUSTER_DNS}:80 10.7.0.1"
    finally:
        reopened.close()


def test_datagrams_of_one_socket_to_one_service_are_one_call(world: World, datapath: Datapath) -> None:
    row = plan("echo", VIP, group(*BACKENDS[:3], protocol="UDP"), protocol="UDP")
    programmed(datapath.target(), row)
    assert len({world.caller.udp(VIP, name="again")["answer"] for _ in range(5)}) == 1
    assert _counts(datapath) == {("demo/echo:80/UDP/IPv4", "c1", "called"): 1}


def _answers(world: World, times: int) -> Counter[str]:
    """Which backend answered how often."""
    return Counter(result["answer"].split()[0] for result in world.caller.calls("tcp", VIP, 80, times=times))


def _counts(datapath: Datapath) -> dict[tuple[str, str, str], int]:
    return {(row["service"], row["cluster"], row["verdict"]): row["calls"] for row in datapath.counters()}
