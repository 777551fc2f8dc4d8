"""Faults in a lab: processes and links are killed, paused, cut or slowed, and recover."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from labs.lab_running import Running, lab_name, until

from isthmus_lab import fault_targets, kernel, removal
from isthmus_lab.fault_targets import FaultTarget, NoSuchTarget
from isthmus_lab.layout import GATEWAY, Lab
from isthmus_lab.network import namespaces, netem
from isthmus_lab.network.impairments import Cut, Impairments, Link, relays, ruleset
from isthmus_lab.network.relay import Line, Timing
from isthmus_lab.node.kubelet import PORT

LAB = Lab("demo", 2, 2)


@pytest.mark.parametrize(
    ("text", "thing"),
    [
        ("c1", FaultTarget("c1")),
        ("c1/node/2", FaultTarget("c1", node=2)),
        ("c1/n2", FaultTarget("c1", node=2)),
        ("c2/etcd", FaultTarget("c2", process="etcd")),
        ("c2/agent", FaultTarget("c2", process="agent")),
        ("c2/n1/agent", FaultTarget("c2", node=1, process="agent")),
        ("c1/pod/demo/echo-1", FaultTarget("c1", pod="demo/echo-1")),
    ],
)
def test_a_thing_is_named_as_people_do(text: str, thing: FaultTarget) -> None:
    assert fault_targets.parse(LAB, text) == thing


@pytest.mark.parametrize("text", ["c3", "c1/n3", "c1/node/0", "c1/agents", "c1/pod/echo", "c1/n1/etcd", ""])
def test_what_is_not_in_the_lab_is_named(text: str) -> None:
    with pytest.raises(NoSuchTarget, match="it has"):
        fault_targets.parse(LAB, text)


def test_a_process_of_every_node_is_meant_unless_a_node_is_named() -> None:
    known = ["c1/etcd", "c1/n1/agent", "c1/n2/agent", "c1/n1/dns", "c2/n1/agent"]
    assert fault_targets.programs(LAB, fault_targets.parse(LAB, "c1/agent"), known) == ["c1/n1/agent", "c1/n2/agent"]
    assert fault_targets.programs(LAB, fault_targets.parse(LAB, "c1/n1"), known) == ["c1/n1/agent", "c1/n1/dns"]
    assert fault_targets.programs(LAB, fault_targets.parse(LAB, "c1"), known) == known[:4]


def rules(*cuts: Cut, links: tuple[Link, ...] = ()) -> list[str]:
    return [line.strip() for line in ruleset(LAB, Impairments(cuts, links)).splitlines() if line.startswith("    ")][1:]


def thing(text: str) -> FaultTarget:
    return fault_targets.parse(LAB, text)


def test_a_cut_is_both_ways_unless_asked_otherwise() -> None:
    both = rules(Cut(thing("c1/n1"), thing("c2/n1")))
    assert both == [
        'iifname { "c1-n1" } fib daddr oifname { "c2-n1" } drop',
        'iifname { "c2-n1" } fib daddr oifname { "c1-n1" } drop',
    ]
    assert rules(Cut(thing("c1/n1"), thing("c2/n1"), one_way=True)) == both[:1]


def test_a_node_and_its_api_server_are_cut_by_port() -> None:
    assert rules(Cut(thing("c1/n1"), thing("c1/apiserver"))) == [
        'iifname { "c1-n1" } fib daddr oifname { "c1-cp" } th dport 6443 drop',
        'iifname { "c1-cp" } fib daddr oifname { "c1-n1" } th sport 6443 drop',
    ]


def test_a_node_is_cut_from_the_rest_of_its_cluster() -> None:
    assert rules(Cut(thing("c1"), thing("c1/n1"), one_way=True)) == [
        'iifname { "c1-cp", "c1-n2" } fib daddr oifname { "c1-n1" } drop'
    ]


def test_pods_of_an_island_are_cut_by_their_addresses() -> None:
    island = Lab("demo", 2, 2, ("island",))
    output = ruleset(island, Impairments((Cut(thing("c1/n1"), thing("c1/n2"), one_way=True),)))
    assert 'iifname { "c1-n1" } ip daddr { 10.1.2.0/24 } drop' in output


def test_a_cut_from_an_island_spares_its_own_pods_though_a_flat_cluster_has_their_addresses() -> None:
    mixed = Lab("demo", 2, 2, ("flat", "island"))
    output = ruleset(mixed, Impairments((Cut(thing("c2"), thing("c1"), one_way=True),)))
    [rule] = [line.strip() for line in output.splitlines() if line.endswith("drop")]
    assert 'ip daddr != 10.1.0.0/16 fib daddr oifname { "c1-cp", "c1-n1", "c1-n2" } drop' in rule


def test_loss_alone_needs_no_relay_and_delay_does() -> None:
    lossy, slow = Link(thing("c1"), thing("c2"), loss=0.01), Link(thing("c1/n1"), thing("c1/n2"), delay=40.0)
    output = rules(links=(lossy, slow))
    assert [line.partition("numgen ")[2] for line in output[:2]] == ["random mod 1000000 < 10000 drop"] * 2
    assert output[2].endswith("meta mark set 27650")
    assert output[3].endswith("meta mark set 27651")
    assert list(relays(LAB, Impairments(links=(lossy, slow)))) == ["link1"]


def test_a_kernel_with_netem_gets_what_relays_would_do() -> None:
    links = (Link(thing("c1"), thing("c2"), loss=0.01), Link(thing("c1/n1"), thing("c1/n2"), delay=40.0, jitter=5.0))
    commands = netem.commands(LAB, Impairments(links=links))
    assert commands[:2] == ["qdisc replace dev c1-cp root handle 2: htb", "qdisc replace dev c1-cp root handle 1: htb"]
    assert commands[12:] == [
        "class add dev c1-n2 parent 1: classid 1:3 htb rate 100gbit quantum 60000",
        "qdisc add dev c1-n2 parent 1:3 netem limit 1000 delay 40ms 5ms",
        "filter add dev c1-n2 parent 1: protocol all handle 0x6c02 fw classid 1:3",
        "class add dev c1-n1 parent 1: classid 1:4 htb rate 100gbit quantum 60000",
        "qdisc add dev c1-n1 parent 1:4 netem limit 1000 delay 40ms 5ms",
        "filter add dev c1-n1 parent 1: protocol all handle 0x6c03 fw classid 1:4",
    ]
    assert netem.commands(LAB, Impairments()) == commands[:12]


def test_a_narrow_link_between_clusters_is_as_narrow_at_each_machine() -> None:
    commands = netem.commands(Lab("demo", 2, 1), Impairments(links=(Link(thing("c1"), thing("c2"), rate=50_000_000),)))
    queues = [line for line in commands if "netem" in line]
    assert [line.split()[3] for line in queues] == ["c2-cp", "c2-n1", "c1-cp", "c1-n1"]
    assert {line.partition("limit 1000 ")[2] for line in queues} == {"rate 50000000bit"}


@pytest.mark.lab
@pytest.mark.slow
def test_a_kernel_is_asked_in_a_namespace_and_never_in_the_hosts() -> None:
    before = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, check=True).stdout
    netem.supported.cache_clear()
    assert netem.supported() in (True, False)
    assert subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, check=True).stdout == before


@pytest.mark.parametrize(("a", "b", "back"), [("c1/n1", "c1/n2", 1001), ("c1", "c2", 0)])
def test_what_an_islands_relay_held_goes_on_by_the_islands_ways(a: str, b: str, back: int) -> None:
    island, slow = Lab("demo", 2, 2, ("island",)), Link(thing(a), thing(b), delay=40.0)
    assert relays(island, Impairments(links=(slow,)))["link0"][-1] == f"--table={back}"
    assert relays(LAB, Impairments(links=(slow,)))["link0"][-1] == "--table=0"


def test_a_line_keeps_order_and_its_rate() -> None:
    line = Line(Timing(delay=0.04, jitter=0.02, rate=0))
    departures = [line.departure(100, now / 1000) for now in range(200)]
    assert departures == sorted(departures)
    assert all(0.02 <= when - now / 1000 <= 0.1 for now, when in enumerate(departures))
    narrow = Line(Timing(delay=0.0, jitter=0.0, rate=8000))
    assert [narrow.departure(100, 5.0) for _ in range(3)] == pytest.approx([5.1, 5.2, 5.3])


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two clusters of two nodes with an echo server and a client each, and nothing of Isthmus."""
    running = Running(Lab(lab_name("u"), 2, 2))
    directory = tmp_path_factory.mktemp("manifests")
    pods = [_pod("echo", "isthmus/echo", 2, "c1"), _pod("client", "isthmus/client", 1, "c1")]
    for cluster in ("c1", "c2"):
        (directory / cluster).mkdir()
        renamed = json.loads(json.dumps(pods).replace("c1-", f"{cluster}-"))
        (directory / cluster / "pods.yaml").write_text(yaml.safe_dump_all(renamed))
    try:
        running.cli("up", "--clusters", "2", "--nodes", "2", "--from", str(directory), "--without-isthmus")
        until(lambda: running.count_ready() == 4, what="all pods run")
        yield running
    finally:
        removal.remove(running.lab)


