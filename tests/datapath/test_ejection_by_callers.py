"""What one pod's connects come to is of effect on that pod alone: no other's calls avoid a backend because of it.

A pod can make its own connects fail without a right to anything, by the options of its sockets, and a network policy
can for it. A backend is ejected for the node where two pods find it dead at a time, or the agent does.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from datapath_worlds.bpf_world import Load, World, group, plan, programmed
from datapath_worlds.failing_backends import GOOD, GOOD6, REFUSES, REFUSES6, SILENT, SILENT6, VIP, VIP6, host
from labs.lab_running import PATIENCE, until
from machine.namespaces import put

from isthmus.datapath import Datapath, remove, view
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.failures import codecs
from isthmus.datapath.settings import CONFIG
from isthmus.model.balancing import Ejection

pytestmark = pytest.mark.bpf

LONG = Ejection(after=3, first=3600.0, longest=3600.0)
"""Longer than a test takes on an emulated machine."""
FAR = ("10.8.3.1:8080", "10.8.3.2:8080")
"""Behind the node, which forwards what it is sent."""
BOTH = [
    pytest.param(VIP, GOOD, (REFUSES, SILENT), id="IPv4"),
    pytest.param(VIP6, GOOD6, (REFUSES6, SILENT6), id="IPv6"),
]


@pytest.fixture(scope="module", autouse=True)
def node(served: World) -> None:
    """A node that forwards to two servers, and answers by ICMP as often as there is reason to."""
    served.slow_servers(0.0, *FAR)
    for setting in ("ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"):
        put(served.server, f"net/{setting}", 0)  # or the answer to all but the first few is silence


@pytest.fixture
def rescuing(served: World, datapath: Datapath, pods: list[Load]) -> Iterator[Datapath]:
    """One whose programs are on the links of all three."""
    with ExitStack() as stack:
        for device in ("eth0", "p1", "p2"):
            stack.enter_context(served.on_link(datapath, device))
        yield datapath


def ejected(datapath: Datapath) -> set[str]:
    """Backends that are ejected for all."""
    return {row["backend"].partition("/")[0] for row in view.rows(datapath.maps, "failing") if row["ejected"]}


def ejected_for_callers(datapath: Datapath) -> dict[str, int]:
    """For how many callers each backend is ejected."""
    rows = [row for row in view.rows(datapath.maps, "caller_failing") if row["ejected"]]
    names = [row["backend"].partition("/")[0] for row in rows]
    return {name: names.count(name) for name in names}


def split(found: Any, backends: tuple[str, ...]) -> None:
    """An even split of calls, none of which failed."""
    total = sum(found.answered.values())
    assert found.ended == {"ok": total}
    assert set(found.answered) == set(backends)
    assert all(abs(count - total / len(backends)) < total / 6 for count in found.answered.values()), found.answered


@pytest.mark.parametrize(
    "options",
    [pytest.param({"ttl": 1}, id="IP_TTL"), pytest.param({"least_ttl": 255}, id="IP_MINTTL", marks=pytest.mark.slow)],
)
def test_what_a_pod_does_to_its_own_packets_ejects_no_backend_for_another(
    rescuing: Datapath, pods: list[Load], options: dict[str, int]
) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(*FAR), ejection=LONG))
    split(pods[1].run(VIP, calls=200, at_once=5), FAR)
    for at_once in (1, 20):
        result = pods[0].run(VIP, calls=6 * at_once, at_once=at_once, timeout=1.0, options=options)
        assert "ok" not in result.ended, "this test has shown nothing"
    assert ejected(rescuing) == set()
    split(pods[1].run(VIP, calls=200, at_once=5), FAR)


def test_time_exceeded_of_the_own_node_counts_for_nothing(rescuing: Datapath, pods: list[Load]) -> None:
    """Not for the caller either: it is no more known then that its packets were sent with one hop."""
    programmed(rescuing.target(), plan("echo", VIP, group(*FAR), ejection=LONG))
    result = pods[0].run(VIP, calls=20, at_once=5, timeout=0.4, options={"ttl": 1})
    assert "ok" not in result.ended
    assert view.rows(rescuing.maps, "caller_failing") == []


@pytest.fixture
def policy(served: World) -> Iterator[Callable[[str, str, str], None]]:
    """Denies a pod, by its address, one backend: what a network policy makes of it on a node."""

    def denied(pod: str, backend: str, verb: str) -> None:
        family = "ip6" if ":" in pod else "ip"
        rule = f"{family} saddr {pod} {family} daddr {host(backend)} tcp dport 8080 {verb}"
        chain = f"chain input {{ type filter hook input priority 0; {rule}; }};"
        nft(served, f"table inet denies {{ {chain} }}")

    yield denied
    nft(served, "delete table inet denies")


def nft(world: World, text: str) -> None:
    subprocess.run(["ip", "netns", "exec", world.server, "nft", text], check=True)


POD, POD6 = "10.7.0.1", "fd00:7::1"
PODS, PODS6 = (POD, "10.7.1.1"), (POD6, "fd00:7:1::1")


@pytest.mark.needs("nft")
@pytest.mark.parametrize("verb", ["drop", "reject with tcp reset"], ids=["drop", "RST"])
@pytest.mark.parametrize(("vip", "good", "pod"), [(VIP, GOOD, POD), (VIP6, GOOD6, POD6)], ids=["IPv4", "IPv6"])
def test_a_pod_that_a_policy_denies_a_backend_avoids_it_and_no_other_does(
    rescuing: Datapath, pods: list[Load], policy: Any, vip: str, good: tuple[str, ...], pod: str, verb: str
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(*good), ejection=LONG))
    policy(pod, good[0], verb)
    denied = pods[0].run(vip, calls=100, at_once=5)
    assert denied.ended == {"ok": 100}
    assert set(denied.answered) == {good[1]}
    assert ejected(rescuing) == set()
    assert ejected_for_callers(rescuing) == {good[0]: 1}
    split(pods[1].run(vip, calls=200, at_once=5), good)
    met = denials(rescuing, good[0])
    assert set(pods[0].run(vip, calls=100, at_once=5).answered) == {good[1]}
    assert denials(rescuing, good[0]) == met, "another's success is of no effect on what failed here"


@pytest.mark.needs("nft")
@pytest.mark.parametrize("verb", ["drop", "reject with tcp reset"], ids=["drop", "RST"])
@pytest.mark.parametrize(
    ("vip", "good", "pods_denied"), [(VIP, GOOD, PODS), (VIP6, GOOD6, PODS6)], ids=["IPv4", "IPv6"]
)
def test_two_pods_that_a_policy_denies_a_backend_do_not_take_it_from_a_third_that_connects(
    rescuing: Datapath,
    pods: list[Load],
    policy: Any,
    vip: str,
    good: tuple[str, ...],
    pods_denied: tuple[str, str],
    verb: str,
) -> None:
    """The policy allows one namespace: the agent, which could say otherwise, is denied as well."""
    programmed(rescuing.target(), plan("echo", vip, group(good[0]), group(good[1], tier=1), ejection=LONG))
    policy(f"{{ {', '.join(pods_denied)} }}", good[0], verb)
    assert set(pods[0].run(vip, calls=5).answered) == {good[1]}
    assert good[0] in pods[2].run(vip, calls=5).answered
    assert set(pods[1].run(vip, calls=5).answered) == {good[1]}
    rescuing.maps.drop("caller_failing", [key for key, _ in rescuing.maps.items("caller_failing")])
    assert set(pods[0].run(vip, calls=5).answered) == {good[1]}, "it tries again, as when its time is over"
    assert ejected(rescuing) == set()
    assert pods[2].run(vip, calls=50).answered[good[0]] > 25, "a slow machine moves one or two"


def denials(datapath: Datapath, backend: str) -> int:
    """Connects that met a backend in vain."""
    return sum(row["failures"] for row in view.rows(datapath.maps, "failing") if row["backend"] == f"{backend}/TCP")


PROHIBITED = [
    pytest.param(VIP, GOOD, POD, "icmp type net-prohibited", id="3/9"),
    pytest.param(VIP, GOOD, POD, "icmp type host-prohibited", id="3/10"),
    pytest.param(VIP, GOOD, POD, "icmp type admin-prohibited", id="3/13"),
    pytest.param(VIP6, GOOD6, POD6, "icmpv6 type admin-prohibited", id="1/1"),
    pytest.param(VIP6, GOOD6, POD6, "icmpv6 type policy-fail", id="1/5"),
    pytest.param(VIP6, GOOD6, POD6, "icmpv6 type reject-route", id="1/6"),
]


@pytest.mark.slow
@pytest.mark.needs("nft")
@pytest.mark.parametrize(("vip", "good", "pod", "kind"), PROHIBITED)
def test_a_denial_by_icmp_is_no_failure_it_neither_counts_nor_moves_nor_ejects(
    served: World,
    rescuing: Datapath,
    pods: list[Load],
    policy: Any,
    vip: str,
    good: tuple[str, ...],
    pod: str,
    kind: str,
) -> None:
    """The application gets the error, as without us: it is the answer to its call."""
    programmed(rescuing.target(), plan("echo", vip, group(good[0]), group(good[1], tier=1), ejection=LONG))
    policy(pod, good[0], f"reject with {kind}")
    result = pods[0].run(vip, calls=20, at_once=1, timeout=PATIENCE)
    assert set(result.ended) <= {"EHOSTUNREACH", "ENETUNREACH", "EACCES"}, result.ended
    assert result.failed == 20
    found = [*view.rows(rescuing.maps, "failing"), *view.rows(rescuing.maps, "caller_failing")]
    assert not [row for row in found if row["reason"] == "unreachable"]
    assert good[0] in pods[1].run(vip, calls=50, at_once=5).answered
    assert good[0] not in ejected(rescuing)


@pytest.mark.parametrize(("vip", "good", "bad"), BOTH)
@pytest.mark.parametrize("kind", [0, 1], ids=["refuses", "silent"])
def test_a_backend_that_two_pods_find_dead_is_ejected_for_all(
    rescuing: Datapath, pods: list[Load], vip: str, good: tuple[str, ...], bad: tuple[str, str], kind: int
) -> None:
    programmed(rescuing.target(), plan("echo", vip, group(bad[kind]), group(*good, tier=1), ejection=LONG))
    for number, dead in ((0, False), (1, True)):
        assert pods[number].run(vip, calls=30, at_once=1).ended == {"ok": 30}
        assert (bad[kind] in ejected(rescuing)) is dead
    assert ejected_for_callers(rescuing)[bad[kind]] == 2
    assert pods[2].run(vip, calls=30, at_once=1).ended == {"ok": 30}
    assert ejected_for_callers(rescuing)[bad[kind]] == 2, "the third has not met it"


def test_one_pod_alone_costs_a_dead_backend_no_more_calls_than_it_takes_to_notice(
    datapath: Datapath, pods: list[Load]
) -> None:
    """Without rescue, as on the host's network: what fails is bounded for each caller."""
    programmed(datapath.target(), plan("echo", VIP, group(*GOOD, REFUSES), ejection=LONG))
    result = pods[0].run(VIP, calls=600, at_once=10, timeout=PATIENCE)
    assert 3 <= result.failed <= 3 + 10, result.ended
    assert pods[0].run(VIP, calls=300, at_once=10, timeout=PATIENCE).ended == {"ok": 300}
    assert ejected(datapath) == set()


