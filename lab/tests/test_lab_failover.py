"""No connect fails while anything on the way dies, is cut off or replaced, as long as one backend answers.

c1's client calls an import by name and by address, TCP and UDP, IPv4 and IPv6, 330 times a second by a schedule, while
one fault after the other is made in the lab. What had been connected to a server that then died cannot be saved, nor a
datagram to it: those are counted apart.

Some faults are made again on paths of 1,300 bytes, with TCP Fast Open, with clients that give up after 100 ms, and with
the other cluster behind gateways.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from labs.failover_lab import Calling, cluster_of, lab_of, maps, settled
from labs.lab_running import Running, until

from isthmus.cli import local
from isthmus_lab import pod_exec
from isthmus_lab.supervisor.configs import config_of

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HERE = Path(__file__).parent
LAST_ACK = "09"
"""State LAST_ACK in the fourth column of /proc/net/tcp."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    with lab_of("f") as running:
        until(partial(settled, running), what="three backends of both families")
        yield running


@pytest.fixture(scope="module")
def islands() -> Iterator[Running]:
    """Two such clusters, each behind gateways."""
    with lab_of("g", "--network", "island", networks=("island",)) as running:
        until(partial(settled, running, ISLANDS), what="a backend and a gateway of each family")
        yield running


ISLANDS: Final = 8
"""The own backend and the other cluster's gateway for each family and protocol."""


def pods(lab: Running, cluster: str) -> list[dict[str, Any]]:
    """The servers of a cluster."""
    found = json.loads(lab.kubectl("-n", "demo", "get", "pods", "-l", "app=echo", "-o", "json", cluster=cluster))
    items: list[dict[str, Any]] = found["items"]
    return items


def has_pods(lab: Running, count: int) -> bool:
    return len(pods(lab, "c2")) == count


def kill_a_pod(lab: Running) -> None:
    lab.cli("kill", f"c2/pod/demo/{pods(lab, 'c2')[0]['metadata']['name']}")


def kill_it_until_it_backs_off(lab: Running) -> None:
    """Kubernetes starts a container at once, then after 10 s, then 20 s: refusing all the while."""
    name = pods(lab, "c2")[0]["metadata"]["name"]
    for _ in range(2):
        lab.cli("kill", f"c2/pod/demo/{name}", code=None)
        time.sleep(1.0)


def kill_and_start(what: str, lab: Running) -> None:
    lab.cli("kill", what)
    time.sleep(3.0)
    lab.cli("start", what)


def cut_and_heal(lab: Running, *words: str) -> None:
    lab.cli("cut", *words)
    time.sleep(3.0)
    lab.cli("heal")


def roll_out(cluster: str, lab: Running) -> None:
    lab.kubectl("-n", "demo", "rollout", "restart", "deployment/echo", cluster=cluster)
    lab.kubectl("-n", "demo", "rollout", "status", "deployment/echo", "--timeout=180s", cluster=cluster)


def scale_to_none_and_back(lab: Running) -> None:
    for replicas in (0, 2):
        lab.kubectl("-n", "demo", "scale", "deployment/echo", f"--replicas={replicas}", cluster="c2")
        until(partial(has_pods, lab, replicas), what=f"{replicas} pods")
        time.sleep(1.0)


def flap(lab: Running) -> None:
    """Another cluster refuses and answers in turn."""
    pauses = random.Random(7)
    for _ in range(15):
        lab.cli("cut", "--loud", "c1", "c2")
        time.sleep(pauses.uniform(0.03, 0.4))
        lab.cli("heal")
        time.sleep(pauses.uniform(0.03, 0.4))


def flap_a_pod(lab: Running) -> None:
    """Its server closes its ports for 30 to 400 ms and opens them for as long, for at least ten rounds."""
    name = pods(lab, "c2")[0]["metadata"]["name"]

    def printed(text: str) -> bool:
        return text in lab.kubectl("-n", "demo", "logs", name, cluster="c2").splitlines()

    lab.exec(f"demo/{name}", "kill -USR1 1", cluster="c2")
    try:
        until(partial(printed, "flapped 10"), what="ten rounds")
    finally:
        lab.exec(f"demo/{name}", "kill -USR2 1", cluster="c2")
    until(partial(printed, "settled"), what="it answers again")


def configure_agent(lab: Running, line: str) -> None:
    """Restart the agent beside the client with one more line in ``[datapath]``."""
    config = config_of(cluster_of(lab, "c1").nodes[0], "agent")
    lab.cli("kill", "c1/agent")
    config.write_text(config.read_text().replace("[datapath]\n", f"[datapath]\n{line}\n"))
    lab.cli("start", "c1/agent")