def _pod(name: str, image: str, node: int, cluster: str) -> dict[str, Any]:
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    container = {"name": "main", "image": image, **({"readinessProbe": probe} if image == "isthmus/echo" else {})}
    spec = {"nodeName": f"{cluster}-n{node}", "containers": [container], "terminationGracePeriodSeconds": 2}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def address(hurt: Running, cluster: str) -> str:
    pod = json.loads(hurt.kubectl("get", "pod", "echo", "-o", "json", cluster=cluster))
    return str(pod["status"]["podIP"])


def call(hurt: Running, target: str, *, cluster: str = "c1", patience: int = 30) -> tuple[float, str]:
    """Seconds until connected, and curl's result: ok, or its error; silence where there is none in that time."""
    script = f"curl -s -o /dev/null -m{patience} -w '%{{time_connect}} %{{exitcode}}' http://{target}:8080; true"
    seconds, code = hurt.exec("default/client", script, cluster=cluster).split()
    return float(seconds), {"0": "ok", "7": "refused", "28": "silence"}.get(code, code)


@pytest.mark.lab
@pytest.mark.slow
def test_a_silent_cut_loses_packets_a_loud_one_refuses_and_healing_heals(hurt: Running) -> None:
    there = address(hurt, "c2")
    assert call(hurt, there)[1] == "ok"
    hurt.cli("cut", "c1", "c2")
    assert call(hurt, there, patience=2)[1] == "silence"
    assert call(hurt, address(hurt, "c1"))[1] == "ok", "the own cluster is not cut"
    assert "cut c1 ↔ c2" in hurt.cli("status").stdout
    hurt.cli("cut", "--loud", "c1", "c2")
    assert call(hurt, there)[1] == "refused"
    assert hurt.cli("heal").stdout == "healed 1\n"
    assert call(hurt, there)[1] == "ok"