@pytest.mark.parametrize("same", ["pod", "network namespace"])
def test_neither_two_namespaces_of_one_pod_nor_two_pods_of_one_namespace_are_two_callers(
    served: World, rescuing: Datapath, namespaces: tuple[str, str, str], same: str
) -> None:
    """A pod may make network namespaces where users may; pods of the host's network share one."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
    for number in (0, 1):
        cgroup = served.cgroup / ("pod0/container" if same == "pod" else f"pod{number}") / str(number)
        load = served.load_from(cgroup, namespace=namespaces[number if same == "pod" else 0])
        assert load.run(VIP, calls=30, at_once=3).ended == {"ok": 30}
    assert ejected(rescuing) == set()


def test_a_second_pod_of_a_network_namespace_confirms_nothing_though_what_the_first_met_is_forgotten(
    served: World, rescuing: Datapath, namespaces: tuple[str, str, str]
) -> None:
    """Callers' entries are the most recent of many: on the host's network a busy pod's take the place of others."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
    for number in (0, 1):
        rescuing.maps.drop("caller_failing", [key for key, _ in rescuing.maps.items("caller_failing")])
        load = served.load_from(served.cgroup / f"pod{number}" / "same", namespace=namespaces[0])
        assert load.run(VIP, calls=30, at_once=3).ended == {"ok": 30}
        assert ejected_for_callers(rescuing) == {REFUSES: 1}
    assert ejected(rescuing) == set()