def replace_the_agent(lab: Running) -> None:
    """Maps of another size, as of another version: new ones are filled beside the old, which go on answering."""
    before = maps_directories(lab)
    configure_agent(lab, "max_entries = 32768")
    until(lambda: len(now := maps_directories(lab)) == 1 and now != before, what="the new agent's maps alone")


def maps_directories(lab: Running) -> set[str]:
    """Directories with maps of the agent on c1's first node."""
    [pin] = [local.clusters(lab.lab.name)["c1"].pin]
    return {path.name for path in Path(pin).glob("v*-*")}


FAULTS: dict[str, Callable[[Running], None]] = {
    "a pod is killed": kill_a_pod,
    "a container is in back-off": kill_it_until_it_backs_off,
    "a node is killed": partial(kill_and_start, "c2/node/2"),
    "a node is cut off silently": lambda lab: cut_and_heal(lab, "c1/node/1", "c2/node/2"),
    "a cluster is cut off silently": lambda lab: cut_and_heal(lab, "c1", "c2"),
    "a cluster is cut off loudly": lambda lab: cut_and_heal(lab, "--loud", "c1", "c2"),
    "nothing gets there": lambda lab: cut_and_heal(lab, "--one-way", "c1", "c2"),
    "nothing comes back": lambda lab: cut_and_heal(lab, "--one-way", "c2", "c1"),
    "a rollout": partial(roll_out, "c2"),
    "a rollout in the caller's own cluster": partial(roll_out, "c1"),
    "none are left there for a while": scale_to_none_and_back,
    "the agent is killed": partial(kill_and_start, "c1/agent"),
    "a cluster flaps every 30 to 400 ms": flap,
    "a pod flaps every 30 to 400 ms": flap_a_pod,
    "the agent is replaced by one with another layout": replace_the_agent,
    "the name server is killed": partial(kill_and_start, "c1/dns"),
}
FEW = {"a pod is killed"}
"""Faults of ``make test-all``; the others are in ``make test-failover``."""


def waiting_for_last_ack(lab: Running, cluster: str, pod: str) -> list[str]:
    lines = lab.exec(f"demo/{pod}", "cat /proc/net/tcp /proc/net/tcp6", cluster=cluster, code=None).splitlines()
    return [line for line in lines if len(line.split()) > 3 and line.split()[3] == LAST_ACK]


def no_end_is_awaited(lab: Running) -> bool:
    """Neither the client nor a server that lives has a socket in LAST_ACK: every FIN was answered, moved or not."""
    ends = [("c1", "client")] + [
        (cluster, pod["metadata"]["name"]) for cluster in ("c1", "c2") for pod in pods(lab, cluster)
    ]
    return not any(waiting_for_last_ack(lab, *end) for end in ends)


def recorded(lab: Running) -> str:
    """Calls that the agent recorded; empty while a killed agent restarts."""
    try:
        return lab.isthmus("flows", "-o", "json")
    except AssertionError:
        return ""


def assert_named(lab: Running) -> None:
    """Assert that recorded calls have names, whatever was killed or replaced: a number would mean an unknown name."""
    output: str = until(partial(recorded, lab), what="the agent has records of calls")
    rows = [json.loads(line) for line in output.splitlines()]
    assert {row["service"] for row in rows} == {"demo/echo:80"}
    assert {row["pod"] for row in rows} == {"demo/client"}
    assert {row[end]["cluster"] for row in rows for end in ("asked", "answered")} <= {"c1", "c2", ""}


def was_connected(phase: str, error: str) -> bool:
    """True if a failed call had been accepted: RST that answers a SYN is ECONNREFUSED, a later one ECONNRESET."""
    return phase in ("answer", "transfer") or (phase, error) == ("connect", "ECONNRESET")