@pytest.mark.lab
@pytest.mark.slow
def test_nodes_of_one_cluster_are_cut_from_each_other(hurt: Running) -> None:
    hurt.cli("cut", "c1/node/1", "c1/node/2")
    assert call(hurt, address(hurt, "c1"), patience=2)[1] == "silence"
    assert call(hurt, address(hurt, "c1"), cluster="c2")[1] == "ok"
    hurt.cli("heal", "c1/n1")


@pytest.mark.lab
@pytest.mark.slow
def test_a_link_is_slow_in_both_directions_and_then_as_new(hurt: Running) -> None:
    there = address(hurt, "c2")
    hurt.cli("link", "c1", "c2", "--delay", "40ms")
    assert call(hurt, there)[0] >= 0.08
    assert "link c1 ↔ c2: 40 ms ± 0" in hurt.cli("status").stdout
    hurt.cli("link", "c1", "c2")
    until(lambda: call(hurt, there)[0] < 0.08, what="a call is faster than the delay that was")


@pytest.mark.lab
@pytest.mark.slow
def test_a_link_between_nodes_of_one_cluster_is_slow(hurt: Running) -> None:
    there = address(hurt, "c1")
    hurt.cli("link", "c1/n1", "c1/n2", "--delay", "40ms", "--rate", "50mbit")
    assert call(hurt, there)[0] >= 0.08
    hurt.cli("heal")
    until(lambda: call(hurt, there)[0] < 0.08, what="a call is faster than the delay that was")


@pytest.mark.lab
@pytest.mark.slow
def test_a_paused_pod_is_silent_and_goes_on(hurt: Running) -> None:
    there = address(hurt, "c2")
    hurt.cli("pause", "c2/pod/default/echo")
    seconds, output = call(hurt, there, patience=2)
    assert output == "silence", seconds
    hurt.cli("start", "c2/pod/default/echo")
    assert call(hurt, there)[1] == "ok"


@pytest.mark.lab
@pytest.mark.slow
def test_a_killed_machine_is_silent_and_comes_back_with_its_pods(hurt: Running, until: Callable[..., Any]) -> None:
    there = address(hurt, "c2")
    assert "1 pods" in hurt.cli("kill", "c2/node/2").stdout
    assert call(hurt, there, patience=2)[1] == "silence"
    assert "c2/n2/node      killed" in hurt.cli("status").stdout
    hurt.cli("start", "c2/node/2")
    until(lambda: call(hurt, address(hurt, "c2"))[1] == "ok")


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("process", ["apiserver", "etcd"])
def test_objects_survive_a_kill_of_api_server_and_etcd(hurt: Running, until: Callable[..., Any], process: str) -> None:
    hurt.kubectl("create", "configmap", f"kept-{process}", "--from-literal=a=1")
    hurt.cli("kill", f"c1/{process}")
    until(lambda: f"c1/{process}" in _killed(hurt))
    time.sleep(0.3)
    assert f"c1/{process}" in _killed(hurt), "what is killed stays so until it is started"
    assert call(hurt, address(hurt, "c2"))[1] == "ok", "calls go on"
    hurt.cli("start", f"c1/{process}")
    until(lambda: not _killed(hurt))
    until(lambda: hurt.count_ready() == 4)
    until(lambda: "kept" in hurt.kubectl("get", "configmap", f"kept-{process}"), what="the object is read")