@pytest.mark.own_datapath
def test_pods_below_classes_of_service_are_told_apart(served: World, namespaces: tuple[str, str, str]) -> None:
    """As kubelet has them: guaranteed ones below the cgroup of all pods, others below one of their class."""
    classes = ("kubepods-burstable.slice", "kubepods-besteffort.slice")
    for name in classes:
        (served.cgroup / name).mkdir(exist_ok=True)
    opened = served.open()
    try:
        [found] = [CONFIG.named(value) for _, value in opened.maps.items("config")]
        assert found["pods"] == b"".join(
            path.stat().st_ino.to_bytes(8, "little") for path in (served.cgroup, *(served.cgroup / c for c in classes))
        )
        programmed(opened.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
        for number in (0, 1):
            cgroup = served.cgroup / classes[0] / f"kubepods-burstable-pod{number}.slice" / "container"
            served.load_from(cgroup, namespace=namespaces[number]).run(VIP, calls=30, at_once=1)
        assert ejected(opened) == {REFUSES}
    finally:
        opened.close()
        remove(served.pin)


def verdict(datapath: Datapath, backend: str, found: int, *, seconds: float = 3600.0) -> None:
    """What the agent writes when it has tried."""
    [entry] = [each for target, each in datapath.state.by_target.items() if target.address == host(backend)]
    now = time.monotonic_ns()
    value = codecs.PROBED.pack(entry.generation, found, now, now + int(seconds * 1e9))
    assert datapath.maps.put("probed", [(ID.pack(entry.id), value)]) == {}


def test_a_backend_that_the_agent_finds_dead_too_is_ejected_for_all(rescuing: Datapath, pods: list[Load]) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
    pods[0].run(VIP, calls=10)
    verdict(rescuing, REFUSES, codecs.DEAD)
    assert pods[1].run(VIP, calls=30).ended == {"ok": 30}
    assert ejected_for_callers(rescuing) == {REFUSES: 1}
    assert sum(row["calls"] for row in rescuing.counters() if row["verdict"] == "ejected") >= 30


def test_a_verdict_on_a_backend_without_failures_is_not_asked_for(rescuing: Datapath, pods: list[Load]) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0]), group(GOOD[1], tier=1), ejection=LONG))
    verdict(rescuing, GOOD[0], codecs.DEAD)
    assert set(pods[1].run(VIP, calls=10).answered) == {GOOD[0]}


