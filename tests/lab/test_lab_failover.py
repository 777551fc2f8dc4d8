"""No connect fails while anything on the way dies, is cut off or replaced, as long as one backend answers.

c1's client calls an import by name and by address, TCP and UDP, IPv4 and IPv6, 330 times a second by a schedule, while
one fault after the other is made in the lab. What had been connected to a server that then died cannot be saved, nor a
datagram to it: those are counted apart.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab_running import Running, lab_name, until

from isthmus.cli import local
from isthmus_lab import removal
from isthmus_lab.layout import Lab
from isthmus_lab.supervisor.configs import config_of

pytestmark = pytest.mark.lab

HERE = Path(__file__).parent
SUPPORT = HERE.parent / "support"
NAME = "echo.demo.svc.clusterset.local"
LAST_ACK = "09"
"""In the fourth column of /proc/net/tcp."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    running = Running(Lab(lab_name("f"), 2, 2, families=(("IPv4", "IPv6"),) * 2))
    try:
        server = f"failover/server={sys.executable} -I -S {SUPPORT / 'failover_serve.py'}"
        shape = ("--clusters", "2", "--nodes", "2", "--ip-families=IPv4,IPv6")
        running.cli("up", *shape, f"--from={HERE / 'manifests' / 'failover'}", f"--image={server}")
        until(partial(settled, running), what="three backends of both families")
        yield running
    finally:
        removal.remove(running.lab)


def settled(lab: Running) -> bool:
    """Everything is as at the start: three backends in the kernel for each family and protocol, none ejected."""
    found = {row["backend"] for row in maps(lab, "backends")}
    return len(found) == 12 and not any(row["ejected"] for row in maps(lab, "failing"))


def maps(lab: Running, name: str) -> list[dict[str, Any]]:
    """A BPF map of c1's first node, which the client is on."""
    rows: list[dict[str, Any]] = json.loads(lab.isthmus("bpf", "maps", name, "-o", "json"))[name]
    return rows


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


def replace_the_agent(lab: Running) -> None:
    """Maps of another size, as of another version: new ones are filled beside the old, which go on answering."""
    cluster = lab.lab.cluster("c1")
    assert cluster is not None
    config = config_of(cluster.nodes[0], "agent")
    before = maps_directories(lab)
    lab.cli("kill", "c1/agent")
    config.write_text(config.read_text().replace("[datapath]\n", "[datapath]\nmax_entries = 32768\n"))
    lab.cli("start", "c1/agent")
    until(lambda: len(now := maps_directories(lab)) == 1 and now != before, what="the new agent's maps alone")


def maps_directories(lab: Running) -> set[str]:
    """Where the agent of c1's first node has its maps."""
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
"""Faults of ``make test``; the others are in ``make test-failover``."""


class Calling:
    """Calls from the client, from now on until ``end``."""

    def __init__(self, lab: Running) -> None:
        [found] = [json.loads(lab.kubectl("-n", "demo", "get", "serviceimport", "echo", "-o", "json"))]
        inside = [sys.executable, "-I", "-S", str(SUPPORT / "failover_load.py"), NAME, "80"]
        command = [sys.executable, "-m", "isthmus", "lab", "exec", "--lab", lab.lab.name, "c1", "demo/client", "--"]
        self._process = subprocess.Popen(
            [*command, *inside, *found["spec"]["ips"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "calling\n"

    def end(self) -> dict[str, Any]:
        """What became of them."""
        output, _ = self._process.communicate(timeout=60)
        result: dict[str, Any] = json.loads(output)
        return result


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
    """What the agent has of calls; nothing while one that was killed is on its way back."""
    try:
        return lab.isthmus("flows", "-o", "json")
    except AssertionError:
        return ""


def assert_named(lab: Running) -> None:
    """What was recorded of calls has names, whatever was killed or replaced: a number stands for what has none."""
    output: str = until(partial(recorded, lab), what="the agent has records of calls")
    rows = [json.loads(line) for line in output.splitlines()]
    assert {row["service"] for row in rows} == {"demo/echo:80"}
    assert {row["pod"] for row in rows} == {"demo/client"}
    assert {row[end]["cluster"] for row in rows for end in ("asked", "answered")} <= {"c1", "c2", ""}


def was_connected(phase: str, error: str) -> bool:
    """Whether a call that failed had been accepted: RST that answers a SYN is ECONNREFUSED, a later one ECONNRESET."""
    return phase in ("answer", "transfer") or (phase, error) == ("connect", "ECONNRESET")


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name in FEW else pytest.mark.failover) for name in FAULTS]
)
def test_no_connect_fails_while(fault: str, lab: Running) -> None:
    until(partial(settled, lab), what="the lab is as at the start")
    calling = Calling(lab)
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
    if fault not in FEW:
        assert len(result["slow"]) <= sum(under_way.values()), "no more than were under way"
    until(lambda: maps(lab, "flows") == [], seconds=100, what="entries of moved connections have gone")
    until(partial(no_end_is_awaited, lab), seconds=100, what="no socket is in LAST_ACK at either end")
    assert_named(lab)