@pytest.mark.lab
@pytest.mark.slow
def test_a_fault_that_cannot_be_injected_is_refused_in_one_line(hurt: Running) -> None:
    for words, output in [
        (("kill", "c9"), "has no cluster c9"),
        (("kill", "c1/pod/default/nobody"), "no such pod runs in c1"),
        (("kill", "c1/agent"), "no such process runs in this lab"),
        (("link", "c1", "c2", "--delay", "soon"), "--delay soon: want a number and one of ms, s"),
        (("link", "c1", "c2", "--loss", "200%"), "--loss 200%"),
        (("cut", "c1/pod/default/echo", "c2"), "a pod has no cable of its own"),
    ]:
        stderr = hurt.cli(*words, code=1).stderr
        assert output in stderr
        assert stderr.count("\n") == 1


def _killed(hurt: Running) -> set[str]:
    return {each["name"] for each in hurt.status()["programs"] if each["state"] != "ready"}


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """Two islands of two nodes with the same pod addresses."""
    running = Running(Lab(lab_name("i"), 2, 2, ("island",)))
    try:
        running.cli("up", "--clusters", "2", "--nodes", "2", "--network", "island", "--without-isthmus")
        for cluster in ("c1", "c2"):
            pods = [_pod("echo", "isthmus/echo", 2, cluster), _pod("client", "isthmus/client", 1, cluster)]
            running.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(pods), cluster=cluster)
        until(lambda: running.count_ready() == 4, what="all pods run")
        yield running
    finally:
        removal.remove(running.lab)


def reached(source: str, target: str, port: int, *, patience: float = 30.0) -> bool:
    """True if a connection from a namespace of the lab is established in ``patience`` seconds."""
    with kernel.inside(namespaces.path(source)):
        made = socket.socket()
    with made:
        made.settimeout(patience)
        try:
            made.connect((target, port))
        except TimeoutError:
            return False
        return True


@pytest.mark.lab
@pytest.mark.slow
def test_islands_have_the_same_pod_addresses_and_each_reaches_its_own(islands: Running) -> None:
    assert address(islands, "c1") == address(islands, "c2") == "10.1.2.2"
    for cluster in ("c1", "c2"):
        output = islands.exec("default/client", "curl -sm30 http://10.1.2.2:8080", cluster=cluster)
        assert json.loads(output)["cluster"] == cluster


@pytest.mark.lab
@pytest.mark.slow
def test_nodes_of_an_island_are_cut_from_each_other(islands: Running) -> None:
    islands.cli("cut", "c2/n1", "c2/n2")
    assert call(islands, "10.1.2.2", cluster="c2", patience=1)[1] == "silence"
    assert call(islands, "10.1.2.2", cluster="c1")[1] == "ok"
    islands.cli("heal")


@pytest.mark.lab
@pytest.mark.slow
def test_a_link_within_an_island_is_slow_and_that_of_the_other_is_not(islands: Running) -> None:
    islands.cli("link", "c2/n1", "c2/n2", "--delay", "40ms")
    assert call(islands, "10.1.2.2", cluster="c2")[0] >= 0.08
    until(lambda: call(islands, "10.1.2.2", cluster="c1")[0] < 0.04, what="a call is faster than the other's delay")
    islands.cli("heal")
    until(lambda: call(islands, "10.1.2.2", cluster="c2")[0] < 0.04, what="a call is faster than the delay that was")


@pytest.mark.lab
@pytest.mark.slow
def test_of_another_island_machines_reach_nothing_but_the_gateways_port(islands: Running) -> None:
    (one, two), source = islands.lab.clusters, islands.lab.clusters[0].nodes[1].namespace
    gateway = two.nodes[0].address
    with pytest.raises(ConnectionRefusedError):  # so packets pass, both ways: this lab has no gateway
        reached(source, gateway, GATEWAY)
    assert not reached(source, gateway, PORT, patience=0.5)
    assert not reached(source, two.nodes[1].address, GATEWAY, patience=0.5)
    assert not reached(source, two.address, 2379, patience=0.5)
    assert reached(source, one.address, 2379), "the own control plane is no other island"
    script = f"curl -sm1 http://{gateway}:{GATEWAY} || echo $?"
    assert islands.exec("default/client", script) == "28\n", "pods are not seen from other islands"


@pytest.mark.lab
@pytest.mark.slow
def test_a_gateways_machine_opens_no_connection_from_its_port(islands: Running) -> None:
    one, two = islands.lab.clusters
    with kernel.inside(namespaces.path(one.nodes[0].namespace)):
        made = socket.socket()
    with made:
        made.settimeout(0.5)
        made.bind(("0.0.0.0", GATEWAY))
        with pytest.raises(TimeoutError):
            made.connect((two.nodes[0].address, PORT))