def test_while_the_agent_connects_to_it_callers_eject_a_backend_each_for_itself(
    rescuing: Datapath, pods: list[Load]
) -> None:
    """Of two pods that one tenant has, or that one policy denies."""
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
    pods[0].run(VIP, calls=10)
    verdict(rescuing, REFUSES, codecs.ANSWERS)
    pods[1].run(VIP, calls=10)
    assert ejected(rescuing) == set()
    assert ejected_for_callers(rescuing) == {REFUSES: 2}


def test_a_verdict_that_is_over_counts_no_more(rescuing: Datapath, pods: list[Load]) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), group(*GOOD, tier=1), ejection=LONG))
    pods[0].run(VIP, calls=10)
    verdict(rescuing, REFUSES, codecs.ANSWERS, seconds=-1.0)
    pods[1].run(VIP, calls=10)
    assert ejected(rescuing) == {REFUSES}


def test_a_connect_after_all_takes_back_the_verdict_that_a_backend_is_dead(
    rescuing: Datapath, pods: list[Load]
) -> None:
    """When all are ejected, all are called."""
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0]), ejection=LONG))
    pods[0].run(VIP, calls=20, at_once=20, timeout=1.0, options={"least_ttl": 255})
    verdict(rescuing, GOOD[0], codecs.DEAD)
    assert pods[1].run(VIP, calls=10).ended == {"ok": 10}
    assert view.rows(rescuing.maps, "probed") == []