def make(fault: str, lab: Running, *options: str) -> dict[str, Any]:
    """Make a fault while the client calls; what became of the calls, none of whose connects failed."""
    calling = Calling(lab, *options)
    try:
        time.sleep(1.0)
        FAULTS[fault](lab)
        time.sleep(1.0)
    finally:
        result = calling.end()
    datagrams = [each for each in result["failed"] if each[0].startswith("udp") and each[1] == "answer"]
    cut_short = [each for each in result["failed"] if each not in datagrams and was_connected(*each[1:3])]
    connects = [each for each in result["failed"] if each not in datagrams and each not in cut_short]
    print(
        f"{fault}: {sum(result['ended'].values())} calls, {result['rate']}/s, the latest {result['late']} s late,"
        f" {result['under_way']} under way at most; failed connects {connects}, cut short {len(cut_short)}, datagrams"
        f" unanswered {len(datagrams)}, slow {len(result['slow'])}; {result['ended']}; {result['answered']}"
    )
    assert connects == []
    assert [each for each in cut_short if each[2] == "other bytes"] == []
    under_way = result["under_way"]
    assert len(cut_short) <= under_way["tcp"] + under_way["bulk"], "what was established, at most the calls under way"
    return result


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name in FEW else pytest.mark.failover) for name in FAULTS]
)
def test_no_connect_fails_while(fault: str, lab: Running) -> None:
    until(partial(settled, lab), what="the lab is as at the start")
    result = make(fault, lab)
    if fault not in FEW:
        assert len(result["slow"]) <= sum(result["under_way"].values()), "no more than were under way"
    until(lambda: maps(lab, "flows") == [], seconds=100, what="entries of moved connections have gone")
    until(partial(no_end_is_awaited, lab), seconds=100, what="no socket is in LAST_ACK at either end")
    assert_named(lab)


def within(namespace: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", namespace, *command], check=True, capture_output=True, text=True)


@contextmanager
def narrow_path(lab: Running) -> Iterator[tuple[str, ...]]:
    """The way to the other cluster and back takes packets of 1,300 bytes."""

    def packets_of(size: int) -> None:
        for node in cluster_of(lab, "c2").nodes:
            within(lab.lab.fabric, "ip", "link", "set", node.wire, "mtu", str(size))
            within(node.namespace, "ip", "link", "set", "eth0", "mtu", str(size))

    packets_of(1300)
    try:
        yield ()
    finally:
        packets_of(1500)


FAST_OPEN: Final = 0x607
"""tcp_fastopen: clients and servers, without cookies, for every listener."""


@contextmanager
def fast_open(lab: Running) -> Iterator[tuple[str, ...]]:
    """Data in the first packet, which servers take."""
    targets = [("c1", "client"), *((name, pod["metadata"]["name"]) for name in ("c1", "c2") for pod in pods(lab, name))]
    for cluster, pod in targets:
        network = f"--net=/proc/{pod_exec.find(cluster_of(lab, cluster), f'demo/{pod}').pid}/ns/net"
        write = f"echo {FAST_OPEN} > /proc/sys/net/ipv4/tcp_fastopen"
        subprocess.run(["nsenter", network, "sh", "-c", write], check=True, capture_output=True)
    yield ("--fast-open",)


@contextmanager
def short_patience(lab: Running) -> Iterator[tuple[str, ...]]:
    """Clients that give a connect up after 100 ms, and a first SYN that waits for 20 ms."""
    if SYN_TIMEOUT not in config_of(cluster_of(lab, "c1").nodes[0], "agent").read_text():
        configure_agent(lab, SYN_TIMEOUT)
        until(partial(settled, lab), what="the new agent has all backends")
    yield ("--connect-timeout", "0.1")


SYN_TIMEOUT: Final = "syn_timeout = 0.02"
ROWS: Final = {
    "a path of 1,300 bytes": narrow_path,
    "TCP Fast Open": fast_open,
    "time-outs of 100 ms": short_patience,  # the last one: its agent stays
}
AGAIN: Final = (
    "a pod is killed",
    "a node is cut off silently",
    "a cluster is cut off loudly",
    "a cluster flaps every 30 to 400 ms",
    "a rollout",
    "the agent is killed",
)


BETWEEN_ISLANDS: Final = ("a pod is killed", "a cluster is cut off silently", "a rollout", "the agent is killed")


@pytest.mark.failover
@pytest.mark.parametrize("fault", AGAIN)
@pytest.mark.parametrize("row", ROWS)
def test_no_connect_fails_with(row: str, fault: str, lab: Running) -> None:
    until(partial(settled, lab), what="the lab is as at the start")
    with ROWS[row](lab) as options:
        make(fault, lab, *options)


@pytest.mark.failover
@pytest.mark.parametrize("fault", BETWEEN_ISLANDS)
def test_no_connect_fails_between_islands_in_dual_stack_while(fault: str, islands: Running) -> None:
    until(partial(settled, islands, ISLANDS), what="the lab is as at the start")
    make(fault, islands)