def test_after_a_success_in_between_two_pods_do_not_confirm_each_other(rescuing: Datapath, pods: list[Load]) -> None:
    """Each of them fails by the options of its own sockets."""
    programmed(rescuing.target(), plan("echo", VIP, group(GOOD[0]), ejection=LONG))
    for number, options in ((0, {"least_ttl": 255}), (2, {}), (1, {"least_ttl": 255})):
        ended = pods[number].run(VIP, calls=4, at_once=1, timeout=0.4, options=options).ended
        assert ("ok" in ended) is not bool(options)
    assert ejected_for_callers(rescuing) == {GOOD[0]: 2}
    assert ejected(rescuing) == set()


@pytest.mark.slow
def test_what_fails_for_one_pod_when_a_time_is_over_keeps_no_other_from_trying(
    served: World, rescuing: Datapath, pods: list[Load], policy: Any
) -> None:
    """A backend was dead, and is back; one pod is denied it, and calls ten times as often as another."""
    back = "10.8.1.5:8080"
    times = Ejection(after=3, first=0.5, longest=0.5)
    programmed(rescuing.target(), plan("echo", VIP, group(back), group(*GOOD, tier=1), ejection=times))
    served.address("add", host(back))
    for pod in (pods[0], pods[1]):
        pod.run(VIP, calls=20)
    until(partial(ejected_once, rescuing, pods, back), what="it is ejected for all")
    server = served.serve(back)
    try:
        policy(POD, back, "reject with tcp reset")
        pods[0].start(VIP, calls=4_000, at_once=10, pause=0.005)
        until(lambda: back in pods[1].run(VIP, calls=10, pause=0.02).answered, what="the other has tried it")
        split(pods[1].run(VIP, calls=50), (back,))
        assert back not in pods[0].result().answered
    finally:
        server.kill()
        server.wait(60)
        served.address("del", host(back))


def ejected_once(datapath: Datapath, pods: list[Load], backend: str) -> bool:
    for pod in (pods[0], pods[1]):
        pod.run(VIP, calls=5)
    return backend in ejected(datapath)


def test_one_callers_entries_are_bounded_and_those_of_another_stay(
    served: World, datapath: Datapath, pods: list[Load]
) -> None:
    dead = [f"10.8.1.9:{9000 + n}" for n in range(3 * codecs.CALLER_CELLS)]
    programmed(
        datapath.target(),
        plan("one", VIP, group(REFUSES), ejection=LONG),
        plan("many", "10.96.7.8", group(*dead), ejection=LONG),
    )
    pods[1].run(VIP, calls=5)
    pods[0].run("10.96.7.8", calls=40 * len(dead), at_once=10)
    rows = view.rows(datapath.maps, "caller_failing")
    kept = {row["caller"]: 0 for row in rows}
    for row in rows:
        kept[row["caller"]] += 1
    assert sorted(kept.values()) == [1, codecs.CALLER_CELLS]
    assert f"{REFUSES}/TCP" in {row["backend"] for row in rows}
